"""Folders for what is made once in a process, and not by a fixture."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def kept(prefix: str) -> Path:
    """A new folder, gone with this process."""
    folder = tempfile.mkdtemp(prefix=f"sandgate-{prefix}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
