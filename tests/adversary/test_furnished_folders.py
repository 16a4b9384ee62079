"""Whatever an agent left where its verifier's folder will be, the verifier has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandgate.operator.local.sandboxes import _furnish

LEFT: dict[str, Callable[[Path], object]] = {
    "the agent left no folder": lambda home: None,
    "a file": lambda home: home.write_text("x"),
    "a link to another folder": lambda home: home.symlink_to(home.parent),
    "a link to nowhere": lambda home: home.symlink_to("nowhere"),
    "a folder with a file in it": lambda home: (home / "home").mkdir(parents=True),
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_the_verifier_has_a_folder_beside(tmp_path: Path, left: Callable[[Path], object]) -> None:
    left(tmp_path / "verifier")
    home = _furnish(tmp_path, "verifier", {"task.json": b"{}"})
    assert home == (tmp_path / "verifier").resolve()
    assert not home.is_symlink()
    assert sorted(path.name for path in home.iterdir()) == ["home", "task.json", "tmp"]
