"""The files that a `--out DIR` of `sandgate run` holds, and how to find them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from sandgate.contract.errors import CorruptRecord, NotFound
from sandgate.contract.names import group_name, is_group
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.files import replacing

log = logging.getLogger(__name__)

TRAJECTORIES = "trajectories.parquet"
ORIGIN = "origin.json"
"""Written when the run begins."""
JOURNAL = "gateway-0.sqlite"
"""Of its first gateway: every run has one."""
GROUPS = "groups/[!.]*.parquet"
"""One file per group while the run goes on."""
TICK_NS = 2_000_000_000
"""Less than that two times of files may be rounded to one."""


class Part(NamedTuple):
    """Rows of a run, in one file."""

    path: Path
    without: frozenset[tuple[str, str]] = frozenset()
    """(job, uid) of groups of it whose rows are in another file."""


def trajectory_files(out: Path) -> list[Part]:
    """Where the trajectories of `out` lie: itself if it is a file, its merged file, or, while the run goes on, one
    file per group that is done. A file in `groups/` that no run named and that holds no trajectories is passed over
    with a warning. Raises NotFound saying what is missing; NewerRecord, CorruptRecord for files that were looked at."""
    if out.is_file():
        return [Part(out)]
    if not out.is_dir():
        raise NotFound(f"{out}: no such file or directory")
    merged = out / TRAJECTORIES
    groups = sorted(out.glob(GROUPS))
    if merged.is_file():
        return (_beside(merged, groups) if groups else []) or [Part(merged)]
    if found := _alone(groups):
        return found
    raise NotFound(f"{out}: no {TRAJECTORIES} in it, and no group that is done")


def _alone(groups: list[Path]) -> list[Part]:
    own = [one for one in groups if is_group(one.stem)]
    return [*map(Part, own), *_others(groups, {one.stem for one in own})]


def _beside(merged: Path, groups: list[Path]) -> list[Part]:
    """The merged file is of when a run was over. One that went on since has written further groups, or more rows of one
    (`--retry-failed`), and merges them at its end only. No file is passed over that alone has a row, and no row is in
    two of them."""
    from sandgate.trainer.export.arrow import groups_in_parquet  # loads Arrow

    inside: dict[str, tuple[str, str]] = {group_name(*one): one for one in groups_in_parquet(merged)}
    written = merged.stat().st_mtime_ns
    own = [one for one in groups if is_group(one.stem)]
    anew = [one for one in own if one.stem in inside and one.stat().st_mtime_ns > written]
    since = [one for one in own if one.stem not in inside and groups_in_parquet(one)]
    replaced = frozenset(inside[one.stem] for one in anew)
    found = [Part(merged, replaced)] if len(replaced) < len(inside) else []
    return [
        *found,
        *map(Part, anew),
        *map(Part, since),
        *_others(groups, {*inside, *(one.stem for one in own)}),
    ]


def _others(groups: list[Path], known: set[str]) -> Iterator[Part]:
    """Files that no run named, for the groups that are in no other; `known`: the names of those that are."""
    from sandgate.trainer.export.arrow import groups_in_parquet

    for path in groups:
        if is_group(path.stem):
            continue
        try:
            held = {one: group_name(*one) for one in groups_in_parquet(path)}
        except CorruptRecord as error:
            log.warning("warning: passed over, as no run named it and it holds no trajectories: %s", error)
            continue
        if not known.issuperset(held.values()):
            yield Part(path, frozenset(one for one, name in held.items() if name in known))
        known |= set(held.values())


def group_file(out: Path, job: str, uid: str) -> Path:
    """Where the rows of this group lie once it is done."""
    return out / "groups" / f"{group_name(job, uid)}.parquet"


def write_group(path: Path, rows: Iterable[Trajectory]) -> int:
    """`write_parquet` for a group's file. It is never as old as the merged file, by a clock that was set back since
    that was made, either: a reader would take its rows for those that the merged file has."""
    from sandgate.trainer.export.arrow import write_parquet

    count = write_parquet(path, rows)
    with suppress(FileNotFoundError):
        merged = (path.parent.parent / TRAJECTORIES).stat().st_mtime_ns
        if path.stat().st_mtime_ns <= merged:
            os.utime(path, ns=(merged + TICK_NS, merged + TICK_NS))
    return count


def trajectories(out: Path, *, binary: bool = True) -> Iterator[Trajectory]:
    """Of a run, or of a Parquet file; `binary`: see `read_parquet`. Raises NotFound now, NewerRecord and CorruptRecord
    while it is read."""
    from sandgate.trainer.export.arrow import read_parquet  # loads Arrow

    parts = trajectory_files(out)
    return chain.from_iterable(read_parquet(path, binary=binary, without=groups) for path, groups in parts)


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
