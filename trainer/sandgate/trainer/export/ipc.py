"""Trajectories in Arrow's own file format: for readers that map it into memory; three times a Parquet file's size."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa

from sandgate.contract.errors import CorruptRecord
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.files import naming, replacing
from sandgate.trainer.export.schema import check_version, schema
from sandgate.trainer.export.tables import to_batches, unpack


def write_arrow(
    path: str | os.PathLike[str], trajectories: Iterable[Trajectory], *, atomic: bool = True
) -> int:
    """Stream to an Arrow IPC file, whole or not at all (see `write_parquet`); how many. Raises InvalidBody, OSError."""
    rows = 0
    with (
        replacing(path, atomic=atomic) as target,
        pa.OSFile(str(target), "wb") as sink,
        pa.ipc.new_file(sink, schema()) as writer,
    ):
        for batch in to_batches(trajectories):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def read_arrow(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Trajectories in order; the file is mapped, and one batch of it is decoded at a time.

    Raises OSError for what the system says, NewerRecord, CorruptRecord.
    """
    try:
        with naming(path), pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            check_version(file.schema)
            for at in range(file.num_record_batches):
                batch = file.get_batch(at)
                batch.validate(full=True)  # bytes from elsewhere: offsets are not to be trusted
                yield from unpack(batch)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptRecord(f"{path} is not an Arrow file of trajectories: {error}") from error
