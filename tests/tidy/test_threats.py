"""docs/threat-model.md: a claim stands there only with the tests that hold it."""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.source import ROOT

PAGE = ROOT / "docs" / "threat-model.md"
TEST = re.compile(r"`(tests/[^`:]+\.py)::(\w+)`")


def claims() -> list[tuple[str, str]]:
    """(claim, what its row says of tests), below `## Claims`."""
    rows = (
        line for line in PAGE.read_text("utf-8").partition("\n## Claims\n")[2].splitlines() if line[:1] == "|"
    )
    cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    return [(claim, tests) for claim, tests in cells if claim != "claim" and claim.strip("-")]


def test_there_are_claims() -> None:
    assert len(claims()) >= 4


@pytest.mark.parametrize(("_", "tests"), claims(), ids=[claim for claim, _ in claims()])
def test_a_claim_names_tests_that_exist(_: str, tests: str) -> None:
    named = TEST.findall(tests)
    assert named, "no test: `tests/.../test_x.py::test_y`"
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        found = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in found, f"{path} has no {name}"
