"""The files that a `--out DIR` of `sandgate run` holds, and how to find them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from sandgate.contract.errors import NotFound
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.files import replacing

TRAJECTORIES = "trajectories.parquet"
ORIGIN = "origin.json"
"""Written when the run begins."""
JOURNAL = "gateway-0.sqlite"
"""Of its first gateway: every run has one."""
GROUPS = "groups/[!.]*.parquet"
"""One file per group while the run goes on."""


def trajectory_files(out: Path) -> list[Path]:
    """Where the trajectories of `out` lie: itself if it is a file, its merged file, or, while the run goes on, one
    file per group that is done. Raises NotFound saying what is missing."""
    if out.is_file():
        return [out]
    if not out.is_dir():
        raise NotFound(f"{out}: no such file or directory")
    if (out / TRAJECTORIES).is_file():
        return [out / TRAJECTORIES]
    if groups := sorted(out.glob(GROUPS)):
        return groups
    raise NotFound(f"{out}: no {TRAJECTORIES} in it, and no group that is done")


def trajectories(out: Path) -> Iterator[Trajectory]:
    """Of a run, or of a Parquet file. Raises NotFound now, NewerRecord and CorruptRecord while it is read."""
    from sandgate.trainer.export.arrow import read_parquet  # loads Arrow

    return chain.from_iterable(map(read_parquet, trajectory_files(out)))


def remember(out: Path, tokenizer: Path) -> None:
    """Leave in `out` what later looks need and its journals do not say: the model folder."""
    with replacing(out / ORIGIN) as file:
        file.write_text(json.dumps({"tokenizer": str(tokenizer.resolve())}), "utf-8")


def used_tokenizer(out: Path) -> str:
    """The model folder that the run used, if it is known and still there; else empty."""
    try:
        folder = Path(json.loads((out / ORIGIN).read_text("utf-8"))["tokenizer"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return str(folder) if (folder / "tokenizer.json").is_file() else ""
