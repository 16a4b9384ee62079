"""docs/reference/reasons.md, from the errors, fork reasons and failure reasons of the contract: they are API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from sandgate.contract import errors
from sandgate.contract.documented import member_docs, summary
from sandgate.contract.failure_reasons import CAUSES, FAILURE_CLASS, Cause, FailureClass, FailureReason
from sandgate.contract.fork_reason import ForkReason

PATH = "docs/reference/reasons.md"
INTRO = """\
<!-- Generated from errors.py, fork_reason.py and failure_reasons.py in contract/ by `make fix`. Do not edit. -->
# Reason codes

A reason is API: it is the value of `x-sandgate-reason`, of metric labels, of conditions and of trajectory records.
The text beside an error is for people and may change.

Why a whole job stands or failed is a reason of its conditions: [rolloutjob.md](rolloutjob.md#jobreason). What to do
with one that failed: [cluster.md](../cluster.md#a-job-that-failed).

`NetworkPolicyNotEnforced`, `TaskNotDelivered`, `BadSettings` and `GatewayUnreachable` are no reasons. They are the
first word of the text beside one: what the sandbox's init container met with. The reason is `StartFailed`;
of `GatewayUnreachable` it is `GatewayLost`.
"""


def generate() -> dict[str, str]:
    parts = [INTRO, error_table()]
    parts += [enum_table(enum) for enum in (ForkReason, FailureClass, FailureReason, Cause)]
    return {PATH: "\n".join(parts)}


def error_table() -> str:
    classes = tree(errors.SandgateError)
    rows = [(str(cls.status), f"`{cls.reason}`", f"`{cls.__name__}`", summary(cls)) for cls in classes]
    columns = ("status", "reason", "exception", "meaning")
    return section("Errors", "What a request can be answered with.", columns, rows)


def tree(cls: type[errors.SandgateError]) -> Iterator[type[errors.SandgateError]]:
    """The class and all below it, in the order they are written."""
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def enum_table(enum: type[StrEnum]) -> str:
    docs = member_docs(enum)
    classes = {str(reason): kind for reason, kind in FAILURE_CLASS.items()}
    causes = {str(reason): who for reason, who in CAUSES.items()}
    columns: tuple[str, ...] = ("value", "meaning")
    rows: list[tuple[str, ...]] = [(f"`{member}`", docs.get(member.name, "")) for member in enum]
    if all(member in classes for member in enum):
        columns = ("value", "class", "who can cause it", "meaning")
        rows = [
            (value, f"`{classes[member]}`", ", ".join(f"`{one}`" for one in causes[member]), doc)
            for (value, doc), member in zip(rows, enum, strict=True)
        ]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return section(enum.__name__, summary(enum), columns, rows)


def section(title: str, intro: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"## {title}\n\n{intro}\n\n{table}\n"
