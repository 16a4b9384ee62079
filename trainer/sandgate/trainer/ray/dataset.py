"""Trajectories as a `ray.data.Dataset`: the columns of docs/reference/records.md, from files and from leases.

Ray's own operations work on it; a batch in Arrow's form (`batch_format="pyarrow"`) is one that
`sandgate.trainer.export.arrow.from_table` makes trajectories of. Workers must be able to import `sandgate.trainer`.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.groups import Group
from sandgate.trainer.export.arrow import from_table, schema, to_batches, to_table
from sandgate.trainer.export.parquet import read_batches, row_groups
from sandgate.trainer.export.tables import as_table, with_group
from sandgate.trainer.runs import folder

GROUP = ("job", "sandgate_group")
"""Columns that name a group, while they are made; the second is the task's, or the session's where it has none."""
File = TypeVar("File")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def read_trajectories(paths: Paths, **options: Any) -> Any:
    """A Dataset of Parquet files of trajectories, or of DIRs of `sandgate run`. Every worker must see the paths.

    Lazy, a row group at a time, and by our compatibility rule: files of other versions have the same columns. Footers
    are read now. `options`: of `ray.data.read_datasource` (override_num_blocks, concurrency, ...). Raises NotFound,
    NewerRecord, CorruptRecord, InvalidBody for no path at all.
    """
    import ray.data  # type: ignore[import-not-found]

    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    # absolute: workers have a working directory of their own
    files = [
        part._replace(path=part.path.absolute())
        for path in listed
        for part in folder.trajectory_files(Path(path))
    ]
    if not files:
        raise InvalidBody("there is no file to read", field="paths")
    return ray.data.read_datasource(_source([(file, row_groups(file.path)) for file in files]), **options)


def _source(files: Sequence[tuple[folder.Part, Sequence[tuple[int, int]]]]) -> Any:
    """`files`: with (rows, bytes) of each row group."""
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata  # type: ignore[import-not-found]

    class TrajectoryFiles(Datasource):  # type: ignore[misc]
        """Ray's interface of a source."""

        def estimate_inmemory_data_size(self) -> int:
            return sum(size for _, groups in files for _, size in groups)

        def get_read_tasks(
            self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
        ) -> list[Any]:
            return [
                ReadTask(
                    functools.partial(_read, parts),
                    BlockMetadata(
                        num_rows=_told(rows, parts), size_bytes=size, input_files=None, exec_stats=None
                    ),
                    schema=schema(),
                    per_task_row_limit=per_task_row_limit,
                )
                for parts, rows, size in shares(files, parallelism)
            ]

        def get_name(self) -> str:
            return "Trajectories"

    return TrajectoryFiles()


def _told(rows: int, parts: Sequence[tuple[folder.Part, Sequence[int]]]) -> int | None:
    """None: nobody knows until they are read, as rows are left out."""
    return None if any(part.without for part, _ in parts) else rows


def shares(
    files: Sequence[tuple[File, Sequence[tuple[int, int]]]], tasks: int
) -> list[tuple[list[tuple[File, tuple[int, ...]]], int, int]]:
    """Parts, rows and bytes of at most `tasks` tasks: neighbouring row groups, about as many rows each; every row group
    once. One task without rows if there is none at all."""
    units = [(file, at, *one) for file, groups in files for at, one in enumerate(groups)]
    total = sum(rows for _, _, rows, _ in units)
    found: list[list[tuple[File, int, int, int]]] = [[] for _ in range(max(1, min(tasks, len(units))))]
    before = 0
    for unit in units:
        found[min(len(found) - 1, before * len(found) // max(1, total))].append(unit)
        before += unit[2]
    return [
        (
            [
                (file, tuple(at for name, at, _, _ in share if name == file))
                for file in dict.fromkeys(name for name, *_ in share)
            ],
            sum(rows for _, _, rows, _ in share),
            sum(size for _, _, _, size in share),
        )
        for share in found
        if share or not units
    ]


def _read(parts: Sequence[tuple[folder.Part, Sequence[int]]]) -> Iterator[Any]:
    """Blocks."""
    found = False
    for file, numbers in parts:
        for batch in read_batches(file.path, numbers, without=file.without):
            found = True
            yield as_table(batch)
    if not found:
        yield to_table([])  # else nobody would know the columns


def from_trajectories(trajectories: Iterable[Trajectory]) -> Any:
    """A Dataset of them, in Ray's object store, a block for every few MB. Raises InvalidBody."""
    import ray.data

    blocks = [as_table(batch) for batch in to_batches(trajectories)]
    return ray.data.from_arrow(blocks or [to_table([])])


def map_groups(
    dataset: Any, fn: Callable[[list[Trajectory]], Any], *, num_partitions: int | None = None, **options: Any
) -> Any:
    """A Dataset of what `fn` makes of each whole group, wherever its rows lie; a session without a task is a group of
    its own. `fn` gets the rows by sample, then by trajectory, and returns trajectories or whatever Ray takes for a
    batch (columns as a dict, a table, a data frame).

    Ray shuffles for it; `num_partitions` and `options` are of its `groupby` and `map_groups`.
    """
    column = functools.partial(with_group, name=GROUP[1])
    told = dataset.map_batches(column, batch_format="pyarrow", zero_copy_batch=True)
    grouped = told.groupby(list(GROUP), num_partitions=num_partitions)
    return grouped.map_groups(functools.partial(_on_group, fn), batch_format="pyarrow", **options)


def _on_group(fn: Callable[[list[Trajectory]], Any], table: Any) -> Any:
    rows = sorted(
        from_table(table.drop_columns([GROUP[1]])),
        key=lambda row: (row.sample_index, row.session_id, row.trajectory_id),
    )
    found = fn(rows)
    if isinstance(found, list) and all(isinstance(one, Trajectory) for one in found):
        return to_table(found)
    return found


@dataclass(frozen=True, slots=True)
class LeasedDataset:
    """Groups under lease, as data."""

    dataset: Any
    """All their trajectories, group by group."""
    groups: tuple[Group, ...]


@asynccontextmanager
async def leased(groups: AsyncIterator[Group], count: int) -> AsyncIterator[LeasedDataset]:
    """The next `count` groups (fewer if `groups` ends) of `client.groups(...)` or a fleet's as one Dataset; all
    acknowledged when the block ends, all given back when it raises.

    Leases are renewed by the event loop: what blocks (`take_all`, `iter_batches`) belongs into `asyncio.to_thread`.
    Raises InvalidBody, and Conflict at the end if another trainer was given one of them meanwhile.
    """
    if count < 1:
        raise InvalidBody(f"count must be at least 1, not {count}", field="count")
    held: list[Group] = []
    try:
        while len(held) < count and (group := await anext(groups, None)) is not None:
            held.append(group)
        rows = [row for group in held for row in group.trajectories]
        yield LeasedDataset(await asyncio.to_thread(from_trajectories, rows), tuple(held))
    except BaseException:
        await asyncio.shield(_all(group.nack() for group in held))
        raise
    await _all(group.ack() for group in held)


async def _all(calls: Iterable[Any]) -> None:
    """Every one of them, then the first error."""
    for said in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(said, BaseException):
            raise said
