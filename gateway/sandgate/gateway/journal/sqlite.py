"""SqliteStore, the default journal: one SQLite file in WAL mode, one writer thread, many turns per fsync."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from sandgate.contract.errors import Conflict, CorruptRecord, JournalUnavailable, NewerRecord, SandgateError
from sandgate.gateway.journal import durable_folders
from sandgate.gateway.journal.commit_batch import CommitRequest
from sandgate.gateway.journal.group_commit import Clock, NotWritten, WriterStore
from sandgate.gateway.journal.records import Record
from sandgate.gateway.journal.room import Room, volume
from sandgate.gateway.journal.rows import (
    Row,
    beyond,
    checksum,
    cut_from,
    read,
)
from sandgate.gateway.journal.space import Space
from sandgate.gateway.journal.wal_damage import frames_kept, lost_commits

log = logging.getLogger(__name__)

SCHEMA = 1
"""Schema version of the tables; records carry their own."""
APPLICATION_ID = 0x53474A31
"""'SGJ1' in the file's header: tells a journal from any other SQLite file."""
WAL_BYTES_KEPT = 64 << 20
"""The -wal file is cut back to this after a checkpoint; below, it is overwritten in place."""
PAGE_BYTES = 4096
"""SQLite's own default."""
VACUUM_PAGES = 4096
"""Free pages given back to the file system with each chunk."""
VACUUM_PAGES_IN_NEED = 512
"""The same at once on a full disk: moving a page writes it to the -wal and to the file."""
READERS_KEPT = 4
"""Limit of idle connections for scans, which run in the two threads of the turns, and now and then beside them."""
BUSY_MS = 5000
"""How long a statement waits for another connection's lock: Python's own default."""
SCAN_ROWS = 128
"""Rows read at once: a scan holds no snapshot for long, so that the -wal can be reused."""

TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, body BLOB NOT NULL,"
    " crc INTEGER NOT NULL)",
    "CREATE INDEX records_by_session ON records (session)",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
INSERT = "INSERT INTO records (seq, session, body, crc) VALUES (?, ?, ?, ?)"
SELECT = "SELECT seq, session, body, crc FROM records"
NAMED = f"{SELECT} WHERE (session, seq) > (?, ?) AND session < ? ORDER BY session, seq LIMIT {SCAN_ROWS}"
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteStore(WriterStore):
    """`Store` in one file. Belongs to the event loop that opened it and to one process; not fork-safe."""

    def __init__(self, path: Path, lock: int, start: _Start, room: Room | None, now: Clock) -> None:
        """Use `open`."""
        self._path = path
        self._readers: list[sqlite3.Connection] = []
        """Idle connections for scans, whichever thread does them; `pop` and `append` are atomic."""
        super().__init__(path.name, _File(path, start, lock, room), start.cut, now)

    @classmethod
    async def open(cls, path: str | Path, *, now: Clock = time.monotonic, room: int = 0) -> Self:
        """Locks, checks and opens the journal at `path`, made if absent (mode 0600; its directory must exist).

        Reads every record's checksum. A damaged tail is cut and reported by `status().cut`. Raises Conflict (another
        process has it), CorruptRecord (damage before the end, or not a journal), NewerRecord, JournalUnavailable
        (cannot be read or written now). `now`: seconds, any origin; paces attempts after a failure. `room`: bytes that
        are set aside, at most, so that it can be retired from when the disk is full.
        """
        path = Path(path)
        lock = await asyncio.to_thread(_lock, path)
        try:
            start, aside = await asyncio.to_thread(_open_with_room, path, room)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, start, aside, now)

    def scan(self, session: str | None = None) -> Iterator[tuple[int, str, Record]]:
        """See `Store.scan`: the records that were durable when the scan began. It uses a connection of its own, kept
        for the next scan; it blocks on the disk."""
        where, args = ("", ()) if session is None else (" AND session = ?", (session,))
        with self._reading() as db:
            (upto,) = db.execute("SELECT coalesce(max(seq), 0) FROM records").fetchone()
            page = f"{SELECT} WHERE seq > ? AND seq <= ?{where} ORDER BY seq LIMIT {SCAN_ROWS}"
            seq, count = 0, SCAN_ROWS
            while count == SCAN_ROWS:
                rows = db.execute(page, (seq, upto, *args)).fetchall()
                yield from map(read, rows)
                count = len(rows)
                seq = rows[-1][0] if rows else seq

    def scan_named(self, beginning: str, after: str = "") -> Iterator[tuple[int, str, Record]]:
        """See `Store.scan_named`. It blocks as `scan` does, and shows what is written meanwhile, too."""
        place, count = (beginning + after, sys.maxsize), SCAN_ROWS
        while count == SCAN_ROWS:
            with self._reading() as db:
                rows = db.execute(NAMED, (*place, beyond(beginning))).fetchall()
            yield from map(read, rows)
            count = len(rows)
            place = (rows[-1][1], rows[-1][0]) if rows else place

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for one reader; opening one takes as long as reading a session. SQLite's errors become ours."""
        with _naming_damage(self._path):
            try:
                db = self._readers.pop()
            except IndexError:
                db = _connect(self._path, read_only=True)
            try:
                yield db
            except BaseException:
                db.close()
                raise
            if self._closed is not None or len(self._readers) >= READERS_KEPT:
                db.close()
            else:
                self._readers.append(db)

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        self._close_readers()  # first: only the last connection brings the log into the file
        try:
            await super().aclose()
        finally:
            self._close_readers()

    def _close_readers(self) -> None:
        while self._readers:
            self._readers.pop().close()


class _File:
    """The writer's connection and sequence; `lock`: the descriptor that holds the lock file."""

    def __init__(self, path: Path, start: _Start, lock: int, room: Room | None = None) -> None:
        self.path = path
        self.db, self.seq, self.records = start.db, start.seq, start.records
        self.lock, self.room = lock, room
        self.refused_frames = False
        """The -wal may have frames of refused commits behind its good end: where two have, a later start takes them for
        lost ones. They are cut after the next commit."""

    def commit(self, jobs: Sequence[CommitRequest]) -> None:
        if self.room is not None and not all(job.vital for job in jobs) and not self._made_room():
            raise NotWritten(
                "the disk is full: until groups are acknowledged and retired, nothing new is written"
            )
        try:
            self._commit(jobs)
        except NotWritten:
            if self.room is not None and self.room.held:
                self.room.release()
                with contextlib.suppress(sqlite3.Error):
                    self._emptied_log()
            raise

    @property
    def space(self) -> Space:
        """What is free in the file is, too: it is written to before the file grows. Room that was given up is not."""
        space = Space(*volume(self.path))
        if not space.tight:
            return space
        free = space.free
        with contextlib.suppress(sqlite3.Error):
            free += PAGE_BYTES * self.db.execute("PRAGMA freelist_count").fetchone()[0]
        if self.room is not None and not self.room.held:
            free -= self.room.size
        return Space(free, space.size)

    def rescue(self, jobs: Sequence[CommitRequest]) -> bool:
        if self.room is None:
            return False
        try:
            self._commit(jobs)
        except NotWritten:
            return False
        return True

    def _emptied_log(self) -> None:
        """Brings the -wal into the file, and cuts it, unless readers are in its way."""
        busy, _, _ = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self.refused_frames = self.refused_frames and bool(busy)

    def _commit(self, jobs: Sequence[CommitRequest]) -> None:
        before = self.seq, self.records
        try:
            self.db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self.carry_out(job)
            self.db.execute("COMMIT")
        except (sqlite3.Error, OSError, MemoryError) as error:
            with contextlib.suppress(sqlite3.Error):  # SQLite has often rolled back by itself
                self.db.execute("ROLLBACK")
            self.seq, self.records = before
            self.refused_frames = True
            raise NotWritten(str(error) or type(error).__name__) from error
        if any(job.forget for job in jobs):
            self._give_back()
        if self.refused_frames and (
            self.room is None or self.room.held
        ):  # not in need: the file may grow by it
            self._cut_refused_frames()

    def _cut_refused_frames(self) -> None:
        """Waits for no reader, and stays due where it fails: nothing rests on it, as what is committed is durable."""
        with contextlib.suppress(sqlite3.Error, MemoryError):
            self.db.execute("PRAGMA busy_timeout = 0")
            try:
                self._emptied_log()
            finally:
                self.db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def _give_back(self) -> None:
        """Free pages of the file, to the file system."""
        if self.room is not None and not self.room.held:
            self._made_room()
        else:
            # execute() would stop after the first page; and it is no harm if it fails, free pages are used again.
            with contextlib.suppress(sqlite3.Error):
                self.db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")

    def _made_room(self) -> bool:
        """Whether the room is set aside, or is again: what is free in the file is given back to the disk, bit by bit,
        as that takes some of it, too."""
        assert self.room is not None
        left = -1
        with contextlib.suppress(sqlite3.Error):
            while not self.room.take():
                before, left = left, self.db.execute("PRAGMA freelist_count").fetchone()[0]
                if left in (0, before):
                    return False
                self.db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES_IN_NEED})")
                self._emptied_log()
        return self.room.held

    def carry_out(self, job: CommitRequest) -> None:
        for session in job.forget:
            self.records -= self.db.execute("DELETE FROM records WHERE session = ?", (session,)).rowcount
        for session, body in job.rows:
            self.seq += 1
            self.db.execute(INSERT, (self.seq, session, body, checksum(self.seq, session, body)))
        self.records += len(job.rows)
        if not job.forget and not job.rows:
            self.db.execute("INSERT OR REPLACE INTO meta VALUES ('probe', hex(randomblob(8)))")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.db.close()

    def hurry(self) -> None:
        """A disk answers or fails; there is nothing to wait for."""

    def release(self) -> None:
        os.close(self.lock)


class _Start:
    """The state of the journal at start. `seq`: the last sequence ever given."""

    def __init__(self, db: sqlite3.Connection, cut: int) -> None:
        self.db, self.cut = db, cut
        (self.records,) = db.execute("SELECT count(*) FROM records").fetchone()
        (self.seq,) = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()


def _lock(path: Path) -> int:
    """Locks the journal and returns the lock's descriptor. The lock lasts while the descriptor is open, so a killed
    process holds none. Raises Conflict if another process has it, JournalUnavailable if the file system cannot say."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalUnavailable(f"journal {path.name}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise Conflict(f"journal {path.name} is in use by another process") from error
    except OSError as error:  # a file system without locks, or one whose server is away
        os.close(fd)
        raise JournalUnavailable(f"journal {path.name} cannot be locked: {error.strerror}") from error
    return fd


def _open_with_room(path: Path, size: int) -> tuple[_Start, Room | None]:
    """On a full disk even opening needs some of it."""
    with _naming_damage(path):
        room = Room.beside(path, size)
    try:
        start = _open(path)
    except JournalUnavailable:
        if not room.path.exists():
            raise
        room.release()
        start = _open(path)
    if not size:
        room.release()  # of a life that set some aside
        return start, None
    room.take()
    return start, room


def _open(path: Path) -> _Start:
    """Checks everything, cuts a damaged tail, and returns a connection that is ready to write."""
    log_path = Path(f"{path}-wal")
    with _naming_damage(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        written_ahead = log_path.read_bytes() if log_path.exists() else b""
        db = _connect(path)
        try:
            new = _is_new(db, path)  # the first read: here SQLite recovers
            lost = lost_commits(written_ahead, frames_kept(_head(f"{path}-shm"))) if written_ahead else 0
            if lost:
                log.error("journal %s: the last %d transactions were damaged and are gone", path.name, lost)
            _prepare(db, path, new=new)
            _check_structure(db, path)
            return _Start(db, lost + _cut_tail(db, path))
        except BaseException:
            db.close()
            raise


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    mode = "ro" if read_only else "rw"
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    # A damaged name must fail its checksum, not the driver.
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return db


def _is_new(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has no tables. Raises CorruptRecord for another program's database."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise CorruptRecord(f"{path.name} is an SQLite file, but not a journal")
    return not tables


def _prepare(db: sqlite3.Connection, path: Path, *, new: bool) -> None:
    """Makes the settings, and the tables of a new file. Raises NewerRecord."""
    if new:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise JournalUnavailable(f"journal {path.name}: this file system cannot hold a write-ahead log")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    # Debian's SQLite writes zeros over what it deletes, so that a full disk lacked the room for that.
    db.execute("PRAGMA secure_delete = OFF")
    if new:
        db.execute("BEGIN IMMEDIATE")
        for statement in TABLES:
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
        db.execute("COMMIT")
        durable_folders.sync(path.parent)
    stored = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if stored is None or not stored[0].isdecimal():
        raise CorruptRecord(f"journal {path.name} does not say its schema")
    if int(stored[0]) > SCHEMA:
        raise NewerRecord(seen=int(stored[0]), known=SCHEMA)


def _check_structure(db: sqlite3.Connection, path: Path) -> None:
    """Raises CorruptRecord for tables that do not fit together; an index that does not is made anew."""
    if (problem := _problem(db, "quick_check")) is None and _problem(db, "integrity_check") is not None:
        log.warning("journal %s: its index was damaged and is made anew", path.name)
        db.execute("REINDEX records")
        problem = _problem(db, "integrity_check")
    if problem is not None:
        raise CorruptRecord(f"journal {path.name}: {problem}")


def _problem(db: sqlite3.Connection, check: str) -> str | None:
    (result,) = db.execute(f"PRAGMA {check}(1)").fetchone()
    return None if result == "ok" else str(result)


def _cut_tail(db: sqlite3.Connection, path: Path) -> int:
    rows: Iterator[Row] = db.execute(f"{SELECT} ORDER BY seq")
    first = cut_from(rows)
    if first is None:
        return 0
    cut = db.execute("DELETE FROM records WHERE seq >= ?", (first,)).rowcount
    log.error("journal %s: cut %d damaged records at the end, from record %d on", path.name, cut, first)
    return cut


@contextlib.contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and the system into ours: damage is CorruptRecord; the rest may pass, and is
    JournalUnavailable."""
    try:
        yield
    except SandgateError:
        raise
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
            raise CorruptRecord(f"journal {path.name}: {error}") from error
        raise JournalUnavailable(f"journal {path.name}: {error}") from error
    except UnicodeDecodeError as error:  # SQLite's message quotes a damaged schema
        raise CorruptRecord(f"journal {path.name}: its schema is damaged") from error
    except OSError as error:
        raise JournalUnavailable(f"journal {path.name}: {error.strerror}") from error
