"""Files and functions stay small enough to be read at one go."""

from __future__ import annotations

import ast
from statistics import median

from tests.tidy.long_files import lines
from tests.tidy.source import ROOMS, ROOT, parse, python_below, tracked

FILE_LINES_MEDIAN = 150
"""Of the rooms' own modules."""
FUNCTION_LINES_MAX = 60
FILE_BYTES_MAX = 5_000_000


def test_most_modules_fit_on_a_screen_or_two() -> None:
    assert median(lines(path) for path in python_below(*ROOMS)) < FILE_LINES_MEDIAN


def test_no_function_is_too_long() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {size} lines"
        for path in tracked()
        if path.suffix == ".py"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_no_file_is_too_large() -> None:
    large = [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > FILE_BYTES_MAX]
    assert not large
