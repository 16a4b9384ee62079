"""Trajectories as JSON lines: for eyes, jq and scripts. Everything survives, to the bit.

Written without a Python object per token; read with them, but of one row at a time. Parquet is several times smaller
and faster.
"""

from __future__ import annotations

import base64
import binascii
import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import ARRAY_FIELDS, Trajectory, from_json
from sandgate.trainer.export.files import replacing
from sandgate.trainer.export.values import BINARY, dumps, loads

LINE_BYTES_MAX = 512 << 20
"""A longer line is not a trajectory; it is refused before it is read to its end."""


def to_line(trajectory: Trajectory) -> bytes:
    """One JSON object, no newline. Raises InvalidBody naming a field that JSON cannot carry (NaN, infinity)."""
    parts = (
        f'"{name}":'.encode() + _value(name, getattr(trajectory, name))
        for name in Trajectory.__dataclass_fields__
    )
    return b"{" + b",".join(parts) + b"}"


def from_line(line: bytes) -> Trajectory:
    """Inverse of `to_line`. Raises NewerRecord, CorruptRecord."""
    value = loads(line, "line")
    if not isinstance(value, dict):
        raise CorruptRecord("line is not a JSON object")
    for name in BINARY:  # base64 text in JSON lines
        if isinstance(value.get(name), str):
            try:
                value[name] = base64.b64decode(value[name], validate=True)
            except (binascii.Error, ValueError) as error:
                raise CorruptRecord(f"{name} is not base64: {error}") from error
    return from_json(value)


def write_jsonl(
    path: str | os.PathLike[str], trajectories: Iterable[Trajectory], *, atomic: bool = True
) -> int:
    """Stream to `path`, whole or not at all (see `write_parquet`); how many. Raises InvalidBody, OSError."""
    rows = 0
    with replacing(path, atomic=atomic) as target, target.open("wb") as out:
        for trajectory in trajectories:
            out.write(to_line(trajectory) + b"\n")
            rows += 1
    return rows


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Trajectories in order, one in memory at a time; blank lines are skipped.

    Raises OSError, NewerRecord, CorruptRecord (with the line's number).
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(LINE_BYTES_MAX), b""), 1):
            if not line.strip():
                continue
            try:
                yield from_line(line)
            except CorruptRecord as error:
                raise CorruptRecord(f"{path}:{number}: {error}") from error


def _value(name: str, value: Any) -> bytes:
    if name in ARRAY_FIELDS:
        return _tokens(name, value)
    if isinstance(value, bytes):
        return b'"' + base64.b64encode(value) + b'"'
    return dumps(value, name).encode()


def _tokens(name: str, value: Any) -> bytes:
    code = ARRAY_FIELDS[name]
    if not isinstance(value, array) or value.typecode != code:
        raise InvalidBody(f"{name} is not an array('{code}')", field=name)
    numbers: Any = np.frombuffer(value, dtype=code)
    if code == "f":
        if not np.isfinite(numbers).all():
            raise InvalidBody(f"{name} has a value that is not finite", field=name)
        # As doubles: the shortest text of a float32, read as a double and rounded again, is not always that float32.
        numbers = numbers.astype("d")
    return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
