"""docs/trainers/verl.md does what it shows."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from omegaconf import OmegaConf  # type: ignore[import-not-found]

from sandgate.trainer.verl.entry import framework_settings

PAGE = (Path(__file__).parents[3] / "docs" / "trainers" / "verl.md").read_text("utf-8")


def block(language: str) -> str:
    """The only one in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_program_prints_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has imported verl already."""
    (tmp_path / "program.py").write_text(block("python"))
    runpy.run_path(str(tmp_path / "program.py"), run_name="__main__")
    assert capsys.readouterr().out.endswith(block("text"))


def test_the_config_is_understood(tmp_path: Path) -> None:
    config = OmegaConf.create(block("yaml"))
    config.actor_rollout_ref.rollout.update(prompt_length=1024, response_length=4096, n=8, temperature=1.0)
    config.actor_rollout_ref.model = {"path": str(tmp_path)}
    settings = framework_settings(config)
    assert settings.gateway_count == 8
    assert {name: one.dispatch_mode for name, one in settings.runners.items()} == {
        "shop": "inline_async",
        "swe": "ray_task",
    }
    assert settings.sampling == {"temperature": 1.0}
