"""docs/trainers/tinker.md, skyrl.md and openrlhf.md do what they show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "trainers"


def block(page: str, language: str) -> str:
    """The only one in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    return str(found)


@pytest.mark.parametrize("page", ["tinker.md", "skyrl.md", "openrlhf.md"])
def test_the_program_prints_what_the_page_shows(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported the packages already."""
    (tmp_path / "program.py").write_text(block(page, "python"))
    runpy.run_path(str(tmp_path / "program.py"), run_name="__main__")
    assert capsys.readouterr().out == block(page, "text")
