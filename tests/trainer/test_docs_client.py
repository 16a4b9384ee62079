"""The program of docs/trainers/client.md prints what the page shows; killed and run again it goes on."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import Running, admin_key, gateway

PAGE = (Path(__file__).parents[2] / "docs" / "trainers" / "client.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(SHOWN,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.timeout(120)


async def run(g: Running, checkpoint: Path) -> str:
    given = {"ORIGIN": g.origin, "KEY": admin_key(), "CHECKPOINT": str(checkpoint)}
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
