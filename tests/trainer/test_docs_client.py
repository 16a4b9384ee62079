"""The programs of docs/trainers/client.md print what the page shows; killed and run again the first goes on. And the
README's, attached to a run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandgate.trainer.export.arrow import read_parquet
from tests.support.gateway import Running, admin_key, gateway
from tests.trainer.jobs import MANIFEST, ended, lab

PAGE = (Path(__file__).parents[2] / "docs" / "trainers" / "client.md").read_text("utf-8")
PROGRAM, LOCAL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN, SHOWN_LOCAL = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.timeout(120)


async def run(g: Running, checkpoint: Path) -> str:
    given = {"ORIGIN": g.origin, "KEY": admin_key(), "CHECKPOINT": str(checkpoint), "IDLE": "0"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=os.environ | given, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_the_program_of_the_page(tmp_path: Path) -> None:
    async with gateway(lambda ids, number: "said", job="shop") as g:
        for uid in ("q0", "q1"):
            for index in range(2):
                agent = await g.session(uid=uid, sample_index=index, group_size=2)
                await agent.ask("hi")
                await g.finalize(agent, reward=1.0)
        assert await run(g, tmp_path / "checkpoint") == SHOWN
        assert await run(g, tmp_path / "checkpoint") == "0 groups, 0 too old\n", "nothing is trained on again"


async def program(text: str, folder: Path) -> str:
    """What it prints there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def test_the_local_program_of_the_page(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        tasks = 'tasks: {inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}'
        assert tasks in MANIFEST
        text = (tmp_path / "job.yaml").read_text().replace(tasks, "tasks: {queue: {}}")
        (tmp_path / "job.yaml").write_text(text.replace("parallelism: 2", "parallelism: 1"))
        run = await here.start("--out", "out/ask")
        assert await program(LOCAL, tmp_path) == SHOWN_LOCAL
        assert (await ended(run)).code == 0


README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
(ATTACHED,) = [one for one in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "local(" in one]
MY_TRAINER = """
def train(rows):
    print(*sorted((row.trajectory.uid, row.trajectory.sample_index) for row in rows))

def load_weights(engines):
    print(*engines)
"""


async def test_the_local_program_of_the_readme(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        (tmp_path / "my_trainer.py").write_text(MY_TRAINER)
        run = await here.start("--out", "out/mine")
        said = (await program(ATTACHED, tmp_path)).splitlines()
        assert sorted(said[::2]) == ["('q1', 0) ('q1', 1)", "('q2', 0) ('q2', 1)"]
        assert said[1::2] == [here.url] * 2
        assert (await ended(run)).code == 0
    assert len(list(read_parquet(tmp_path / "out" / "mine" / "trajectories.parquet"))) == 4
