"""What `make demo-rl` prints."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sandgate.operator.local.job import EngineReady, EngineStarting


def test_what_engine_and_gateway_do_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "learning"))
    view = importlib.import_module("demo").View(tmp_path, 1)
    view.say(EngineStarting(log=Path("e.log")))
    view.say(EngineReady(urls=("http://e",), seconds=2.0))
    assert (
        capsys.readouterr().out == "engine is starting, log in e.log\nengine answers after 2.0 s: http://e\n"
    )
