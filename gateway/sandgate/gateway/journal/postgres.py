"""PostgresStore: a journal in Postgres, for clusters where a volume cannot follow its pod.

Records, checksums and group commits are those of every journal. Many gateways share one database; each has the journal
of its own name, and is the only one that writes it. Two things ensure that. The writer's session has an advisory lock:
a second process of the same name is refused at its start. And each start counts up the journal's epoch, which every
transaction checks before it commits: a process that lost the lock with its connection, and was replaced meanwhile, can
write no more.

A connection lost in the middle of a COMMIT leaves its outcome open, and so does a COMMIT that is not answered in time,
or whose wait for a standby somebody ended. Callers then wait until a new session holds the lock (so that the old one is
over) and has read the outcome. Readers may be at another server than the writer: one that lacks the writer's commits is
not believed. Needs the extra `gateway-postgres`, and a connection to the server itself or to a pooler in session mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import psycopg  # type: ignore[import-not-found, unused-ignore]  # an extra of its own

from sandgate.contract.errors import Conflict, JournalUnavailable, NewerRecord
from sandgate.gateway.journal.commit_batch import CommitRequest
from sandgate.gateway.journal.group_commit import Clock, NotWritten, WriterStore
from sandgate.gateway.journal.postgres_connection import POOLED, check_unshared, commit, connect
from sandgate.gateway.journal.records import Record
from sandgate.gateway.journal.rows import RETRY_S, Row, beyond, checksum, cut_from, read
from sandgate.gateway.journal.space import UNKNOWN, Space

log = logging.getLogger(__name__)

SCHEMA = 1
"""Schema version of the tables; records carry their own."""
SCAN_ROWS = 128
"""Rows read at once."""
SCAN_BYTES = 8 << 20
"""Bytes of records read at once, but at least one record."""
READERS_KEPT = 4
"""Limit of idle connections for scans; one costs the server a process."""
LOCK_TRIES, LOCK_PAUSE_S = 6, 0.1
"""Tries for the lock at the start, and seconds between them: the server notices in milliseconds that a killed process
is gone. A machine that vanished with its gateway holds the lock for 30 s (SETTINGS); then whoever starts us tries
again."""
LACKS = (
    "the server that answers lacks commits that were told: a standby that lags (target_session_attrs=read-write avoids"
    " those), or a failover that lost them"
)
SEQ_MAX = 2**63 - 1

TABLES = {
    "sandgate_journals": "CREATE TABLE IF NOT EXISTS sandgate_journals (name text PRIMARY KEY, schema int NOT NULL,"
    " epoch bigint NOT NULL, commits bigint NOT NULL, seq bigint NOT NULL)",
    "sandgate_records": "CREATE TABLE IF NOT EXISTS sandgate_records (journal text NOT NULL, seq bigint NOT NULL,"
    " session text NOT NULL, body bytea NOT NULL, crc bigint NOT NULL, PRIMARY KEY (journal, seq))",
    "sandgate_records_by_session": "CREATE INDEX IF NOT EXISTS sandgate_records_by_session"
    " ON sandgate_records (journal, session, seq)",
    # Whatever the database's collation is: lines of retired sessions are read by name, page by page.
    "sandgate_records_by_name": "CREATE INDEX IF NOT EXISTS sandgate_records_by_name"
    " ON sandgate_records (journal, session COLLATE \"C\", seq) WHERE left(session, 1) = '~'",
}
"""Name -> how it is made, also where another gateway makes it at the same time. Only what is missing is asked for: IF
NOT EXISTS of an index stops all gateways' writes, and only the tables' owner may say it."""
MISSING = "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
TABLES_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('sandgate tables', 0))"
"""A lock while tables are made: two gateways that make them at the same time would fail each other."""
LOCK = "SELECT pg_try_advisory_lock(hashtextextended('sandgate journal ' || %s, 0)), pg_backend_pid()"
UNLOCK = "SELECT pg_advisory_unlock_all()"
REGISTER = "INSERT INTO sandgate_journals VALUES (%s, %s, 0, 0, 0) ON CONFLICT (name) DO NOTHING"
BEGIN_LIFE = (
    "UPDATE sandgate_journals SET epoch = epoch + 1 WHERE name = %s RETURNING schema, epoch, commits, seq"
)
READ_COMMITS = "SELECT epoch, commits FROM sandgate_journals WHERE name = %s"
LOCK_COMMITS = f"{READ_COMMITS} FOR UPDATE"
"""A standby refuses it, and its own COMMIT waits, as every write does, until the standbys have what is read here."""
COUNT = "SELECT count(*) FROM sandgate_records WHERE journal = %s"
CLAIM = (
    "UPDATE sandgate_journals SET commits = commits + 1, seq = %s WHERE name = %s AND epoch = %s AND commits = %s"
    " RETURNING pg_backend_pid()"
)
INSERT = "INSERT INTO sandgate_records VALUES (%s, %s, %s, %s, %s)"
FORGET = "DELETE FROM sandgate_records WHERE journal = %s AND session = ANY(%s)"
CUT = "DELETE FROM sandgate_records WHERE journal = %s AND seq >= %s"
PLACE = (
    "SELECT epoch, commits, (SELECT coalesce(max(seq), 0) FROM sandgate_records WHERE journal = name)"
    " FROM sandgate_journals WHERE name = %s"
)
# The sizes are known without the bodies, which are fetched only of the rows that are given.
PAGE = (
    "SELECT seq, session, body, crc FROM (SELECT *, sum(length(body)) OVER (ORDER BY seq) - length(body) AS before"
    " FROM (SELECT seq, session, body, crc FROM sandgate_records WHERE journal = %s AND seq > %s AND seq <= %s{}"
    " ORDER BY seq LIMIT %s) AS page) AS sized WHERE before < %s ORDER BY seq"
)
PAGE_OF_ALL, PAGE_OF_SESSION = PAGE.format(""), PAGE.format(" AND session = %s")
PAGE_NAMED = (
    "SELECT seq, session, body, crc FROM sandgate_records WHERE journal = %s"
    " AND left(session, 1) = '~'"
    ' AND (session COLLATE "C", seq) > (%s, %s) AND session COLLATE "C" < %s'
    ' ORDER BY session COLLATE "C", seq LIMIT %s'
)


class PostgresStore(WriterStore):
    """`Store` in one database, by the name of its gateway. Belongs to the event loop that opened it; not fork-safe."""

    def __init__(self, writer: _Writer, cut: int, now: Clock) -> None:
        """Use `open`."""
        super().__init__(writer.name, writer, cut, now)
        self._dsn, self._writer = writer.dsn, writer
        self._readers: deque[Any] = deque()
        writer.on_doubt = self._doubt

    @classmethod
    async def open(cls, dsn: str, name: str, *, now: Clock = time.monotonic) -> Self:
        """Locks, checks and opens the journal `name`, made if absent, and the tables, too.

        Reads every record's checksum. A damaged tail is cut and reported by `status().cut`. Raises Conflict (another
        process has it), CorruptRecord (damage before the end), NewerRecord, JournalUnavailable (the database does not
        answer, or refuses). `now`: seconds, any origin; paces attempts after a failure.
        """
        writer = _Writer(dsn, name)
        try:
            cut = await asyncio.to_thread(writer.open)
        except psycopg.Error as error:
            raise JournalUnavailable(f"journal {name}: {_first_line(error)}") from error
        return cls(writer, cut, now)

    def scan(self, session: str | None = None) -> Iterator[tuple[int, str, Record]]:
        """See `Store.scan`: the records that were durable when the scan began. It has a connection of its own, and
        blocks. Raises JournalUnavailable where the server that answers lacks commits of ours."""
        with self._reader() as (db, upto):
            yield from map(read, _pages(db, self._name, upto, session))

    def scan_named(self, beginning: str, after: str = "") -> Iterator[tuple[int, str, Record]]:
        """See `Store.scan_named`; `beginning` begins with ~. It blocks, and shows what is written meanwhile, too."""
        place = beginning + after, SEQ_MAX
        while True:
            page = (self._name, *place, beyond(beginning), SCAN_ROWS)
            with self._reader() as (db, _):
                rows = db.execute(PAGE_NAMED, page, binary=True).fetchall()
            if not rows:
                return
            yield from map(read, rows)
            place = rows[-1][1], rows[-1][0]

    @contextlib.contextmanager
    def _reader(self) -> Iterator[tuple[Any, int]]:
        """An idle connection, or a new one, whose server has all that this process was told is durable, and the newest
        sequence there; it is given back unless it broke."""
        due = self._writer.epoch, self._writer.commits
        try:
            db, place = self._idle_asked() or self._new_asked()
            try:
                epoch, commits, upto = place or (0, 0, 0)
                if (epoch, commits) < due:
                    self._close_idle()
                    raise JournalUnavailable(f"journal {self._name}: {LACKS}", retry_after=RETRY_S)
                yield db, upto
            except BaseException:
                db.close()
                raise
        except psycopg.Error as error:
            raise JournalUnavailable(f"journal {self._name}: {_first_line(error)}") from error
        if len(self._readers) < READERS_KEPT:
            self._readers.append(db)
        else:
            db.close()

    def _idle_asked(self) -> tuple[Any, Any] | None:
        """A connection and its `PLACE`. None if there is no idle connection, or none any more: the database may have
        been restarted since."""
        try:
            db = self._readers.pop()
        except IndexError:
            return None
        try:
            return db, db.execute(PLACE, (self._name,)).fetchone()
        except BaseException as error:
            gone = isinstance(error, psycopg.Error) and db.closed
            db.close()
            if not gone:
                raise
        self._close_idle()  # the others ended with it
        return None

    def _new_asked(self) -> tuple[Any, Any]:
        db = connect(self._dsn, autocommit=True)
        try:
            return db, db.execute(PLACE, (self._name,)).fetchone()
        except BaseException:
            db.close()
            raise

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):  # readers in other threads take some, too
            while True:
                self._readers.pop().close()

    async def aclose(self) -> None:
        """See `WriterStore.aclose`."""
        try:
            await super().aclose()
        finally:
            self._close_idle()

    def _doubt(self, detail: str) -> None:
        """Called by the writer: the outcome of a commit is not known yet."""
        self._loop.call_soon_threadsafe(lambda: self._health.fail(detail, self._now()))


class _Writer:
    """The database session that holds the lock, and writes."""

    space: Space = UNKNOWN

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn, self.name = dsn, name
        self.db: Any = None
        self.epoch = self.commits = self.seq = self.records = 0
        self.locker = 0
        """The server's process that has the lock."""
        self.fenced = ""
        """Why nothing will ever be written again."""
        self.on_doubt: Callable[[str], None] = lambda detail: None
        self.hurried = threading.Event()

    # -- start ----------------------------------------------------------------------------------------------------

    def open(self) -> int:
        """Opens the journal. Returns how many damaged records were cut. Raises psycopg.Error, and what
        PostgresStore.open says."""
        db = connect(self.dsn)
        try:
            check_unshared(db, self.dsn)
            self._make_tables(db)
            tries = LOCK_TRIES
            while not self._locked(db):
                db.rollback()
                if not (tries := tries - 1):
                    raise Conflict(f"journal {self.name} is in use by another process")
                time.sleep(LOCK_PAUSE_S)
            db.execute(REGISTER, (self.name, SCHEMA))
            schema, self.epoch, self.commits, self.seq = db.execute(BEGIN_LIFE, (self.name,)).fetchone()
            if schema > SCHEMA:
                raise NewerRecord(seen=schema, known=SCHEMA)
            cut = self._cut_tail(db)
            (self.records,) = db.execute(COUNT, (self.name,)).fetchone()
            commit(db)
        except BaseException:
            db.close()
            raise
        self.db = db
        return cut

    def _make_tables(self, db: Any) -> None:
        """Makes what is missing, which is nothing but the first time."""
        if missing := {name for (name,) in db.execute(MISSING, (list(TABLES),))}:
            db.execute(TABLES_LOCK)
            for name, statement in TABLES.items():
                if name in missing:
                    db.execute(statement)
        commit(db)

    def _locked(self, db: Any) -> bool:
        mine, self.locker = db.execute(LOCK, (self.name,)).fetchone()
        return bool(mine)

    def _cut_tail(self, db: Any) -> int:
        first = cut_from(_pages(db, self.name))
        if first is None:
            return 0
        cut = int(db.execute(CUT, (self.name, first)).rowcount)
        log.error("journal %s: cut %d damaged records at the end, from record %d on", self.name, cut, first)
        return cut

    # -- groups ---------------------------------------------------------------------------------------------------

    def commit(self, jobs: Sequence[CommitRequest]) -> None:
        """See `CommitStore.commit`."""
        try:
            db, (seq, records) = self._written(jobs)
        except (psycopg.Error, MemoryError) as error:
            self._roll_back()
            raise NotWritten(_first_line(error)) from error
        try:
            commit(db)
        except psycopg.Error as error:
            if not db.closed:
                self._roll_back()
                raise NotWritten(_first_line(error)) from error
            self._find_out(_first_line(error))
        self.commits, self.seq, self.records = self.commits + 1, seq, records

    def rescue(self, jobs: Sequence[CommitRequest]) -> bool:
        """See `CommitStore.rescue`: a full database is its owner's to mend."""
        return False

    def _written(self, jobs: Sequence[CommitRequest]) -> tuple[Any, tuple[int, int]]:
        """The session, and the result of `_write`. Tries a second time, on a new session, if the old one was gone: it
        may have been idle when the database was restarted. One that may only read is of no use any more."""
        reused = self.db is not None and not self.db.closed
        db = self._session()
        try:
            return db, self._write(db, jobs)
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                db.close()
            if not reused or not db.closed:
                raise
        db = self._session()
        return db, self._write(db, jobs)

    def _write(self, db: Any, jobs: Sequence[CommitRequest]) -> tuple[int, int]:
        """Does everything but the commit. Returns (sequence, records) as they are after it."""
        seq, records = self.seq, self.records
        with db.cursor() as cursor:
            for job in jobs:
                if job.forget:
                    records -= cursor.execute(FORGET, (self.name, list(job.forget))).rowcount
                rows = [
                    (self.name, number, session, body, checksum(number, session, body))
                    for number, (session, body) in enumerate(job.rows, seq + 1)
                ]
                if rows:
                    cursor.executemany(INSERT, rows)  # one round trip
                    seq, records = seq + len(rows), records + len(rows)
            claimed = cursor.execute(CLAIM, (seq, self.name, self.epoch, self.commits)).fetchone()
        if claimed is None:
            self._fence(*(db.execute(READ_COMMITS, (self.name,)).fetchone() or (0, 0)))
        if claimed != (self.locker,):
            raise psycopg.OperationalError(POOLED)  # a pooler whose mode was changed meanwhile
        return seq, records

    def _session(self) -> Any:
        """The connection that has the lock, made anew if it was lost. Raises NotWritten, psycopg.Error."""
        if self.fenced:
            raise NotWritten(self.fenced)
        if self.db is None or self.db.closed:
            self._again()
        return self.db

    def _again(self) -> int:
        """Makes a new session. Returns how many commits the journal has seen. Raises NotWritten, psycopg.Error."""
        db = connect(self.dsn)
        try:
            if not self._locked(db):
                raise NotWritten(
                    "the database still holds the lost session, or another process has the journal"
                )
            epoch, commits = db.execute(LOCK_COMMITS, (self.name,)).fetchone() or (0, 0)
            if epoch != self.epoch or commits < self.commits:
                self._fence(epoch, commits)
            commit(db)
        except BaseException:
            db.close()
            raise
        self.db = db
        log.warning("journal %s: connected again", self.name)
        return int(commits)

    def _find_out(self, error: str) -> None:
        """Finds out whether a commit that was not confirmed was made, and returns if it was. Raises NotWritten if it
        was not, or if the process wants to end before the database answers."""
        while True:
            self.on_doubt(f"not known whether a commit was made: {error}")
            try:
                commits = self._again()
            except (psycopg.Error, NotWritten) as again:
                if self.fenced:
                    raise
                if self.hurried.wait(RETRY_S):
                    raise NotWritten(f"not known whether it was written: {error}") from again
                continue
            if commits == self.commits + 1:
                return
            raise NotWritten(error)

    def _fence(self, epoch: int, commits: int) -> NoReturn:
        """Writes nothing any more: the journal is at another place than this process left it. Raises NotWritten."""
        if (epoch, commits) < (self.epoch, self.commits):
            told = "the database lost commits that were told (a failover?)"
        else:
            told = "another process took over"
        self.fenced = f"{told}: journal {self.name}"
        log.error("%s", self.fenced)
        self._roll_back()
        raise NotWritten(self.fenced)

    def _roll_back(self) -> None:
        if self.db is not None:
            with contextlib.suppress(psycopg.Error):
                self.db.rollback()

    # -- end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """See `CommitStore.close`. Unlocks explicitly, because a session ends a moment after its connection."""
        if self.db is not None:
            with contextlib.suppress(psycopg.Error):
                self.db.execute(UNLOCK)
            with contextlib.suppress(psycopg.Error):
                self.db.close()

    def hurry(self) -> None:
        """See `CommitStore.hurry`."""
        self.hurried.set()

    def release(self) -> None:
        """See `CommitStore.release`: the lock ended with the session."""


def _pages(db: Any, name: str, upto: int = SEQ_MAX, session: str | None = None) -> Iterator[Row]:
    """Rows of the journal, or of one of its sessions, up to a sequence, in order. Few bytes at once, and not as text: a
    row may have RECORD_BYTES_MAX."""
    statement, which = (PAGE_OF_ALL, ()) if session is None else (PAGE_OF_SESSION, (session,))
    seq = 0
    while rows := db.execute(
        statement, (name, seq, upto, *which, SCAN_ROWS, SCAN_BYTES), binary=True
    ).fetchall():
        seq = rows[-1][0]
        yield from rows


def _first_line(error: BaseException) -> str:
    """The first line of an error's text; the others are hints, positions and statements."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
