"""Folders whose changes survive a power cut: a file that was synced is not there while its folder's entry is not."""

from __future__ import annotations

import os
from pathlib import Path


def sync(folder: Path) -> None:
    """Files that were made, renamed or removed in it are so for good. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make(folder: Path) -> None:
    """It and what is missing above it, for good. Raises OSError."""
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)
