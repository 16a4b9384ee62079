"""What a value must be to be kept: journalled, told as JSON, read by every component. (pure)

What a program left is looked at here once, before it crosses a door: JSON as Python reads it holds more than anybody
else can take.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

Json = Any

DEPTH_MAX: Final = 100
"""Levels of nesting; the gateway refuses more."""
BYTES_MAX: Final = 65_536
"""Of a `reward_info`, as JSON."""
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""What 64 bits hold, with a sign or without."""


def unstorable(value: Json) -> str:
    """Why `value` (as json.loads gives it) cannot be kept; nothing if it can. Does not recurse."""
    waiting = [(value, 1)]
    while waiting:
        item, level = waiting.pop()
        if level > DEPTH_MAX:
            return f"is nested deeper than {DEPTH_MAX} levels"
        if isinstance(item, dict):
            for name, each in item.items():
                waiting += ((name, level), (each, level + 1))
        elif isinstance(item, list):
            waiting += ((each, level + 1) for each in item)
        elif why := _scalar(item):
            return why
    size = len(encoded(value))
    return f"has {size} bytes, at most {BYTES_MAX}" if size > BYTES_MAX else ""


def _scalar(value: Json) -> str:
    if isinstance(value, str):
        return "holds half a character (a lone surrogate)" if well_formed(value) != value else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "holds a number that is not finite"
    if isinstance(value, int):
        return "" if INTEGER_MIN <= value <= INTEGER_MAX else "holds an integer of more than 64 bits"
    return "" if value is None else f"holds a {type(value).__name__}"


def encoded(value: Json) -> bytes:
    """As strict JSON. Raises ValueError (UnicodeEncodeError too) for what JSON cannot say."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def well_formed(text: str) -> str:
    """`text` with a question mark for each lone surrogate."""
    return text.encode("utf-8", "replace").decode()
