"""docs/seeds.md from seeds.toml: what the seed documents ask for, where it is, and which test proves it.

Raises ValueError for a row that is missing, for one that is neither open nor has a test, for a test that is nowhere,
and for a name that cannot be imported: so `make check` fails when a test is renamed and its row is forgotten.
"""

from __future__ import annotations

import ast
import functools
import importlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.generators.reasons import section

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".toml")
PATH = "docs/seeds.md"
SECTIONS = {
    "A": ("verl RFC 5790", 10),
    "B": ("AReaL's agent workflow", 7),
    "C": ("uni-agent PR 58", 9),
    "X": ("What none of them has", 17),
}
"""Letter -> title and number of rows, each of which must be there."""
INTRO = """\
<!-- Generated from scripts/generators/seeds.toml by `make fix`, which checks every name in it. Do not edit. -->
# The seed documents, row by row

Sandgate answers three public documents: verl RFC 5790, AReaL's agent workflow, and uni-agent PR 58. Each row names what
implements it and the tests that prove it. Files `check_*.py` run inside the trainer's own environment, with its real
packages: `test_verl.py` and `areal/test_real_areal.py` in `tests/trainer` start them.
"""
GATES = "The regression gates that uni-agent's pull request names, by behaviour."


def generate() -> dict[str, str]:
    """Raises ValueError with everything that is wrong."""
    table = tomllib.loads(TABLE.read_text("utf-8"))
    if wrong := list(mistakes(table)):
        raise ValueError("scripts/generators/seeds.toml:\n" + "\n".join(wrong))
    parts = [INTRO]
    for letter, (title, _) in SECTIONS.items():
        rows = [row for row in table["row"] if row["id"].startswith(letter)]
        columns = ("row", "what", "here", "proved by")
        parts.append(section(f"{letter}: {title}", opened(rows), columns, [cells(row) for row in rows]))
    gates = [(f"`{gate['name']}`", tests_of(gate)) for gate in table["gate"]]
    parts.append(section("Regression gates", GATES, ("theirs", "here"), gates))
    return {PATH: "\n".join(parts)}


def mistakes(table: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a table, a line each."""
    known = [row["id"] for row in table["row"]]
    every = {f"{letter}{at + 1}" for letter, (_, rows) in SECTIONS.items() for at in range(rows)}
    yield from (f"{name} is missing" for name in sorted(every - set(known)))
    yield from (f"{name} is there twice" for name in sorted({one for one in known if known.count(one) > 1}))
    if known != sorted(known, key=lambda name: (name[0], int(name[1:]))):
        yield "rows are not in order"
    for entry in [*table["row"], *table["gate"]]:
        name = entry.get("id") or entry["name"]
        if not entry["tests"] and "open" not in entry:
            yield f"{name} has no test"
        yield from (f"{name}: there is no test {test}" for test in entry["tests"] if not is_test(test))
        yield from (f"{name}: {here} cannot be imported" for here in entry.get("here", ()) if not found(here))


def is_test(name: str) -> bool:
    """`tests/room/file.py::test_name`."""
    path, _, test = name.partition("::")
    return test.startswith("test_") and test in functions(path)


@functools.cache
def functions(path: str) -> frozenset[str]:
    """Of the file's top level."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    body = ast.parse(file.read_text("utf-8")).body
    return frozenset(one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def found(name: str) -> bool:
    """`sandgate.module.Name`, a module, or a path in the clone."""
    if "/" in name:
        return (ROOT / name).exists()
    parts = name.split(".")
    for cut in range(len(parts), 1, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part, None)
        return thing is not None
    return False


def opened(rows: Sequence[Mapping[str, Any]]) -> str:
    """What is still to be built, said before the table."""
    left = [f"{row['id']}: {row['open']}" for row in rows if "open" in row]
    return "Open. " + " ".join(left) if left else "Nothing is open."


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Row of the table."""
    what = row["what"] + (f"<br>**Open:** {row['open']}" if "open" in row else "")
    what += f"<br>*{row['note']}*" if "note" in row else ""
    return row["id"], what, "<br>".join(f"`{name}`" for name in row["here"]), tests_of(row)


def tests_of(entry: Mapping[str, Any]) -> str:
    """Each as a link to its file."""
    return "<br>".join(
        f"[{Path(path).name}](../{path}) `{name}`"
        for path, _, name in (test.partition("::") for test in entry["tests"])
    )
