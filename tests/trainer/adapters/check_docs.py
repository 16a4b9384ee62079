"""docs/trainers/tinker.md, skyrl.md and openrlhf.md do what they show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "trainers"


def blocks(page: str, language: str) -> list[str]:
    """In this language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", ["tinker.md", "skyrl.md", "openrlhf.md"])
def test_the_program_prints_what_the_page_shows(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported the packages already. A page's first program; of SkyRL's second one see
    check_skyrl_jobs.py."""
    (tmp_path / "program.py").write_text(blocks(page, "python")[0])
    runpy.run_path(str(tmp_path / "program.py"), run_name="__main__")
    assert capsys.readouterr().out == blocks(page, "text")[0]
