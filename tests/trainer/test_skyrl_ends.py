"""A trainer of SkyRL's that fails with jobs that run; without SkyRL."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sandgate.contract.attach import ATTACH, LOCK
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer.client.attach import Presence, RunPlace
from sandgate.trainer.testing import tiny_player
from tests.trainer.areal.test_job import manifest

OPENS = """
import asyncio, sys
from pathlib import Path
from sandgate.contract.job import Task
from sandgate.trainer.skyrl.jobs import BatchKind, JobRunner, LocalJobs

folder = Path(sys.argv[1])
runner = JobRunner(LocalJobs(folder / "job.yaml", folder / "out", (sys.argv[2],)), 60.0)
groups = asyncio.run(runner.groups(BatchKind(evaluation=False, n=2, sampling={}), [Task(uid="q0", prompt="say")], 0))
print(len(groups[0]), flush=True)
"""


FAILS = "raise ValueError('the trainer fails')"
WORKS = """
import multiprocessing, signal
multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True).start()
"""
"""As a DataLoader's worker does, while its trainer lives."""


@pytest.mark.parametrize(
    ("end", "code"),
    [(FAILS, 1), ("", 0), (WORKS + FAILS, 1)],
    ids=["it fails", "it is done", "it fails beside a worker"],
)
async def test_it_ends_and_its_jobs_with_it(end: str, code: int, tmp_path: Path) -> None:
    manifest(tmp_path)

    def ended(url: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", OPENS + end, str(tmp_path), url]
        return subprocess.run(words, check=False, timeout=100, capture_output=True, text=True)

    async with ScriptedServer(tiny_player(lambda ids, number: "yes"), model="tiny") as server:
        done = await asyncio.to_thread(ended, server.url)
    assert (done.returncode, done.stdout) == (code, "2\n"), done.stderr[-4000:]
    assert done.stderr.count("Traceback") == code, done.stderr
    (out,) = (tmp_path / "out" / "train").iterdir()
    assert (out / LOCK).exists()
    assert not RunPlace.at(out, 0.0, Presence()).alive()
    assert json.loads((out / ATTACH).read_text())["state"] == "stopped"
