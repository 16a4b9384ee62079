"""Local sandboxes: no walls, but an end. A daemon that hid is gone before anybody reads what its session left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.operator.local.sandboxes import exit_of
from sandgate.sandbox import process as processes
from sandgate.sandbox.process import ProcessSpec, SandboxProcess, watch_memory
from tests.operator.rig import job, rig
from tests.support.waiting import until

HERE = Path(__file__).parent

HIDES = """
import os, sys
def hide(then):
    "A daemon as it stands in the books, with nothing of its maker: session, environment, name, files."
    here, there = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(here)
            os.write(there, str(os.getpid()).encode())
            os.close(there)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.execve(sys.executable, ["nobody", "-S", "-c", then, *sys.argv[1:]], {})
        os._exit(0)
    os.close(there)
    pid = b""
    while part := os.read(here, 99):
        pid += part
    os.wait()
    return int(pid)
"""
SLEEP = "import time; time.sleep(600)"
SPLITS = "import os, time\nfor _ in range(30):\n    os.fork()\n    time.sleep(0.05)"
HOPS = "import os, time\nend = time.monotonic() + 60\nwhile time.monotonic() < end:\n    if os.fork(): os._exit(0)"
"""Never the same process for longer than a fork takes. It stops by itself: where a run is ended together with the
keeper, nobody would catch it, and it would slow this machine for ever."""


class Box:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: list[SandboxProcess] = []

    async def start(self, code: str, **more: Any) -> SandboxProcess:
        spec = ProcessSpec(
            argv=[sys.executable, "-S", "-c", HIDES + code],
            env={"MARK": "x"},
            cwd=self.folder,
            log=self.folder / "log",
            termination=self.folder / "result",
            **more,
        )
        self.begun.append(await SandboxProcess.start(spec))
        return self.begun[-1]

    def number(self) -> int:
        return int((self.folder / "pid").read_text())


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    made = Box(tmp_path)
    yield made
    for one in made.begun:
        one.kill()
        await one.wait()
    if (tmp_path / "pid").exists() and lives(made.number()):
        os.kill(made.number(), signal.SIGKILL)


def lives(pid: int) -> bool:
    """And is no zombie that somebody has not buried yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def writes(code: str) -> str:
    """Hide, then say who hid."""
    return f"pid = hide({code!r})\nopen('pid', 'w').write(str(pid))\nopen('result', 'w').write('[1]')\n"


@pytest.mark.parametrize(
    "code",
    [SLEEP, SPLITS, HOPS],
    ids=["a daemon that sleeps", "a daemon that multiplies", "a daemon that hops"],
)
async def test_a_daemon_without_a_trace_of_its_session_ends_with_it(box: Box, code: str) -> None:
    process = await box.start(writes(code))
    end = await process.wait()
    assert (end.code, end.escaped, end.message) == (0, False, b"[1]")
    assert not lives(box.number())


async def test_it_lives_as_long_as_its_session_does(box: Box) -> None:
    """As in a pod: a server that a shell put behind itself is no crime."""
    process = await box.start(writes(SLEEP) + SLEEP)

    async def hidden() -> bool:
        return (box.folder / "result").exists()

    await until(hidden, what="it is hidden")
    assert lives(box.number())
    await process.stop(5.0)
    assert not lives(box.number())


async def test_it_counts_for_its_sessions_memory(box: Box) -> None:
    process = await box.start(
        writes(f"x = bytearray(300_000_000)\n{SLEEP}") + SLEEP, memory_bytes=100_000_000
    )
    watch = asyncio.ensure_future(watch_memory(lambda: [process], poll_s=0.02))
    end = await process.wait()
    watch.cancel()
    assert (end.oom, end.escaped) == (True, False)
    assert not lives(box.number())


async def test_of_one_that_kills_what_stands_over_it_nothing_is_taken(box: Box) -> None:
    kills = f"pid = hide({SLEEP!r})\nopen('pid', 'w').write(str(pid))\nopen('result', 'w').write('[1]')\n"
    process = await box.start(kills + "os.kill(os.getppid(), 9)\n" + SLEEP)
    end = await process.wait()
    assert (end.escaped, end.message) == (True, b"")
    assert exit_of(end).reason is FailureReason.ESCAPED


async def test_one_that_stops_what_stands_over_it_ends_all_the_same(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "KEEPER_S", 0.2)
    process = await box.start("os.kill(os.getppid(), 19)\nopen('result', 'w').write('[1]')\n")

    async def stopped() -> bool:
        return (box.folder / "result").exists()

    await until(stopped, what="it has stopped its keeper")
    process.kill()
    end = await process.wait()
    assert (end.escaped, end.message) == (True, b"")


async def test_nobody_tells_in_the_keepers_name(box: Box) -> None:
    """Its pipe is in no program's hands."""
    code = "open('result', 'w').write(','.join(sorted(os.listdir('/proc/self/fd'))))"
    end = await (await box.start(code)).wait()
    assert end.message == b"0,1,2,3,4", "its own three, the file, the folder"


WRITES = """
import json, time
keeper = os.getppid()
driver = int(open(f"/proc/{keeper}/stat").read().rpartition(")")[2].split()[1])
open("result", "w").write('[1]')
tried = 0
for number in set(os.listdir(f"/proc/{driver}/fd")) - set(OTHERS):
    path = f"/proc/{driver}/fd/{number}"
    try:
        kind = os.readlink(path)
        flags = int(open(f"/proc/{driver}/fdinfo/{number}").read().split()[3], 8)
        if kind.startswith(("pipe:", "socket:")) and not (kind.startswith("pipe:") and flags & 3):
            tried += 1
            file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(file, json.dumps({"code": 0, "at": time.monotonic(), "alive": 0}).encode() + b"\\n")
    except OSError:
        pass
open("pid", "w").write(str(hide(SLEEPS)))
open("tried", "w").write(str(tried))
"""
"""Into whatever the driver reads, if the kernel lets it."""


async def test_nobody_tells_in_the_keepers_name_by_the_drivers_files(box: Box) -> None:
    others = os.listdir("/proc/self/fd")  # pytest's own, of which one brings a worker its tests
    code = f"OTHERS = {others}\n" + WRITES.replace("SLEEPS", repr(SLEEP))
    process = await box.start(f"{code}os.kill(keeper, 9)\n{SLEEP}")
    end = await process.wait()
    assert int((box.folder / "tried").read_text()) > 0
    assert (end.code, end.escaped, end.message) == (None, True, b"")
    assert exit_of(end).reason is FailureReason.ESCAPED


REWRITES = """
import json, sys, time
from pathlib import Path
forged = json.dumps({"exit_code": 0, "message": {"reward": 1}})
until = time.monotonic() + 60
while time.monotonic() < until:
    for path in Path(sys.argv[1]).rglob("result.json"):
        path.write_text(forged)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_no_daemon_rewrites_what_the_verifier_is_given(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    ask = f"import runpy\nrunpy.run_path({str(HERE.parent / 'operator' / 'agent.py')!r})['ask']"
    agent.write_text(
        f"{HIDES}\n{ask}([{{'role': 'user', 'content': 'one'}}])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(hide({REWRITES!r})))\n"
    )
    judge = tmp_path / "judge.py"
    judge.write_text(
        "import json, os, time\n"
        "seen = []\n"
        "for _ in range(50):\n"
        "    seen.append(json.load(open(os.environ['SANDGATE_RESULT_FILE']))['message'])\n"
        "    time.sleep(0.01)\n"
        "reward = float(any(seen))\n"
        "json.dump({'reward': reward}, open(os.environ['SANDGATE_TERMINATION_LOG'], 'w'))\n"
    )
    async with rig(tmp_path) as up:
        container = {"command": ["python", str(agent), str(tmp_path / "out")]}
        result = await up.run(
            job(
                "q kiwi",
                reward={"source": "verifier", "verifier": {"container": {"command": ["python", str(judge)]}}},
                agent={"backend": "Process", "template": {"spec": {"containers": [container]}}},
            )
        )
        assert result.complete
        (row,) = up.rows()
        assert (row.reward, row.failure_reason) == (0.0, None), json.dumps(row.reward_info)
        assert not lives(int((tmp_path / "pid").read_text()))
