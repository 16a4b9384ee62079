"""Ctrl-C while a job on this machine starts; without SkyRL and TRL."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from sandgate.contract.attach import LOCK
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.operator.local.folder import in_use
from sandgate.trainer.testing import tiny_player
from tests.support.waiting import until
from tests.trainer.areal.test_job import manifest

LIMIT_S = 60.0
SKYRL = """
import asyncio, signal, sys
from pathlib import Path
from sandgate.contract.job import Task
from sandgate.trainer.skyrl.jobs import BatchKind, JobRunner, LocalJobs

signal.signal(signal.SIGINT, signal.default_int_handler)
folder = Path(sys.argv[1])
runner = JobRunner(LocalJobs(folder / "job.yaml", folder / "out", (sys.argv[2],)), 60.0)
asyncio.run(runner.groups(BatchKind(evaluation=False, n=2, sampling={}), [Task(uid="q0", prompt="say")], 0))
"""
TRL = """
import signal, sys
from pathlib import Path
from sandgate.contract.job import Task
from sandgate.trainer.trl import rollouts
from sandgate.trainer.trl.local import local_fleet

rollouts.leads = lambda: True  # torch, which is not here, would say so

def enter():
    place = local_fleet(folder / "job.yaml", folder / "out", engine_url=sys.argv[2])
    with rollouts.Rollouts(place, [Task(uid="q0", prompt="say")], job="shop"):
        print("connected")

signal.signal(signal.SIGINT, signal.default_int_handler)
folder = Path(sys.argv[1])
try:
    enter()
except KeyboardInterrupt:
    print("interrupted")
    enter()
"""
"""As in a notebook: once more in the same process."""
CASES = {
    "SkyRL's, as it takes its folder": (SKYRL, "out/train/000", LOCK, (-signal.SIGINT, [])),
    "SkyRL's, as its gateway starts": (SKYRL, "out/train/000", "gateway-0.sqlite", (-signal.SIGINT, [])),
    "TRL's, as it takes its folder": (TRL, "out", LOCK, (0, ["interrupted", "connected"])),
    "TRL's, as its gateway starts": (TRL, "out", "gateway-0.sqlite", (0, ["interrupted", "connected"])),
}


def left(folder: Path) -> list[str]:
    """Processes that name it."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = one.read_bytes().decode(errors="replace")
        except OSError:  # over
            continue
        if str(folder) in words:
            found.append(words.replace("\0", " "))
    return found


@pytest.mark.parametrize(("program", "out", "sign", "ends"), CASES.values(), ids=CASES.keys())
async def test_an_interrupted_start_ends_and_leaves_nothing(
    program: str, out: str, sign: str, ends: tuple[int, list[str]], tmp_path: Path
) -> None:
    manifest(tmp_path)

    async def begun() -> bool:
        return (tmp_path / out / sign).exists()

    async with ScriptedServer(tiny_player(lambda ids, number: "yes"), model="tiny") as server:
        words = [sys.executable, "-c", program, str(tmp_path), server.url]
        trainer = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        try:
            await until(begun, what="the job starts")
            trainer.send_signal(signal.SIGINT)
            said, _ = await asyncio.wait_for(trainer.communicate(), LIMIT_S)
        finally:
            if trainer.returncode is None:
                trainer.kill()
                await trainer.communicate()
    assert (trainer.returncode, said.decode().split()) == ends
    assert not in_use(tmp_path / out)
    assert left(tmp_path) == []
