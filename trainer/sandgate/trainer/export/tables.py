"""Trajectories <-> Arrow, column by column.

Token arrays go in and out as buffers: one memory copy to lay the rows of a batch end to end (none for a batch of one),
one to give each row its own array. No Python object per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import ARRAY_FIELDS, DERIVED, Trajectory
from sandgate.trainer.export.schema import JSON_COLUMNS, check_version, conform, schema
from sandgate.trainer.export.values import BINARY, dumps, loads

BATCH_TOKENS = 1 << 20
"""Response and prompt tokens after which a batch is closed: about 17 MB of arrays. So any size streams."""
BATCH_ROWS = 4096
"""Rows after which a batch is closed, however short they are."""
BATCH_BYTES = 32 << 20
"""Of BINARY beside its tokens, which a batch has no more of, unless one row alone has. Arrow's columns of bytes end at
2 GiB."""
MICROSECONDS = 1_000_000

_VALUE_TYPE = {"i": pa.int32(), "f": pa.float32(), "b": pa.int8(), "d": pa.float64()}


def to_batches(trajectories: Iterable[Trajectory]) -> Iterator[Any]:
    """RecordBatches of about BATCH_TOKENS tokens, and BATCH_BYTES of pictures, in order; consumes its input as it goes.

    Raises InvalidBody naming the field whose value Arrow cannot carry. `created_at` is kept to the microsecond.
    """
    rows: list[Trajectory] = []
    tokens = size = 0
    for trajectory in trajectories:
        own = sum(len(getattr(trajectory, name) or b"") for name in BINARY)
        if rows and size + own > BATCH_BYTES:
            yield pack(rows)
            rows, tokens, size = [], 0, 0
        rows.append(trajectory)
        tokens += len(trajectory.prompt_ids) + len(trajectory.response_ids)
        size += own
        if tokens >= BATCH_TOKENS or len(rows) >= BATCH_ROWS:
            yield pack(rows)
            rows, tokens, size = [], 0, 0
    if rows:
        yield pack(rows)


def to_table(trajectories: Iterable[Trajectory]) -> Any:
    """All of them as one pyarrow.Table, in memory. Raises InvalidBody."""
    return pa.Table.from_batches(list(to_batches(trajectories)), schema=schema())


def as_table(batch: Any) -> Any:
    """A pyarrow.Table of one RecordBatch, without a copy."""
    return pa.Table.from_batches([batch])


def from_table(table: Any) -> Iterator[Trajectory]:
    """Trajectories of a pyarrow.Table, in order. Raises NewerRecord, CorruptRecord (see `export.schema`)."""
    check_version(table.schema)
    for batch in table.to_batches():
        yield from unpack(batch)


def to_ipc(trajectories: Iterable[Trajectory]) -> bytes:
    """An Arrow IPC stream (`application/vnd.apache.arrow.stream`). Raises InvalidBody."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema()) as writer:
        for batch in to_batches(trajectories):
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_ipc(raw: bytes) -> Iterator[Trajectory]:
    """Inverse of `to_ipc`. Raises NewerRecord, CorruptRecord."""
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(raw))
        check_version(reader.schema)
        for batch in reader:
            batch.validate(full=True)  # bytes from elsewhere: offsets are not to be trusted
            yield from unpack(batch)
    except (pa.ArrowException, OSError) as error:
        raise CorruptRecord(f"not an Arrow stream: {error}") from error


def pack(rows: Sequence[Trajectory]) -> Any:
    """One RecordBatch. Raises InvalidBody."""
    columns = []
    for field in schema():
        values = [getattr(row, field.name) for row in rows]
        try:
            columns.append(_packer(field)(values))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidBody(f"{field.name} does not fit {field.type}: {error}", field=field.name) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema())


def _packer(field: Any) -> Callable[[list[Any]], Any]:
    name = field.name
    if name in ARRAY_FIELDS:
        return lambda values: _token_lists(name, values)
    if name in JSON_COLUMNS:
        return lambda values: pa.array([dumps(value, name) for value in values], pa.string())
    if name == "created_at":
        return lambda values: pa.array([round(v * MICROSECONDS) for v in values], pa.int64()).cast(field.type)
    return lambda values: pa.array(values, field.type)


def _token_lists(name: str, values: list[Any]) -> Any:
    code = ARRAY_FIELDS[name]
    for value in values:
        if (
            not isinstance(value, array) or value.typecode != code
        ):  # its bytes would be read as something else
            raise InvalidBody(f"{name} is not an array('{code}')", field=name)
    offsets = array("i", accumulate(map(len, values), initial=0))
    raw = values[0] if len(values) == 1 else b"".join(values)
    flat = pa.Array.from_buffers(_VALUE_TYPE[code], offsets[-1], [None, pa.py_buffer(raw)])
    return pa.ListArray.from_arrays(pa.array(memoryview(offsets), pa.int32()), flat)


def unpack(batch: Any) -> Iterator[Trajectory]:
    """Rows of a RecordBatch as trajectories. Raises NewerRecord, CorruptRecord."""
    batch = conform(batch)
    given = [field for field in batch.schema if field.name not in DERIVED]
    names = [field.name for field in given]
    for cells in zip(*(_cells(field, batch.column(field.name)) for field in given), strict=True):
        yield Trajectory(**dict(zip(names, cells, strict=True)))


def _cells(field: Any, column: Any) -> Iterator[Any]:
    name = field.name
    if name in ARRAY_FIELDS:
        return _token_arrays(name, column)
    if name == "turn_settings":
        return (_objects(loads(text, name), name) for text in column.to_pylist())
    if name in JSON_COLUMNS:
        return (loads(text, name) for text in column.to_pylist())
    if name == "created_at":
        return (value / MICROSECONDS for value in column.cast(pa.int64()).to_pylist())
    if pa.types.is_list(field.type):
        return (tuple(value) for value in column.to_pylist())
    return iter(column.to_pylist())


def _objects(value: Any, name: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(member, dict) for member in value):
        raise CorruptRecord(f"column {name} holds something else than a list of objects")
    return tuple(value)


def _token_arrays(name: str, column: Any) -> Iterator[array[Any]]:
    code, values, offsets = ARRAY_FIELDS[name], column.values, column.offsets.to_pylist()
    if values.slice(offsets[0], offsets[-1] - offsets[0]).null_count:
        raise CorruptRecord(f"column {name} has nulls inside its lists")
    size = array(code).itemsize
    data = values.buffers()[1]
    view = memoryview(data if data is not None else b"")[values.offset * size :]
    for start, end in pairwise(offsets):
        out = array(code)
        out.frombytes(view[start * size : end * size])
        yield out


def with_group(table: Any, *, name: str) -> Any:
    """With a further column that names the group of each row: its task, or its session where it has none."""
    uid = table["uid"]
    return table.append_column(name, pc.if_else(pc.equal(uid, ""), table["session_id"], uid))
