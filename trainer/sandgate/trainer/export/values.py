"""Encodes JSON as text inside other formats: strict, exact, with errors that name the field."""

from __future__ import annotations

import json
from typing import NoReturn

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Json

BINARY = ("multimodal", "routed_experts")
"""Fields of a trajectory that are bytes: pictures of a prompt, and which experts each token took. They may be a hundred
times as large as all the rest."""


def dumps(value: Json, field: str) -> str:
    """Compact JSON text, encodable as UTF-8. Raises InvalidBody: NaN and infinities are not JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which agents do produce: only an escape can carry it
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidBody(f"{field} is not JSON: {error}", field=field) from error
    return text


def loads(text: str | bytes, field: str) -> Json:
    """Inverse of `dumps`. Raises CorruptRecord. Integers of any size survive, which faster parsers turn into floats."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"{field} is not JSON: {error}") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
