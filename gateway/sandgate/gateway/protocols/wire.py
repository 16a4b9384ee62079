"""Reads JSON bodies with limits on depth and size, and names the field that is wrong; for all dialects. (pure)"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported

T = TypeVar("T")

DEPTH_MAX = 200
"""Levels of nesting in a schema. JSON schemas of real tools have 20; engines' grammars give up long before 200."""

VALUES_MAX = 1_000_000
"""Commas and opening brackets in a body: each may be an object of 64 bytes and more once it is read, for the two or
three that it takes here. Four MB of code and JSON, a window of a million tokens, have about 600,000."""
NAMED_BYTES_MAX = 256 * 1024
"""Of a body that is read once more to name the place that is no JSON: the laxer reader makes 30 bytes of objects of
each byte. The strict one's message has the place of any, as a byte offset."""
NAME_CHARS_MAX, PATH_CHARS_MAX = 80, 200
"""Of a client's names in the path of a field: one of them, and all."""
ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
"""Decodes any JSON value."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")


def read(decoder: msgspec.json.Decoder[T], raw: bytes | memoryview | msgspec.Raw, under: str = "") -> T:
    """The decoded value. Raises InvalidBody that names the field below `under`."""
    if isinstance(raw, bytes) and len(raw) > VALUES_MAX:
        limited(sum(map(raw.count, (b",", b"[", b"{"))), VALUES_MAX, "values", under or "body")
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _misfit(bytes(raw), str(error), under) from None
    except RecursionError:
        raise InvalidBody("the body is nested too deeply", field=under or "body") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _malformed(bytes(raw), str(error), under) from None


def encoded_well(body: bytes) -> None:
    """Raises InvalidBody for bytes that are no UTF-8: readers skip what they do not read, and it may be told again."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InvalidBody(f"body: {error}", field="body") from None


def _misfit(raw: bytes, message: str, under: str) -> InvalidBody:
    match = _AT.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    if missing := _MISSING.search(what):
        path = f"{path}.{missing[1]}"
    if "[...]" in path:  # below a name that no type has: a number beyond float64
        path = _unspeakable_in(raw) or path
    path = f"{under}{path}".lstrip(".")
    return InvalidBody(f"{path or 'body'}: {what}", field=path or "body")


def _malformed(raw: bytes, message: str, under: str) -> InvalidBody:
    """The strict reader gives a byte offset only; a laxer one may tell which value it is."""
    place = _unspeakable_in(raw)
    if place is not None and "truncated" in message:
        message = "holds half of a surrogate pair, which is no text"
    field = f"{under}{place or ''}".lstrip(".") or "body"
    return InvalidBody(f"{field}: {message}", field=field)


def _unspeakable_in(raw: bytes) -> str | None:
    if len(raw) > NAMED_BYTES_MAX:
        return None
    try:
        return _unspeakable(json.loads(raw))
    except (ValueError, RecursionError):
        return None


def _unspeakable(value: Any) -> str | None:
    """Path of the first value that is no JSON (NaN, Infinity) or no Unicode text (half a surrogate pair).

    Only the way down to where it stands is kept: a path for each value would cost the product of a body's names and
    its values.
    """
    way: list[str | int] = []
    below = [_items(value)]
    if _is_unspeakable(value):
        return _path(way)
    while below:
        for name, item in below[-1]:
            if _is_unspeakable(item):
                return _path([*way, name])
            if isinstance(item, dict | list):
                way.append(name)
                below.append(_items(item))
                break
        else:
            below.pop()
            if way:
                way.pop()
    return None


def _items(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    return iter(enumerate(value if isinstance(value, list) else ()))


def _is_unspeakable(value: Any) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case str():
            return _half(value)
        case dict():
            return any(map(_half, value))
    return False


def _path(way: Sequence[str | int]) -> str:
    """`.a[1].b`, with long names cut, and a long way as well."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_cut(step, NAME_CHARS_MAX)}" for step in way)
    return _cut(text, PATH_CHARS_MAX)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _half(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


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


def sendable(value: Any, field: str) -> None:
    """No integer beyond 64 bits, which few readers of JSON take; else InvalidBody. `value` is `shallow`."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise InvalidBody(f"{field} holds an integer beyond 64 bits", field=field)
        if isinstance(item, dict | list):
            waiting += item.values() if isinstance(item, dict) else item


def brief(value: object) -> str:
    """A client's value, short enough for a message."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a very large number"
    if isinstance(value, str) and len(value) > NAME_CHARS_MAX:
        value = value[:NAME_CHARS_MAX]  # its repr may be four times as long
    return _cut(repr(value), NAME_CHARS_MAX)


EMPTY = frozenset([b"", b"null", b"false", b"{}", b"[]", b"0", b'""', b"{ }", b"[ ]"])
"""Raw values by which clients say that they do not use a field."""


def unused(raw: msgspec.Raw, field: str, instead: str = "") -> None:
    """Raises Unsupported if the field asks for anything."""
    if bytes(raw) not in EMPTY:
        raise Unsupported(f"{field} is not supported{instead and f'; {instead}'}", field=field)
