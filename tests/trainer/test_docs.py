"""Every example of docs/cli.md does what it shows. `python -m tests.trainer.test_docs` writes what they print now."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sandgate.contract.names import session_id
from sandgate.trainer.cli.command import app
from sandgate.trainer.tinymodel import write_tiny_model
from tests.trainer.jobs import MANIFEST
from tests.trainer.runs import LINEAR, SPOKEN, write_run

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
EXAMPLE = re.compile(r"```console\n\$ sandgate (?P<words>[^\n]*)\n(?P<shown>.*?)```", re.DOTALL)


def prepare(folder: Path) -> None:
    """What the page assumes: a run in `out`, a model folder in `model`, a manifest that is wrong in two places."""
    kiwi, q1 = str(session_id("shop", "kiwi", 0, 0)), str(session_id("shop", "q1", 1, 0))
    sessions = {kiwi: SPOKEN, q1: LINEAR}
    asyncio.run(write_run(folder / "out", sessions))
    write_tiny_model(folder / "model")
    wrong = MANIFEST.replace("tokenizer: model", "tokenizer: modle").replace("PYTHON", "pythonx")
    (folder / "wrong.yaml").write_text(wrong)


def printed(words: str) -> str:
    """What the command says, stderr included, without blanks at line ends (tables have them)."""
    said = CliRunner().invoke(app, shlex.split(words))
    assert not said.exception or isinstance(said.exception, SystemExit)
    return "".join(f"{line.rstrip()}\n" for line in said.output.splitlines())


def examples() -> dict[str, str]:
    """Command -> what it prints. `run` without --dry-run is a whole job: test_run.py compares it."""
    found = {found["words"]: found["shown"] for found in EXAMPLE.finditer(PAGE.read_text("utf-8"))}
    whole = [words for words in found if words.startswith("run ") and "--dry-run" not in words]
    return {words: shown for words, shown in found.items() if words not in whole}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("docs")
    prepare(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        yield found


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", examples())
def test_the_example_prints_what_the_page_shows(words: str) -> None:
    assert printed(words) == examples()[words]


def test_every_look_is_shown() -> None:
    shown = {words.split()[0] for words in examples()}
    assert {"show", "forks", "sessions", "status", "trajectories", "export", "doctor", "run"} <= shown


def rewrite() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch))
        os.chdir(scratch)
        text = PAGE.read_text("utf-8")
        for words, shown in examples().items():
            text = text.replace(f"$ sandgate {words}\n{shown}```", f"$ sandgate {words}\n{printed(words)}```")
        PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    rewrite()
    sys.exit(0)
