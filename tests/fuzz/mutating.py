"""Good JSON with other values in it: most of it is still understood in most of its parts."""

from __future__ import annotations

import random
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**63) - 1, 10**40, 10**400, 1.5, -0.0, 1e300, float("nan"), float("inf"),
    float("-inf"), "", "auto", "user", "text", "\u2028", "\ud800", "\0", "x" * 300, "x" * 70_000, "1e999", [], {},
    [None], [[]], [0] * 3000, {"type": "text"}, {"name": "f"}, {"\ud800": 1}, {"x" * 5000: [0, 0, float("nan")]},
]  # fmt: skip
EDITS_MAX = 3
DEPTH = 150


def mutated(value: Any, chance: random.Random, edits: int = EDITS_MAX) -> Any:
    """A copy with one or some changes."""
    box = [copied(value)]
    for _ in range(chance.choice((1, 1, edits))):
        edit(box, chance)
    return box[0]


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def edit(value: Any, chance: random.Random, values: list[Any] = VALUES) -> None:
    """Go down a random way; replace, drop, repeat, move or bury what is there."""
    while True:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        if not keys:
            return
        key = chance.choice(keys)
        below = value[key]
        if isinstance(below, dict | list) and below and chance.random() < 0.75:
            value = below
            continue
        match chance.randrange(5):
            case 0 if isinstance(value, dict):
                del value[key]
            case 1 if isinstance(value, dict):
                value[chance.choice(keys)] = below
            case 1:
                value.append(copied(below))
            case 2:
                value[key] = buried(below, chance)
            case _:
                value[key] = copied(chance.choice(values))
        return


def buried(value: Any, chance: random.Random) -> Any:
    """Below many levels."""
    for _ in range(chance.randrange(1, DEPTH)):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value
