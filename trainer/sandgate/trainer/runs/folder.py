"""The files that a `--out DIR` of `sandgate run` holds, and how to find them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from sandgate.contract.errors import NotFound
from sandgate.contract.names import group_name
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
    file per group that is done. Raises NotFound saying what is missing; NewerRecord, CorruptRecord for a merged file
    beside which groups lie."""
    if out.is_file():
        return [out]
    if not out.is_dir():
        raise NotFound(f"{out}: no such file or directory")
    groups = sorted(out.glob(GROUPS))
    if (out / TRAJECTORIES).is_file():
        return _all_of(out / TRAJECTORIES, groups) if groups else [out / TRAJECTORIES]
    if groups:
        return groups
    raise NotFound(f"{out}: no {TRAJECTORIES} in it, and no group that is done")


def _all_of(merged: Path, groups: list[Path]) -> list[Path]:
    """The merged file is of when a run was over. One that went on since has written further groups, or more rows of one
    (`--retry-failed`), and merges them at its end only. No file is passed over that alone has a row, and no row is in
    two of them."""
    from sandgate.trainer.export.arrow import groups_in_parquet  # loads Arrow

    inside = groups_in_parquet(merged)
    names = {group_name(job, uid) for job, uid in inside}
    written = merged.stat().st_mtime_ns
    anew = any(one.stem in names and one.stat().st_mtime_ns > written for one in groups)
    if anew and names <= {one.stem for one in groups}:
        return groups
    return [merged, *(one for one in groups if one.stem not in names and groups_in_parquet(one) - inside)]


def group_file(out: Path, job: str, uid: str) -> Path:
    """Where the rows of this group lie once it is done."""
    return out / "groups" / f"{group_name(job, uid)}.parquet"


def trajectories(out: Path, *, binary: bool = True) -> Iterator[Trajectory]:
    """Of a run, or of a Parquet file; `binary`: see `read_parquet`. Raises NotFound now, NewerRecord and CorruptRecord
    while it is read."""
    from sandgate.trainer.export.arrow import read_parquet  # loads Arrow

    return chain.from_iterable(read_parquet(file, binary=binary) for file in trajectory_files(out))


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
