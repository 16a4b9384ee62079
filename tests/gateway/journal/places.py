"""Where the conformance suite's journals live: a place opens stores, breaks their disk, and damages what is stored."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeAlias

from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.sqlite import SqliteStore

AnyStore: TypeAlias = SqliteStore | MemoryStore


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Place(Protocol):
    """One journal; `open` may be called again once it is closed."""

    clock: Clock

    async def open(self) -> AnyStore: ...

    def broken(self) -> contextlib.AbstractContextManager[None]:
        """Inside, every write fails as a real one would."""
        ...

    def damage(self, index: int) -> None:
        """Change a byte of a stored record (0 = oldest, -1 = newest) while the journal is closed."""
        ...


class InMemory:
    def __init__(self) -> None:
        self.clock = Clock()
        self.disk = MemoryDisk()

    async def open(self) -> MemoryStore:
        return await MemoryStore.open(self.disk, now=self.clock)

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        self.disk.failure = "database or disk is full"
        yield
        self.disk.failure = ""

    def damage(self, index: int) -> None:
        self.disk.tear(index)


class OnDisk:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.path = folder / "journal.sqlite"

    async def open(self) -> SqliteStore:
        return await SqliteStore.open(self.path, now=self.clock)

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """The kernel refuses to write past a byte (EFBIG; Python ignores SIGXFSZ)."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def damage(self, index: int) -> None:
        """In the file's own bytes, behind SQLite's back."""
        with closing(sqlite3.connect(self.path)) as db:
            bodies = [body for (body,) in db.execute("SELECT body FROM records ORDER BY seq")]
        flip(self.path, bodies[index])


def flip(path: Path, found: bytes) -> None:
    """Change the last byte of the only place in the file that holds `found`."""
    raw = bytearray(path.read_bytes())
    assert raw.count(found) == 1, "the test must know what it damages"
    raw[raw.index(found) + len(found) - 1] ^= 0xFF
    path.write_bytes(raw)
