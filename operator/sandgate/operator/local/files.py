"""Writes files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


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
