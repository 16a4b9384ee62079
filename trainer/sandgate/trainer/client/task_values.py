"""What a trainer's data set holds, as a task can carry it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.contract.kinds import Json


def prompt_of(messages: Json) -> Json:
    """A lone user message becomes its text, which is what most agents take; others stay messages."""
    match messages:
        case [{"role": "user", "content": str(text), **rest}] if not rest:
            return text
    return messages


def json_of(value: Any, uid: str, column: str) -> Json:
    """With numpy's numbers and arrays as Python's own. Raises InvalidBody for what is no JSON."""
    if isinstance(value, float) and not isfinite(value):  # pandas says so of a value that is missing
        raise InvalidBody(
            f"prompt {uid}: column {column} holds {value}, which no task can carry", field=column
        )
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_of(one, uid, column) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_of(one, uid, column) for one in value]
    if hasattr(value, "tolist") and (made := value.tolist()) is not value:
        return json_of(made, uid, column)
    raise InvalidBody(
        f"prompt {uid}: column {column} holds a {type(value).__name__}, which no task can carry", field=column
    )
