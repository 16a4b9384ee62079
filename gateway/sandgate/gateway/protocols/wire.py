"""Reading a JSON body, and saying where it is wrong. Shared by all dialects. (pure)"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported

T = TypeVar("T")

DEPTH_MAX = 200
"""Levels of nesting in a schema. JSON schemas of real tools have 20; engines' grammars give up long before 200."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")


def read(decoder: msgspec.json.Decoder[T], raw: bytes | memoryview | msgspec.Raw, under: str = "") -> T:
    """The decoded value. Raises InvalidBody that names the field below `under`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), under) from None
    except RecursionError:
        raise InvalidBody("the body is nested too deeply", field=under or "body") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _malformed(bytes(raw), str(error), under) from None


def _misfit(message: str, under: str) -> InvalidBody:
    found = _AT.match(message)
    what, path = (found["what"], found["path"] or "") if found else (message, "")
    if missing := _MISSING.search(what):
        path = f"{path}.{missing[1]}"
    path = f"{under}{path}".lstrip(".")
    return InvalidBody(f"{path or 'body'}: {what}", field=path or "body")


def _malformed(raw: bytes, message: str, under: str) -> InvalidBody:
    """The strict reader gives a byte offset only; a laxer one may tell which value it is."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        field = None
    else:
        field = _unspeakable(value)
    field = f"{under}{field or ''}".lstrip(".") or "body"
    return InvalidBody(f"{field}: {message}", field=field)


def _unspeakable(value: Any) -> str | None:
    """Path of the first value that is no JSON (NaN, Infinity) or no Unicode text (half a surrogate pair)."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, value = waiting.pop()
        match value:
            case dict():
                if any(_half(name) for name in value):
                    return path
                waiting += [(f"{path}.{name}", item) for name, item in reversed(value.items())]
            case list():
                waiting += [(f"{path}[{at}]", item) for at, item in reversed(list(enumerate(value)))]
            case str() if _half(value):
                return path
            case float() if not math.isfinite(value):
                return path
    return None


def _half(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def bounded(value: float | None, low: float, high: float, field: str) -> None:
    """None, or a number in [low, high]; else InvalidBody."""
    if value is not None and not low <= value <= high:
        raise InvalidBody(f"{field} is {brief(value)}; it must be between {low:g} and {high:g}", field=field)


def limited(seen: int, most: int, what: str, field: str) -> None:
    """At most `most`; else InvalidBody."""
    if seen > most:
        raise InvalidBody(f"{field} holds {seen} {what}; at most {most} are taken", field=field)


def shallow(value: Any, field: str) -> None:
    """Not nested deeper than DEPTH_MAX, so that whatever walks it later may recurse; else InvalidBody."""
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return
        level = below
    raise InvalidBody(f"{field} is nested deeper than {DEPTH_MAX} levels", field=field)


def brief(value: object) -> str:
    """A client's value, short enough for a message."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a very large number"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


EMPTY = frozenset([b"", b"null", b"false", b"{}", b"[]", b"0", b'""', b"{ }", b"[ ]"])
"""Raw values by which clients say that they do not use a field."""


def unused(raw: msgspec.Raw, field: str, instead: str = "") -> None:
    """Raises Unsupported if the field asks for anything."""
    if bytes(raw) not in EMPTY:
        raise Unsupported(f"{field} is not supported{instead and f'; {instead}'}", field=field)
