"""Names the Python files of more than 500 lines: `python -m tests.tidy.long_files`, at the end of `make check`.

A report, not a rule: a rule packs modules to 498 lines, where the question is whether two would be clearer.
"""

from __future__ import annotations

from pathlib import Path

from tests.tidy.source import ROOT, tracked

FILE_LINES = 500


def lines(path: Path) -> int:
    return path.read_text("utf-8").count("\n")


if __name__ == "__main__":
    for path in tracked():
        if path.suffix == ".py" and (size := lines(path)) > FILE_LINES:
            print(f"note: {path.relative_to(ROOT)} has {size} lines; would two modules be clearer?")
