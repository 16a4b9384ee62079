"""Makes and fsyncs folders, so that changes survive a power cut: a synced file is lost if its folder's entry is."""

from __future__ import annotations

import os
from pathlib import Path


def sync(folder: Path) -> None:
    """Makes durable that files in the folder were made, renamed or removed. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make(folder: Path) -> None:
    """Makes the folder, and missing folders above it, durably. Raises OSError."""
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)
