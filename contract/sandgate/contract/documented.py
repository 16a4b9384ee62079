"""Reads the contract's own docstrings, for `kubectl explain` and the reference pages. (pure)"""

from __future__ import annotations

import ast
import inspect
from enum import StrEnum
from functools import cache


def summary(cls: type) -> str:
    """First paragraph of the docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


@cache
def member_docs(enum: type[StrEnum]) -> dict[str, str]:
    """Member name -> the string literal that follows it in the source, on one line; members without one are not there.
    A literal after several members is the last one's."""
    body = ast.parse(inspect.getsource(enum)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for member, after in zip(body.body, body.body[1:], strict=False):
        match member, after:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


def listed(enum: type[StrEnum]) -> str:
    """One line per member: `* value: meaning`."""
    docs = member_docs(enum)
    return "\n".join(
        f"* {one.value}: {docs[one.name]}" if one.name in docs else f"* {one.value}" for one in enum
    )
