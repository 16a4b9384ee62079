"""Where the conformance suite's journals live: a place opens stores, breaks their disk, and damages what is stored."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeAlias

from sandgate.gateway.journal.group_commit import WriterStore
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.sqlite import SqliteStore
from tests.support.postgres import Server

AnyStore: TypeAlias = WriterStore | MemoryStore


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


REFUSE = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
"""
TABLES = ("sandgate_records", "sandgate_journals")


class InPostgres:
    """A journal of its own in a database that many share."""

    def __init__(self, server: Server) -> None:
        self.clock = Clock()
        self.server, self.name = server, f"gateway-{uuid.uuid4()}"

    async def open(self) -> WriterStore:
        from sandgate.gateway.journal.postgres import PostgresStore

        return await PostgresStore.open(self.server.dsn, self.name, now=self.clock)

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """The server refuses every write, as one whose disk is full."""
        self.server.sql(REFUSE)
        for table in TABLES:
            self.server.sql(
                f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON {table} EXECUTE FUNCTION refuse()"
            )
        try:
            yield
        finally:
            for table in TABLES:
                self.server.sql(f"DROP TRIGGER refuse ON {table}")

    def damage(self, index: int) -> None:
        """By SQL: what the server's own checks do not see."""
        rows = self.server.sql("SELECT seq FROM sandgate_records WHERE journal = %s ORDER BY seq", self.name)
        self.server.sql(
            "UPDATE sandgate_records SET body = set_byte(body, length(body) - 1,"
            " get_byte(body, length(body) - 1) # 255) WHERE journal = %s AND seq = %s",
            self.name,
            rows[index][0],
        )


def flip(path: Path, found: bytes) -> None:
    """Change the last byte of the only place in the file that holds `found`."""
    raw = bytearray(path.read_bytes())
    assert raw.count(found) == 1, "the test must know what it damages"
    raw[raw.index(found) + len(found) - 1] ^= 0xFF
    path.write_bytes(raw)
