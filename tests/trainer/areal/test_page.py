"""The program of docs/trainers/areal.md, run as it is written, prints what the page shows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from sandgate.trainer import testing
from tests.trainer.areal.env import ROOT, environment, python

PAGE = ROOT / "docs" / "trainers" / "areal.md"
PROGRAM_S = 180.0
"""8-30 s of imports, then milliseconds."""


async def test_the_program_prints_what_the_page_shows(tmp_path: Path) -> None:
    program, shown = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    async with testing.gateway(lambda ids, number: f"bought {number}") as running:
        process = await asyncio.create_subprocess_exec(
            python(), tmp_path / "program.py",
            env=environment(ORIGIN=running.origin, ADMIN_KEY=running.admin_key),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PROGRAM_S):
            out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    assert [line for line in out.decode().splitlines() if line.startswith("reward")] == shown.splitlines()
