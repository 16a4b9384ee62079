"""Trajectories as an Arrow IPC stream: the same rows as the control API's JSON, without a Python object per token.

Needs the extra `gateway-arrow`; imported where it is used. The schema follows from the record's own annotations. It is
the schema that trainers read (`sandgate.trainer.export.schema`; a test compares the two).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import ARRAY_FIELDS, SCHEMA_VERSION, Json, Trajectory

BATCH_TOKENS = 1 << 20
"""Ids after which a batch is closed, about 17 MB of arrays: a reader works on one while the next arrives."""
BATCH_ROWS = 4096
"""Rows after which a batch is closed, however short they are."""
BATCH_BYTES = 32 << 20
"""Of BINARY beside its tokens, which a batch has no more of, unless one row alone has. Arrow's columns of bytes end at
2 GiB."""
MICROSECONDS = 1_000_000

VALUES = {"i": pa.int32(), "f": pa.float32(), "b": pa.int8()}
TYPES = {
    "int": pa.int32(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "float": pa.timestamp("us", tz="UTC"),  # created_at
    "float | None": pa.float64(),
    "str | None": pa.string(),
    "bytes | None": pa.binary(),
    "tuple[str, ...]": pa.list_(pa.string()),
    "tuple[int, ...]": pa.list_(pa.int32()),
    "tuple[float, ...]": pa.list_(pa.float64()),
    "dict[str, Json]": pa.string(),
    "tuple[dict[str, Json], ...]": pa.string(),
}
"""Annotation of a field -> type of its column; token arrays are lists of VALUES. JSON is text, marked in the column's
metadata."""
JSON = {"dict[str, Json]": "{}", "tuple[dict[str, Json], ...]": "[]"}
"""Annotation -> the text of an empty one."""


def _field(name: str) -> Any:
    annotation = str(Trajectory.__dataclass_fields__[name].type)
    kind = pa.list_(VALUES[ARRAY_FIELDS[name]]) if name in ARRAY_FIELDS else TYPES[annotation]
    metadata = {b"sandgate.encoding": b"json"} if annotation in JSON else None
    return pa.field(name, kind, nullable=annotation.endswith("| None"), metadata=metadata)


SCHEMA = pa.schema(
    [_field(name) for name in Trajectory.__dataclass_fields__],
    metadata={b"sandgate.schema_version": str(SCHEMA_VERSION).encode()},
)

BINARY = [field.name for field in SCHEMA if pa.types.is_binary(field.type)]


def to_ipc(rows: Iterable[Trajectory]) -> bytes:
    """The rows as an Arrow IPC stream (`application/vnd.apache.arrow.stream`); they are read batch by batch. Raises
    InvalidBody, which names the field whose value Arrow cannot carry."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in record_batches(rows):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def record_batches(rows: Iterable[Trajectory]) -> Iterator[Any]:
    """The rows as RecordBatches of SCHEMA, of bounded size. Raises InvalidBody."""
    for batch in _batches(rows):
        yield pa.RecordBatch.from_arrays([_column(f, batch) for f in SCHEMA], schema=SCHEMA)


def _batches(rows: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    batch: list[Trajectory] = []
    tokens = size = 0
    for row in rows:
        own = sum(len(getattr(row, name) or b"") for name in BINARY)
        if batch and size + own > BATCH_BYTES:
            yield batch
            batch, tokens, size = [], 0, 0
        batch.append(row)
        tokens += len(row.prompt_ids) + len(row.response_ids)
        size += own
        if tokens >= BATCH_TOKENS or len(batch) >= BATCH_ROWS:
            yield batch
            batch, tokens, size = [], 0, 0
    if batch:
        yield batch


def _column(field: Any, batch: list[Trajectory]) -> Any:
    name = field.name
    values = [getattr(row, name) for row in batch]
    if name in ARRAY_FIELDS:
        return _tokens(values, VALUES[ARRAY_FIELDS[name]])
    try:
        return pa.array(_plain(field, values), field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidBody(f"{name} does not fit {field.type}: {error}", field=name) from error


def _plain(field: Any, values: list[Any]) -> list[Any]:
    if field.metadata:
        empty = JSON[str(Trajectory.__dataclass_fields__[field.name].type)]
        return [_text(value) if value else empty for value in values]
    if field.name == "created_at":
        return [round(seconds * MICROSECONDS) for seconds in values]
    return values


def _text(value: Json) -> str:
    """The value as compact JSON; half a surrogate pair, which agents do produce, becomes an escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def _tokens(values: list[array[Any]], kind: Any) -> Any:
    """A column of token arrays, made with one copy of the tokens."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    flat = pa.Array.from_buffers(kind, offsets[-1], [None, pa.py_buffer(b"".join(values))])
    return pa.ListArray.from_arrays(pa.array(memoryview(offsets), pa.int32()), flat)
