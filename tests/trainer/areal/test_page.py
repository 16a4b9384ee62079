"""The program of docs/trainers/areal.md, run as it is written, prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

from sandgate.trainer import testing
from tests.trainer.areal.env import ROOT, Areal

PAGE = ROOT / "docs" / "trainers" / "areal.md"


async def test_the_program_prints_what_the_page_shows(areal: Areal, tmp_path: Path) -> None:
    program, shown = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    async with testing.gateway(lambda ids, number: f"bought {number}") as running:
        code, out, errors = await areal.arun(
            tmp_path / "program.py", ORIGIN=running.origin, ADMIN_KEY=running.admin_key
        )
    assert code == 0, errors[-3000:]
    assert [line for line in out.splitlines() if line.startswith("reward")] == shown.splitlines()
