"""Pipes and locks that only this process is to hold.

A process that is forked off (a DataLoader's worker, one of a ProcessPoolExecutor) has every file of its parent's. It
would hold the end of a pipe whose end says that its parent ended, and a lock that says that its parent lives: until the
last worker ends, or for ever. So it closes them as it begins.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakSet


class Closes(Protocol):
    """Something open. It knows when it is closed: its number may be another file's by then."""

    def close(self) -> None: ...


_own: WeakSet[Closes] = WeakSet()
_gate = threading.RLock()
"""Held while something is opened, and for a fork: no process begins between the opening and the note of it."""


@contextmanager
def opening() -> Iterator[Callable[[Closes], None]]:
    """What is opened inside, and given to what this yields, is of this process alone. Other threads cannot fork
    meanwhile: nothing may wait for them here."""
    with _gate:
        yield _own.add


def _begun() -> None:
    """In a process that was forked off."""
    try:
        for one in list(_own):
            with suppress(OSError):
                one.close()
        _own.clear()
    finally:
        _gate.release()


os.register_at_fork(before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_begun)


class OwnFile:
    """A file, or a folder, for the lock on it."""

    def __init__(self, path: Path, flags: int, *, briefly: bool = False) -> None:
        """`briefly`: for a look that is over at once. It waits for nobody; a process that is forked off meanwhile keeps
        a copy, whose lock `release` lets go, too. Raises OSError."""
        self.number = -1
        if briefly:
            self.number = os.open(path, flags, 0o600)
            return
        with opening() as own:
            self.number = os.open(path, flags, 0o600)
            own(self)

    @property
    def closed(self) -> bool:
        """Also in a process that was forked off."""
        return self.number < 0

    def fileno(self) -> int:
        """Its number, for fcntl and os."""
        return self.number

    def release(self) -> None:
        """Let the lock go, whoever has a copy of the file, and close it. Idempotent."""
        if not self.closed:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self.number, fcntl.LOCK_UN)
            self.close()

    def __del__(self) -> None:
        self.close()  # made for a call that was cancelled meanwhile: nobody would ever close it

    def close(self) -> None:
        """Close it, and leave the lock to who else has it. Idempotent."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)
