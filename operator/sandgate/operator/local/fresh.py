"""Empties a run's folder for a fresh run: what a run writes is deleted, everything else stays."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandgate.contract.attach import ATTACH, JOB, LOCK, SECRET, TRAINERS
from sandgate.contract.errors import Conflict
from sandgate.contract.names import is_derived
from sandgate.operator.local.files import whole
from sandgate.operator.local.folder import Folder, in_use, is_group_file, take, used
from sandgate.operator.local.resuming import MADE, MANIFESTS

_OWN_LOG = re.compile(r"(engine|gateway-\d+)\.log$")
_JOURNAL = re.compile(r"gateway-(\d+)\.sqlite$")
_DIGEST = re.compile(r"[0-9a-f]{6,64}\.json$")

FILES = (JOB, SECRET, LOCK, ATTACH, MADE)
FOLDERS = ("groups", "logs", "run", TRAINERS, MANIFESTS)
"""Of a run, in its own."""


def is_own(path: Path, also: Iterable[str] = ()) -> bool:
    """Is it a file of a run: its journals, manifest, secret, lock, result, or one in a folder of its own? `also`: names
    of further files beside them."""
    path = Path(os.path.realpath(path.parent), path.name)  # a link as the last part is replaced itself
    return any(
        _is_of(Folder(root), path.relative_to(root).parts, also)
        for root in path.parents
        if Folder(root).job_file().is_file()
    )


def _is_of(folder: Folder, parts: tuple[str, ...], also: Iterable[str]) -> bool:
    if len(parts) > 1:
        return parts[0] in FOLDERS
    name = re.sub(r"-(wal|shm)$", "", parts[0])
    return (
        name in (*FILES, folder.trajectories.name, folder.versions.name, *also)
        or _JOURNAL.match(name) is not None
    )


def clear(root: Path, job: str, also: Iterable[str] = ()) -> None:
    """Remove what runs of `job` left in `root`, journals included; nothing, if no run was there. `also`: names of
    further files in it. Folders go when they are empty.

    A kill in the middle leaves a folder that can be cleared again, or be gone on with. Raises Conflict if a run uses
    the folder, or if it holds another job's.
    """
    folder = Folder(root)
    if not folder.job_file().is_file():
        return
    with _held(root):
        _ours(folder, job)
        _remove(folder, job, also)


def clearable(root: Path, job: str) -> None:
    """Would `clear` do it now? Raises Conflict as it does, and changes nothing."""
    folder = Folder(root)
    if not folder.job_file().is_file():
        return
    if in_use(root):
        raise used(root)
    _ours(folder, job)


def _ours(folder: Folder, job: str) -> None:
    if (held := _job_in(folder)) != job:
        raise Conflict(
            f"{folder.root}: holds a run of {held or 'something else'}, this job is {job};"
            " give it a folder of its own"
        )


def _remove(folder: Folder, job: str, also: Iterable[str]) -> None:
    """Results first, then what they were made of; the manifest, which says that this is a run's folder, last."""
    root = folder.root
    last = (folder.secret.name, folder.job_file().name)
    first = (folder.trajectories.name, *also)
    for name in first:
        (root / name).unlink(missing_ok=True)
    for path in _entries(root / "groups"):
        if is_group_file(job, whole(path)):
            path.unlink()
    for path in _entries(folder.logs):
        session = path.name.removesuffix(".log").removesuffix(".verifier")
        if _OWN_LOG.match(path.name) or (path.suffix == ".log" and is_derived(job, session)):
            path.unlink()
    # Not the other way round: what a stale log says would be believed of a new journal.
    for path in (
        path.with_name(path.name + kind) for path in _journals(root) for kind in ("-wal", "-shm", "")
    ):
        path.unlink(missing_ok=True)
    folder.tidy()
    for path in _entries(root):
        if whole(path) != path and whole(path).name in (*first, folder.versions.name, *last):
            path.unlink()
    for path in (*_entries(folder.trainers), *_manifests(root), folder.attach, folder.versions, root / MADE):
        path.unlink(missing_ok=True)
    for below in (folder.logs, root / "groups", folder.trainers, root / MANIFESTS):
        with suppress(OSError):
            below.rmdir()
    for name in last:
        (root / name).unlink(missing_ok=True)


def _manifests(root: Path) -> list[Path]:
    return [path for path in _entries(root / MANIFESTS) if _DIGEST.match(path.name)]


def _journals(root: Path) -> list[Path]:
    """The last one first: those that are left are counted from 0."""
    found = [(int(match[1]), path) for path in _entries(root) if (match := _JOURNAL.match(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _entries(folder: Path) -> list[Path]:
    """Files (and links, which are not followed)."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_symlink() or path.is_file())


def _job_in(folder: Folder) -> str:
    try:
        return str(json.loads(folder.job_file().read_text("utf-8"))["metadata"]["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


@contextmanager
def _held(root: Path) -> Iterator[None]:
    locks = take(root)
    try:
        yield
    finally:
        for lock in locks:
            lock.release()
