"""A trainer that ends, however, with a run beside it; without AReaL."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from sandgate.contract.attach import LOCK
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer.client.attach import Presence, RunPlace
from sandgate.trainer.testing import tiny_player
from tests.trainer.areal.test_job import manifest

OPENS = """
import sys
from pathlib import Path
from sandgate.trainer.areal.link import COMMAND, Link, local_run

folder = Path(sys.argv[1])
link = Link("shop", local_run(COMMAND, folder / "job.yaml", folder / "out", [sys.argv[2]]))
link.open(0)
"""
TABLE = {
    "it fails": ("raise ValueError('the trainer fails')", 1),
    "it forgets to close": ("", 0),
    "it is over while its workers are not, as a DataLoader's": (
        "import os, time\nchild = os.fork()\nif not child:\n    time.sleep(300)\n"
        "link.close()\nos.kill(child, 9)\nos.waitpid(child, 0)",
        0,
    ),
}


def ended(program: str, *argv: str) -> int:
    words = [sys.executable, "-c", OPENS + program, *argv]
    return subprocess.run(words, check=False, timeout=100).returncode


@pytest.mark.parametrize(("program", "code"), TABLE.values(), ids=TABLE.keys())
async def test_it_ends_and_its_run_with_it(program: str, code: int, tmp_path: Path) -> None:
    manifest(tmp_path)
    async with ScriptedServer(tiny_player(lambda ids, number: "yes"), model="tiny") as server:
        assert await asyncio.to_thread(ended, program, str(tmp_path), server.url) == code
    assert (tmp_path / "out" / LOCK).exists()
    assert not RunPlace.at(tmp_path / "out", 0.0, Presence()).alive()
