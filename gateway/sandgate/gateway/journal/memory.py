"""MemoryStore: a journal in memory over a disk that can be made to fail, for simulation and tests. (pure)

`MemoryDisk` is what survives a crash; `MemoryStore` is a process that has it open. The same conformance suite runs on
this and on SQLite.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from sandgate.contract.errors import Conflict, JournalUnavailable
from sandgate.gateway.journal.commit_batch import CommitRequest, after_failure, stands_alone
from sandgate.gateway.journal.records import Record
from sandgate.gateway.journal.rows import (
    QUEUE_BYTES_MAX,
    RETRY_S,
    JournalHealth,
    Row,
    bodies,
    checksum,
    cut_from,
    encoded,
    read,
)
from sandgate.gateway.journal.space import UNKNOWN, Space
from sandgate.gateway.journal.store import NO_LINES, StoreStatus


@dataclass(eq=False)
class MemoryDisk:
    """Rows that are durable, and the faults to come."""

    rows: list[Row] = field(default_factory=list)
    seq: int = 0
    """The last ever given."""
    failure: str = ""
    """While set, every write fails with this text: "database or disk is full"."""
    fail_next: int = 0
    """That many writes fail, then all is well."""
    owner: object | None = None
    """Who has it open."""
    size: int = 0
    """Bytes of bodies that it takes: more is a write that fails. 0: any."""

    def check(self) -> str:
        """The error of the write that is about to be made, or empty."""
        if self.failure:
            return self.failure
        if self.fail_next:
            self.fail_next -= 1
            return "disk I/O error"
        return ""

    @property
    def space(self) -> Space:
        """What is left of `size`."""
        if not self.size:
            return UNKNOWN
        return Space(self.size - sum(len(body) for _, _, body, _ in self.rows), self.size)

    def carry_out(self, job: CommitRequest) -> None:
        """Make it durable."""
        if job.forget:
            self.rows[:] = [row for row in self.rows if row[1] not in job.forget]
        for session, body in job.rows:
            self.seq += 1
            self.rows.append((self.seq, session, body, checksum(self.seq, session, body)))

    def tear(self, index: int = -1) -> None:
        """Damage a row's last byte, as a torn write of the tail or (another index) rotten media would."""
        seq, session, body, crc = self.rows[index]
        self.rows[index] = (seq, session, body[:-1] + bytes([body[-1] ^ 0xFF]), crc)


class MemoryStore:
    """`Store` over a MemoryDisk. `gate` is awaited before each commit (what an fsync takes): whatever is queued
    when the first caller gets through is one group. `now`: as for SqliteStore; without it every call after a failure
    is an attempt. Unsynced records wait for the next synced call, or for `aclose`.
    """

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        gate: Callable[[], Awaitable[None]] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """Opens the disk: raises Conflict if another store has it, CorruptRecord, NewerRecord."""
        self.disk = disk if disk is not None else MemoryDisk()
        if self.disk.owner is not None:
            raise Conflict("the journal is in use by another process")
        first = cut_from(self.disk.rows)
        sound = [row for row in self.disk.rows if first is None or row[0] < first]
        self._cut = len(self.disk.rows) - len(sound)
        self.disk.rows[:] = sound
        self.disk.owner = self
        self._gate = gate
        self._health = JournalHealth()
        self._now = now or (lambda: self._health.retry_at)
        self._waiting: list[CommitRequest] = []
        self._open = True
        self.transactions = 0

    @classmethod
    async def open(
        cls,
        disk: MemoryDisk | None = None,
        *,
        gate: Callable[[], Awaitable[None]] | None = None,
        now: Callable[[], float] | None = None,
    ) -> Self:
        """As SqliteStore.open."""
        return cls(disk, gate=gate, now=now)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def crash(self) -> None:
        """The process dies: what was not durable is gone, who waits is refused. The disk can be opened again."""
        for job in self._waiting:
            _tell(job, "the process died")
        self._waiting.clear()
        self._release()

    async def append(self, session: str, *records: Record, sync: bool = True) -> None:
        """See `SqliteStore.append`."""
        if records:
            alone = stands_alone(records)
            await self._submit(CommitRequest(session, bodies(session, records), sync=sync, alone=alone))

    def scan(self, session: str | None = None) -> Iterator[tuple[int, str, Record]]:
        """See `SqliteStore.scan`."""
        for row in list(self.disk.rows):
            if session is None or row[1] == session:
                yield read(row)

    def scan_named(self, beginning: str, after: str = "") -> Iterator[tuple[int, str, Record]]:
        """See `Store.scan_named`."""
        found = (row for row in self.disk.rows if row[1].startswith(beginning) and row[1] > beginning + after)
        yield from map(read, sorted(found, key=lambda row: (row[1], row[0])))

    async def retire(self, sessions: Sequence[str], lines: Mapping[str, Record] = NO_LINES) -> None:
        """See `Store.retire`."""
        await self._submit(CommitRequest(forget=tuple(sessions), lines=encoded(lines)))

    async def replace(self, session: str, *records: Record) -> None:
        """See `SqliteStore.replace`."""
        await self._submit(CommitRequest(session, bodies(session, records), forget=(session,)))

    def status(self) -> StoreStatus:
        """See `SqliteStore.status`."""
        if not self._health.good and self._open and self._health.due(self._now()):
            self._waiting.append(CommitRequest())
            self._commit()
        return StoreStatus(self._health.good, self._health.detail, len(self.disk.rows), self._cut)

    @property
    def space(self) -> Space:
        """See `Store.space`."""
        return self.disk.space

    async def aclose(self) -> None:
        """See `SqliteStore.aclose`."""
        if self._open:
            if self._waiting:
                self._commit()
            self._release()
            if self._waiting:
                kept = sum(len(job.bodies) for job in self._waiting)
                raise JournalUnavailable(f"closed without {kept} unsynced records: {self._health.detail}")

    def _release(self) -> None:
        self._open = False
        if self.disk.owner is self:
            self.disk.owner = None

    async def _submit(self, job: CommitRequest) -> None:
        if not self._open:
            raise JournalUnavailable("the journal is closed")
        if sum(waiting.size for waiting in self._waiting) + job.size > QUEUE_BYTES_MAX:
            raise JournalUnavailable("too much waits for the disk", retry_after=RETRY_S)
        self._health.admit(self._now())
        self._waiting.append(job)
        if not job.sync:
            return
        job.told = committed = _Told()
        if self._gate is not None:
            await self._gate()
        if not committed.done():
            self._commit()
        if committed.error is not None:
            raise committed.error

    def _commit(self) -> None:
        """Everything that waits, as one group."""
        group, self._waiting = self._waiting, []
        wanted = sum(len(body) for job in group if not job.forget for _, body in job.rows)
        full = "database or disk is full" if wanted > self.disk.space.free else ""
        if error := self.disk.check() or full:
            refused, self._waiting = after_failure(group)
            self._health.fail(error, self._now())
            for job in refused:
                _tell(job, f"not written: {error}")
            return
        for job in group:
            self.disk.carry_out(job)
            _tell(job)
        self.transactions += 1
        self._health.heal()


class _Told:
    """What a caller waits for; it looks again after the gate."""

    def __init__(self) -> None:
        self.settled = False
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.settled

    def set_result(self, result: None, /) -> None:
        self.settled = True

    def set_exception(self, exception: BaseException, /) -> None:
        self.settled, self.error = True, exception


def _tell(job: CommitRequest, error: str = "") -> None:
    if job.told is None or job.told.done():
        return
    if error:
        job.told.set_exception(JournalUnavailable(error, retry_after=RETRY_S))
    else:
        job.told.set_result(None)
