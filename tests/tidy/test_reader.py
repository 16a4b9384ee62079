"""The list of changes by which the tree is scored for readers (reader.toml) names files that are there."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.source import ROOMS

ROOT = Path(__file__).parents[2]
CHANGES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "reader.toml").read_text())["change"]


def defined(path: Path) -> set[str]:
    """Names that a module defines, in its classes too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change["change"])
def test_the_file_of_a_change_is_there_and_holds_what_is_changed(change: dict[str, Any]) -> None:
    path = ROOT / change["file"]
    assert path.is_file(), f"{change['file']} is not there: the change is made elsewhere now"
    assert change["defines"] in defined(path), f"{change['file']} does not define {change['defines']}"


def test_the_list_has_twenty_changes_over_all_rooms_and_no_file_twice() -> None:
    files = [change["file"] for change in CHANGES]
    assert len(files) == len(set(files)) == 20
    assert {file.partition("/")[0] for file in files} == set(ROOMS)
