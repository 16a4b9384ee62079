"""Trajectories in Parquet files: written whole or not at all, read and merged as streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from sandgate.contract.errors import Conflict, CorruptRecord
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.files import naming, replacing
from sandgate.trainer.export.schema import TYPES, check_version, conform, schema
from sandgate.trainer.export.tables import to_batches, unpack
from sandgate.trainer.export.values import BINARY

ROW_GROUP_BYTES = 16 << 20
"""Of Arrow memory. What a reader must hold at once; large enough that compression and column chunks pay."""
READ_ROWS, READ_BYTES = 256, 32 << 20
"""Rows decoded at once when reading, and about how many bytes of them."""

PLAIN = ("prompt_ids", "response_ids", "response_logprobs")
"""Columns whose values hardly repeat: a dictionary would be built and thrown away."""
ENCODINGS = {"response_logprobs.list.element": "BYTE_STREAM_SPLIT"}
"""Floats of one magnitude share their exponent bytes: grouped by byte they compress."""

Paths = Iterable[str | os.PathLike[str]]
Groups = Set[tuple[str, str]]
"""(job, uid) of each."""
NO_GROUPS: Groups = frozenset()


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did: rows written, and rows left out because they were there already."""

    rows: int
    duplicates: int


def write_parquet(
    path: str | os.PathLike[str], trajectories: Iterable[Trajectory], *, atomic: bool = True
) -> int:
    """Stream `trajectories` to `path`; how many. With `atomic` the file appears when it is whole and durable, and a
    file of that name is replaced in one step; after any error what was there before is still there.

    Raises InvalidBody (a value that Arrow cannot carry), OSError.
    """
    return _write(path, to_batches(trajectories), atomic=atomic)


def read_parquet(
    path: str | os.PathLike[str], *, binary: bool = True, without: Groups = NO_GROUPS
) -> Iterator[Trajectory]:
    """Trajectories in the file's order, a few hundred, or READ_BYTES of them, in memory at once. Without `binary` their
    pictures and routing tables are not read, and are None. Rows of the groups `without` are left out.

    Raises OSError, NewerRecord, CorruptRecord.
    """
    for batch in _batches(path, binary=binary, without=without):
        yield from unpack(batch)


def count_parquet(path: str | os.PathLike[str]) -> int:
    """How many trajectories, from the footer alone. Raises OSError, NewerRecord, CorruptRecord."""
    with opened(path) as file:
        return int(file.metadata.num_rows)


def samples_in_parquet(path: str | os.PathLike[str]) -> set[tuple[str, int]]:
    """(uid, sample index) of every row, without reading the others' columns. Raises as `count_parquet`."""
    return _pairs(path, "uid", "sample_index")


def groups_in_parquet(path: str | os.PathLike[str]) -> set[tuple[str, str]]:
    """(job, uid) of every row, without reading the others' columns. Raises as `count_parquet`."""
    return _pairs(path, "job", "uid")


def _pairs(path: str | os.PathLike[str], *columns: str) -> set[tuple[Any, Any]]:
    with opened(path) as file:
        for name in columns:
            if name not in file.schema_arrow.names:
                raise CorruptRecord(f"{path}: column {name} is missing")
        batches = file.iter_batches(columns=list(columns))
        return {
            pair
            for one in batches
            for pair in zip(*(one.column(name).to_pylist() for name in columns), strict=True)
        }


def merge_parquet(parts: Paths, out: str | os.PathLike[str], *, atomic: bool = True) -> Merged:
    """All rows of `parts` in one file, each (session_id, trajectory_id) once: its first. `out` may be one of `parts`.

    Streams; memory grows by one key per row. Hand-off is at least once, so the same row may be in two parts; two rows
    of one key with different tokens or attempts are not the same row: Conflict, and nothing is written.
    """
    seen: dict[tuple[str, int], int] = {}
    duplicates = 0

    def fresh() -> Iterator[Any]:
        nonlocal duplicates
        for part in parts:
            for batch in read_batches(part):
                keep = list(_unseen(batch, seen, part))
                duplicates += batch.num_rows - len(keep)
                yield batch if len(keep) == batch.num_rows else batch.take(pa.array(keep, pa.int64()))

    return Merged(_write(out, fresh(), atomic=atomic), duplicates)


def _unseen(batch: Any, seen: dict[tuple[str, int], int], part: str | os.PathLike[str]) -> Iterator[int]:
    """Rows whose key is new; they are added to `seen` with a checksum of what makes them that row."""
    names = ("session_id", "trajectory_id", "attempt", "prompt_ids", "response_ids")
    session, number, attempt, prompts, responses = (batch.column(name) for name in names)
    for row in range(batch.num_rows):
        key = session[row].as_py(), number[row].as_py()
        check = crc32(attempt[row].as_py().to_bytes(4, "little", signed=True))
        for ids in (prompts[row].values, responses[row].values):
            check = crc32(_bytes(ids), check)
        if key not in seen:
            seen[key] = check
            yield row
        elif seen[key] != check:
            raise Conflict(
                f"{part}: session {key[0]} trajectory {key[1]} differs from an earlier row of that name"
            )


def _bytes(ids: Any) -> memoryview:
    """The int32 of a (sliced) array, as they lie in memory."""
    data = ids.buffers()[1]
    return memoryview(data if data is not None else b"")[ids.offset * 4 : (ids.offset + len(ids)) * 4]


def _write(path: str | os.PathLike[str], batches: Iterable[Any], *, atomic: bool) -> int:
    dictionary = [_leaf(name) for name in TYPES if name not in PLAIN]
    with replacing(path, atomic=atomic) as target, writer(target, schema(), dictionary, ENCODINGS) as out:
        return sum(write_groups(out, batches, schema()))


def writer(
    target: os.PathLike[str], columns: Any, dictionary: Sequence[str], encodings: Mapping[str, str]
) -> Any:
    """A pyarrow ParquetWriter; `columns`: the schema."""
    return pq.ParquetWriter(
        os.path.abspath(target),
        columns,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(dictionary),
        column_encoding=dict(encodings),
        write_page_checksum=True,
    )


def write_groups(out: Any, batches: Iterable[Any], columns: Any) -> Iterator[int]:
    """Write RecordBatches as row groups of about ROW_GROUP_BYTES, so that many small parts do not make many small row
    groups; the rows of each."""
    held: list[Any] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield _group(out, held, columns)
            held, size = [], 0
    if held:
        yield _group(out, held, columns)


def _group(out: Any, held: Sequence[Any], columns: Any) -> int:
    table = pa.Table.from_batches(held, schema=columns)
    out.write_table(table, row_group_size=max(1, table.num_rows))
    return int(table.num_rows)


def _leaf(name: str) -> str:
    """How Parquet names the column that holds the values."""
    return f"{name}.list.element" if pa.types.is_list(schema().field(name).type) else name


def row_groups(path: str | os.PathLike[str]) -> list[tuple[int, int]]:
    """(rows, bytes in memory) of each row group, from the footer alone. Raises as `count_parquet`."""
    with opened(path) as file:
        found = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
        return [(int(one.num_rows), int(one.total_byte_size)) for one in found]


def read_batches(
    path: str | os.PathLike[str], numbers: Sequence[int] | None = None, *, without: Groups = NO_GROUPS
) -> Iterator[Any]:
    """RecordBatches of our schema, whatever the file is allowed to differ in: all, or of these row groups; `without`:
    see `read_parquet`.

    Raises OSError, NewerRecord, CorruptRecord."""
    return map(conform, _batches(path, numbers, without=without))


def _batches(
    path: str | os.PathLike[str],
    numbers: Sequence[int] | None = None,
    *,
    binary: bool = True,
    without: Groups = NO_GROUPS,
) -> Iterator[Any]:
    with opened(path) as file:
        wanted = range(file.metadata.num_row_groups) if numbers is None else numbers
        told = sum(file.metadata.row_group(at).num_rows for at in wanted)
        light = [name for name in file.schema_arrow.names if name in TYPES and name not in BINARY]
        rows = 0
        for at in wanted:
            group = file.metadata.row_group(at)
            fit = READ_BYTES * group.num_rows // max(1, group.total_byte_size)
            for batch in file.iter_batches(
                batch_size=max(1, min(READ_ROWS, fit)), row_groups=[at], columns=None if binary else light
            ):
                rows += batch.num_rows
                yield _but(batch, without) if without else batch
        if rows != told:  # a damaged page header hides its page
            raise CorruptRecord(f"{path}: {rows} rows can be read of {told}")


def _but(batch: Any, without: Groups) -> Any:
    groups = zip(batch.column("job").to_pylist(), batch.column("uid").to_pylist(), strict=True)
    return batch.filter(pa.array([one not in without for one in groups], pa.bool_()))


@contextmanager
def opened(path: str | os.PathLike[str], check: Callable[[Any], None] = check_version) -> Iterator[Any]:
    """A pyarrow ParquetFile whose schema passed `check`. Raises OSError for what the system says (FileNotFoundError, a
    disk that cannot be read), NewerRecord, and CorruptRecord also for what Arrow raises inside the block."""
    # Absolute: Arrow reads `~` as a home.
    whole = os.path.abspath(path)
    try:
        with naming(path), pq.ParquetFile(whole, page_checksum_verification=True, pre_buffer=False) as file:
            check(file.schema_arrow)
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptRecord(f"{path} is not a Parquet file of trajectories: {error}") from error
