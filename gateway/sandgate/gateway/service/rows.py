"""Rows of several sessions for a trainer, as JSON or Arrow; a session with invalid rows is left out alone. (pure)

The endpoints refuse values that JSON or Arrow cannot carry. A journal may have them all the same, from an older gateway
or because it is damaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import orjson

from sandgate.contract.errors import CorruptRecord, InvalidBody, JournalUnavailable, SandgateError
from sandgate.contract.trajectory import Json, Trajectory, to_json
from sandgate.gateway.service.session import Session

T = TypeVar("T")

WHY_CHARS_MAX = 300
"""Characters of the reason why a session is left out."""
INT32 = 2**31


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """Rows in some form, and the sessions that are missing in them."""

    rows: T
    failed: dict[str, str] = field(default_factory=dict)
    """Session -> why none of its rows is included."""
    counts: dict[str, int] = field(default_factory=dict)
    """Session -> how many rows it has here."""


def shaped(
    sessions: Iterable[Session],
    rows_of: Callable[[Session], Iterable[Trajectory]],
    shape: Callable[[Iterable[Trajectory]], T],
) -> Rows[T]:
    """The rows of all sessions whose rows are valid, in order. `shape` gets them one by one, so that it need not keep
    them all. Raises JournalUnavailable: that is no session's fault."""
    failed: dict[str, str] = {}
    counts: dict[str, int] = {}

    def good() -> Iterator[Trajectory]:
        for session in sessions:
            try:
                mine = list(rows_of(session))
                for row in mine:
                    refuse_unsayable(row)
            except JournalUnavailable:
                raise
            except (SandgateError, ValueError, TypeError, OverflowError, RecursionError) as error:
                failed[session.session_id] = f"{type(error).__name__}: {error}"[:WHY_CHARS_MAX]
            else:
                counts[session.session_id] = len(mine)
                yield from mine

    return Rows(shape(good()), failed, counts)


def refuse_unsayable(row: Trajectory) -> None:
    """Raises InvalidBody or CorruptRecord, which names the field, unless both JSON and Arrow can carry the row."""
    for name in row.__dataclass_fields__:
        value = getattr(row, name)
        match value:
            case bool() | None:
                pass
            case int() if not -INT32 <= value < INT32:
                raise CorruptRecord(f"{name} is beyond 32 bits")
            case float() if not math.isfinite(value):
                raise InvalidBody(f"{name} is no finite number", field=name)
            case tuple() if any(isinstance(number, float) and not math.isfinite(number) for number in value):
                raise InvalidBody(f"{name} holds no finite number", field=name)
            case dict():
                _refuse_unspeakable(value, name)


def _refuse_unspeakable(value: Json, name: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidBody(f"{name} has no place in a row: {error}", field=name) from None


def as_json(rows: Iterable[Trajectory]) -> bytes:
    """A JSON array of rows that `refuse_unsayable` accepted."""
    return b"[" + b",".join(map(_row_json, rows)) + b"]"


def _row_json(row: Trajectory) -> bytes:
    row_dict = to_json(row)
    try:
        return orjson.dumps(row_dict)
    except TypeError:  # deeper than its 254 levels
        return json.dumps(row_dict, allow_nan=False, separators=(",", ":")).encode()
