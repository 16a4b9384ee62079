"""Slices a JSON object: its values as the raw text in which they were written. (pure)"""

from __future__ import annotations

import json
from typing import Any


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_json)
"""Without NaN and Infinity, which no reader of an answer would take."""
_SPACE = " \t\n\r"


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _value(text: str, at: int) -> tuple[Any, int]:
    """(value, end). Raises ValueError."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def members(text: str, at: int = 0) -> tuple[dict[str, tuple[Any, str]], int]:
    """The object that starts at `at` (after white space): key -> (value, its raw text), and the offset behind it.

    Raises ValueError if there is no whole object. Of equal keys the last counts, as in `json.loads`.
    """
    at = _skip(text, at)
    if text[at : at + 1] != "{":
        raise ValueError("not an object")
    found: dict[str, tuple[Any, str]] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        key, at = _value(text, at)
        if not isinstance(key, str):
            raise ValueError("a key is not a string")
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon after a key")
        start = _skip(text, at + 1)
        value, at = _value(text, start)
        found[key] = (value, text[start:at])
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return found, at + 1
        if text[at : at + 1] != ",":
            raise ValueError("neither a comma nor the end after a value")
        at = _skip(text, at + 1)


def sayable(value: Any) -> bool:
    """Can it be written as JSON, and as Unicode? Not half a character, not a number beyond float64."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # UnicodeEncodeError is one
        return False
    return True


def ends(text: str, at: int) -> bool:
    """True if nothing but white space follows `at`."""
    return _skip(text, at) == len(text)


def skip_space(text: str, at: int) -> int:
    """The offset of the first character at or after `at` that is not white space."""
    return _skip(text, at)
