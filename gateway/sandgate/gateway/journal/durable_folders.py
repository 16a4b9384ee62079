"""Makes and fsyncs folders, so that changes survive a power cut: a synced file is lost if its folder's entry is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

UNABLE = (errno.EINVAL, errno.EBADF)
"""What a file system says that cannot fsync folders. The trainer's files have the same, in `export.files`: this room's
doors do not lead to its journal."""


def sync(folder: Path) -> None:
    """Makes durable that files in the folder were made, renamed or removed, where the file system can. Raises
    OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    finally:
        os.close(fd)


def make(folder: Path) -> None:
    """Makes the folder, and missing folders above it, durably. Raises OSError."""
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)
