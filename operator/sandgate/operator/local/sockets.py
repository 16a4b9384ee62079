"""The folder of an engine's sockets: below the folder for temporary files, as their paths must be short.

Whoever makes one holds a lock in it until it removes it. One whose owner was killed goes with the next that is made.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from sandgate.operator.local.trees import clear_away
from sandgate.sandbox.own import OwnFile

PREFIX = "sg-"
LOCK = "lock"
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")
"""As tempfile makes them."""


class SocketsFolder:
    """A new one. Blocks, for some milliseconds."""

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        sweep(base)
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, dir=base, ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        self._lock = _held(self.path)

    def remove(self) -> None:
        """Idempotent."""
        self._folder.cleanup()
        self._lock.release()


def _held(folder: Path) -> OwnFile:
    """Its lock, which gets its name when it is held: nobody finds it free while its owner lives. Where locks are
    unknown it gets none, and the folder is never swept."""
    new = folder / f"{LOCK}.new"
    lock = OwnFile(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder / LOCK)
    return lock


def sweep(base: Path) -> None:
    """Remove those of this user whose owner is gone. What cannot be looked at stays, as does what has no lock in it."""
    with suppress(OSError), os.scandir(base) as entries:
        for name in [one.name for one in entries if _NAME.fullmatch(one.name)]:
            with suppress(OSError):
                _sweep(base / name)


def _sweep(folder: Path) -> None:
    """Raises OSError: it stays."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    lock = OwnFile(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW, briefly=True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        clear_away(folder)
    finally:
        lock.release()
