"""The generator of docs/seeds.md says what is wrong with its table."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from scripts.generators import seeds

Table = dict[str, list[dict[str, Any]]]


def table() -> Table:
    """The real one, to be spoilt."""
    return tomllib.loads(seeds.TABLE.read_text("utf-8"))


def change(index: int, name: str, value: Any) -> Callable[[Table], Any]:
    return lambda table: table["row"][index].update({name: value})


WRONG: dict[str, tuple[Callable[[Table], Any], str]] = {
    "a row is missing": (lambda table: table["row"].pop(0), "A1 is missing"),
    "a row is there twice": (lambda table: table["row"].insert(1, table["row"][0]), "A1 is there twice"),
    "rows are mixed up": (lambda table: table["row"].reverse(), "rows are not in order"),
    "a row has no test": (change(0, "tests", []), "A1 has no test"),
    "a test was renamed": (
        change(0, "tests", ["tests/trainer/test_seeds.py::test_gone"]),
        "A1: there is no test tests/trainer/test_seeds.py::test_gone",
    ),
    "a file was moved": (
        change(0, "tests", ["tests/gone.py::test_x"]),
        "A1: there is no test tests/gone.py::test_x",
    ),
    "a helper is no test": (
        change(0, "tests", ["tests/trainer/test_seeds.py::table"]),
        "A1: there is no test tests/trainer/test_seeds.py::table",
    ),
    "a class was renamed": (
        change(0, "here", ["sandgate.trainer.verl.Gone"]),
        "A1: sandgate.trainer.verl.Gone cannot be imported",
    ),
    "a module was moved": (
        change(0, "here", ["sandgate.gone.Gone"]),
        "A1: sandgate.gone.Gone cannot be imported",
    ),
    "a gate has no test": (lambda table: table["gate"][0].update(tests=[]), "test_generate_sequences"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_refused(case: str) -> None:
    spoil, why = WRONG[case]
    wrong = table()
    spoil(wrong)
    assert why in "\n".join(seeds.mistakes(wrong))


def test_the_table_is_right_and_says_what_is_open() -> None:
    assert not list(seeds.mistakes(table()))
    (page,) = seeds.generate().values()
    for row in table()["row"]:
        if "open" in row:
            assert f"{row['id']}: {row['open']}" in page
