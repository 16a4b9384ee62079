"""What a `--out DIR` of `sandgate run` holds, and how to find it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sandgate.contract.errors import NotFound
from sandgate.contract.trajectory import Trajectory

TRAJECTORIES = "trajectories.parquet"


def trajectories_file(out: Path) -> Path:
    """`out` itself if it is a file, else its trajectories.parquet. Raises NotFound saying what is there instead."""
    if out.is_file():
        return out
    if not out.is_dir():
        raise NotFound(f"{out}: no such file or directory")
    if not (out / TRAJECTORIES).is_file():
        raise NotFound(f"{out}: no {TRAJECTORIES} in it; has `sandgate run --out {out}` finished?")
    return out / TRAJECTORIES


def trajectories(out: Path) -> Iterator[Trajectory]:
    """Of a finished run, or of a Parquet file. Raises NotFound, NewerRecord, CorruptRecord."""
    from sandgate.trainer.export.arrow import read_parquet  # loads Arrow

    return read_parquet(trajectories_file(out))
