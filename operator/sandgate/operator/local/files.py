"""Writes files that are there whole or not at all, and knows what is left of those that were not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PART = re.compile(r"\.(?P<name>.+?)(\.(?P<pid>\d+)-[0-9a-f]+)?\.tmp$")
"""Of a file that was being written when a run was killed."""


def replace(path: Path, text: str) -> None:
    """Write a private file whole. Raises OSError, whose name is that of the file also where fsync has none."""
    part = path.with_name(f".{path.name}.tmp")
    with suppress(FileNotFoundError):
        part.unlink()
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    part.replace(path)


def whole(path: Path) -> Path:
    """The file that a `.tmp` was going to be; any other file is itself."""
    match = _PART.match(path.name)
    return path.with_name(match["name"]) if match else path


def left_over(folder: Path) -> Iterator[Path]:
    """What was being written there by processes that are over. None of a folder that is a link: it is somebody's own.
    Our own pid is one of those: in a container each run may have the same."""
    if folder.is_symlink() or not folder.is_dir():
        return
    with os.scandir(folder) as found:
        for one in found:
            match = _PART.match(one.name)
            if match and not one.is_dir(follow_symlinks=False) and not _another_lives(match["pid"]):
                yield folder / one.name


def _another_lives(pid: str | None) -> bool:
    if pid is None or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another person's
        pass
    return True
