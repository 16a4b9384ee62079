"""Trajectories as a Parquet file.

It is encoded as trainers encode it (`sandgate.trainer.export.parquet`; a test compares the two). Needs the extra
`gateway-arrow`; imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.delivery.arrow import SCHEMA, record_batches

PLAIN = ("prompt_ids", "response_ids", "response_logprobs")
"""Columns whose values hardly repeat: a dictionary would be built and thrown away."""
REPEATING = [
    f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
    for field in SCHEMA
    if field.name not in PLAIN
]
ENCODINGS = {"response_logprobs.list.element": "BYTE_STREAM_SPLIT"}
"""Floats of one magnitude share their exponent bytes: grouped by byte they compress."""


def sessions_in(data: bytes) -> frozenset[str]:
    """The sessions that a file has rows of; an empty name for rows of none, as in a table of somebody else's. None at
    all if it is no whole file: a write that was cut left it."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if "session_id" not in file.schema_arrow.names:
            return frozenset({""})
        return frozenset(file.read(columns=["session_id"])["session_id"].to_pylist())
    except (pa.ArrowException, OSError):
        return frozenset()


def to_parquet(rows: Iterable[Trajectory]) -> bytes:
    """The rows as a whole file. Raises InvalidBody, which names the field whose value Arrow cannot carry."""
    sink = pa.BufferOutputStream()
    how = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True}
    with pq.ParquetWriter(sink, SCHEMA, use_dictionary=REPEATING, column_encoding=ENCODINGS, **how) as out:
        for batch in record_batches(rows):
            table = pa.Table.from_batches([batch], schema=SCHEMA)
            out.write_table(table, row_group_size=max(1, table.num_rows))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
