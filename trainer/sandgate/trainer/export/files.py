"""Writes files that are whole or not there."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISKS_FAULT = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""No socket raises them: where they name no file, they are of the one that is being written."""
UNABLE = (errno.EINVAL, errno.EBADF)
"""What a file system says that cannot fsync folders. The gateway's `durable_folders` has the same, behind its wall."""


@contextmanager
def replacing(path: str | os.PathLike[str], *, atomic: bool = True) -> Iterator[Path]:
    """A path to write to; when the block ends well, `path` is that file, durable; when it raises, `path` is untouched,
    unless its folder was not made durable: then the new file is there, and a power cut may bring the old one back.

    The temporary file lies in the same folder (a rename across file systems is a copy), so a kill leaves at most
    a hidden `.NAME.*.tmp` beside it. With `atomic` False it is `path` itself: for pipes and for file systems
    without rename. Makes missing parent folders. Raises OSError, also where `path` is a folder, a device or a pipe; a
    disk's, which Arrow and fsync raise without a name, names `path`.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with naming(target, DISKS_FAULT):
        if atomic:
            with _beside(target) as part:
                yield part
        else:
            yield target


@contextmanager
def naming(path: str | os.PathLike[str], faults: Container[int] | None = None) -> Iterator[None]:
    """OSErrors of the system without a file's name get this one, and the system's words; `faults`: only these."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None or (faults and error.errno not in faults):
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    _refuse_special(target)
    part = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield part
        _sync(part)
        part.replace(target)
        _sync_folder(target.parent)  # the rename itself is a change of it
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


def _refuse_special(target: Path) -> None:
    """Raises OSError for a folder, and for a device or a pipe: root can replace /dev/null by a file, which breaks the
    machine."""
    with suppress(FileNotFoundError):
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        if not stat.S_ISREG(mode):
            raise FileExistsError(errno.EEXIST, "is no regular file, and is not replaced", str(target))


def _sync_folder(folder: Path) -> None:
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in UNABLE:
            raise


def _sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
