"""docs/benchmarks.md and .json: a section for each thing that is measured, so that measuring one keeps the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

DOCS = Path(__file__).resolve().parents[2] / "docs"
HEAD = """\
# Benchmarks

Each section is written by the command that it names; every number is in [benchmarks.json](benchmarks.json), and
[performance.md](performance.md) says what they mean.
"""


def write(title: str, text: str, data: Any, docs: Path = DOCS) -> None:
    """Put a section in place of the one with that title, or after the others; `data` under its title in the JSON."""
    page, numbers = docs / "benchmarks.md", docs / "benchmarks.json"
    found = sections(page.read_text("utf-8")) if page.exists() else {}
    found[title] = text.strip()
    parts = [HEAD, *(f"## {name}\n\n{body}\n" for name, body in found.items())]
    page.write_text("\n".join(parts), "utf-8")
    known = orjson.loads(numbers.read_bytes()) if numbers.exists() else {}
    numbers.write_bytes(orjson.dumps(known | {title: data}, option=orjson.OPT_INDENT_2) + b"\n")


def sections(text: str) -> dict[str, str]:
    """Title -> body of each `##` section, in order."""
    _, *parts = f"\n{text}".split("\n## ")
    return {title: body.strip() for title, _, body in (part.partition("\n") for part in parts)}


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    head, *body = ("| " + " | ".join(cells) + " |" for cells in (columns, *rows))
    return "\n".join((head, "|" + "---|" * len(columns), *body))
