"""Many gateway processes for the price of one's imports, which take seconds: each is a fork of one that has them.

`python -m tests.support.many_gateways CONFIG...` prints a line, the JSON list of their process ids, and waits. They end
with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.gateway import WITHIN_S
from tests.support.process import ROOT, Process

PR_SET_PDEATHSIG = 1
STARTS_WITHIN_S = 120.0
"""Of all: seconds of CPU time of a machine that others use."""


@asynccontextmanager
async def started(gateways: Sequence[Process], log: Path) -> AsyncIterator[list[int]]:
    """Starts them, none of which has been; their process ids. Entered when all answer, left when all have ended."""
    with log.open("wb") as said:
        parent = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.many_gateways",
            *(str(one.config) for one in gateways),
            pass_fds=[one.sock.fileno() for one in gateways],
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            cwd=ROOT,
        )
    assert parent.stdout is not None
    try:
        async with asyncio.timeout(STARTS_WITHIN_S):
            line = await parent.stdout.readline()
            assert line, f"none started; see {log}"
            for one in gateways:
                async with one.admin() as admin:
                    assert (await admin.get("/healthz", timeout=STARTS_WITHIN_S)).status_code == 200
        yield json.loads(line)
    finally:
        if parent.returncode is None:
            parent.terminate()
        async with asyncio.timeout(WITHIN_S):
            await parent.stdout.read()
            await parent.wait()


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def main(configs: Sequence[str]) -> None:
    from sandgate.gateway import app

    parent, pids = os.getpid(), []
    for config in configs:
        pid = os.fork()
        if not pid:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os._exit(app.main(["--config", config]))
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
