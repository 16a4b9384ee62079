"""A user whom modes of files bind: tests run as root, too, whom they do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65_534
PROGRAM = f"""
import concurrent.futures.thread, importlib, os, pathlib, sys
module, name, folder, *more = sys.argv[1:]
work = getattr(importlib.import_module(module), name)
if os.geteuid() == 0:
    os.chown(folder, {NOBODY}, {NOBODY})
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
work(pathlib.Path(folder), *more)
"""
"""All is imported first, of asyncio.to_thread, too: that user may be unable to read it."""


def as_nobody(work: Callable[..., None], *more: str) -> None:
    """Calls a module's function with an empty folder and `more`, in a process that has no rights of root's; fails where
    it raises."""
    with _folder() as folder:
        words = [work.__module__, work.__name__, str(folder), *more]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words], check=False, cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def _folder() -> Iterator[Path]:
    """Not a fixture's: those are in a folder that only root may look into."""
    folder = Path(tempfile.mkdtemp(prefix="sandgate-nobody-"))
    try:
        yield folder
    finally:
        for path, _, _ in os.walk(folder):
            os.chmod(path, 0o700)
        shutil.rmtree(folder)
