"""Staleness of a group: the oldest policy version in it. No Python object per token."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from sandgate.contract.trajectory import Trajectory


def oldest(rows: Iterable[Trajectory]) -> int | None:
    """The oldest policy version that sampled a token of these rows; None if nothing was sampled."""
    found = [one for one in map(_oldest, rows) if one is not None]
    return min(found, default=None)


def _oldest(row: Trajectory) -> int | None:
    """Context has version -1, which as an unsigned number is the largest: the minimum is of what was sampled."""
    count = len(row.versions)
    if not count:
        return None
    unsigned = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(row.versions)])
    least = int(pc.min(unsigned).as_py())
    return least if least < 1 << 31 else None
