"""Group commit: one writer thread, many callers per transaction and fsync; shared by the journals on disk.

The event loop encodes and queues. The writer takes everything queued as one transaction, so that one fsync serves all,
and wakes the loop once per group. Only the writer touches the backend and only the loop the rest, so there are no
locks. Records that nobody waits for linger in the loop: each waking of the writer costs a turn two switches of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, Self

from sandgate.contract.errors import JournalUnavailable
from sandgate.gateway.journal.commit_batch import (
    CommitBatch,
    CommitRequest,
    after_failure,
    first_in_need,
    stands_alone,
)
from sandgate.gateway.journal.records import Delivered, Record, Sealed, TasksForgotten
from sandgate.gateway.journal.rows import QUEUE_BYTES_MAX, RETRY_S, JournalHealth, bodies, encoded
from sandgate.gateway.journal.space import Space
from sandgate.gateway.journal.store import NO_LINES, StoreStatus

log = logging.getLogger(__name__)

LINGER_S = 0.025
"""Seconds that an unsynced record may wait for a synced one to share its fsync: less than a generation takes, so that a
killed process still knows what it had begun; and about what agents take from an answer to the next request."""
GROUP_BYTES_MAX = 16 << 20
"""Size limit of one transaction, so that in a burst the first callers do not wait for the last."""
VITAL = Sealed, Delivered, TasksForgotten
"""Records of sessions and of the task queue without which nothing would ever be acknowledged and retired."""

Clock = Callable[[], float]
Jobs = queue.SimpleQueue[list[CommitRequest] | None]
"""What the loop hands to the writer, in order; None: no more."""


class NotWritten(Exception):
    """No part of the group was made durable; the text says why."""


class CommitStore(Protocol):
    """The backend that makes groups durable. All but `hurry` and `release` are called by the writer alone."""

    records: int
    """Records in the journal now."""

    @property
    def space(self) -> Space:
        """What its volume has left, measured now. Raises nothing."""
        ...

    def commit(self, jobs: Sequence[CommitRequest]) -> None:
        """Commits all requests in order as one transaction; durable when it returns. Raises NotWritten. An empty
        request only proves that writes are taken."""
        ...

    def rescue(self, jobs: Sequence[CommitRequest]) -> bool:
        """Commits vital requests of a group that was not written, at the cost of the room that is set aside. False:
        they are not written either, or there is no such room."""
        ...

    def close(self) -> None:
        """Closes the backend after the last commit. Raises nothing."""
        ...

    def hurry(self) -> None:
        """Called by the loop: the process wants to end, so a commit that waits for its database need not wait
        longer."""
        ...

    def release(self) -> None:
        """Called by the loop after `close`: another process may have the journal."""
        ...


class WriterStore(ABC):
    """`Store` over a backend, less its `scan`. Belongs to the event loop that made it; not fork-safe.

    A caller cancelled while it waits in `append` does not know whether its records became durable: shield it.
    """

    def __init__(self, name: str, backend: CommitStore, cut: int, now: Clock) -> None:
        self._name, self._backend, self._cut, self._now = name, backend, cut, now
        self._loop = asyncio.get_running_loop()
        self._records, self._space = backend.records, backend.space
        self._health = JournalHealth()
        self._queued = self._epoch = self._kept = 0
        self._closed: asyncio.Future[None] | None = None
        self._released = False
        self.transactions = 0
        """Transactions since the journal was opened; records appended / transactions = how well groups form."""
        self._jobs: Jobs = queue.SimpleQueue()
        self._lingering: list[CommitRequest] = []
        self._timer: asyncio.TimerHandle | None = None
        """Hands over what lingers, unless a caller that waits does before."""
        writer = Writer(backend, self._jobs, self._tell)
        threading.Thread(target=writer.run, name=f"journal {name}", daemon=True).start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def append(self, session: str, *records: Record, sync: bool = True) -> None:
        """See `Store.append`. Records are written in the order of calls.

        After a failure everything queued behind it is refused, too. Only records without sync are kept and written with
        the next group, unless an earlier record of their session was refused, on which they may rest (see
        `stands_alone`). While the journal is unhealthy, one call per second is tried and the others are refused at
        once. Raises JournalUnavailable, also while QUEUE_BYTES_MAX wait; TooLarge (a record over RECORD_BYTES_MAX);
        InvalidBody (a session id that is not Unicode).

        What lets a journal become smaller (VITAL, and the process's own records) is always tried.
        """
        if records:
            vital = sync and (not session or all(isinstance(record, VITAL) for record in records))
            alone = stands_alone(records)
            request = CommitRequest(session, bodies(session, records), vital=vital, sync=sync, alone=alone)
            await self._submit(request)

    @abstractmethod
    def scan(self, session: str | None = None) -> Iterator[tuple[int, str, Record]]:
        """See `Store.scan`."""

    @abstractmethod
    def scan_named(self, beginning: str, after: str = "") -> Iterator[tuple[int, str, Record]]:
        """See `Store.scan_named`."""

    async def retire(self, sessions: Sequence[str], lines: Mapping[str, Record] = NO_LINES) -> None:
        """See `Store.retire`."""
        await self._submit(CommitRequest(forget=tuple(sessions), lines=encoded(lines), vital=True))

    async def replace(self, session: str, *records: Record) -> None:
        """Replaces the session's records in one transaction: how a long log is compacted."""
        await self._submit(CommitRequest(session, bodies(session, records), forget=(session,), vital=True))

    def status(self) -> StoreStatus:
        """The journal's health. While it is unhealthy, this call queues a probe write once a second, so that readiness
        heals without traffic."""
        if not self._health.good and self._closed is None and self._health.due(self._now()):
            self._put(CommitRequest())
        return StoreStatus(self._health.good, self._health.detail, self._records, self._cut)

    @property
    def space(self) -> Space:
        """See `Store.space`."""
        return Space(self._space.free - self._queued, self._space.size)

    async def aclose(self) -> None:
        """See `Store.aclose`. Raises JournalUnavailable if unsynced records cannot be written; closed all the same."""
        if self._closed is None:
            self._closed = self._loop.create_future()
            self._hand_over()
            self._jobs.put(None)
        self._backend.hurry()
        await asyncio.shield(self._closed)
        if not self._released:
            self._released = True
            self._backend.release()
            if self._kept:
                raise JournalUnavailable(
                    f"closed without {self._kept} unsynced records: {self._health.detail}"
                )

    async def _submit(self, job: CommitRequest) -> None:
        if self._closed is not None:
            raise JournalUnavailable("the journal is closed")
        if self._queued + job.size > QUEUE_BYTES_MAX:
            raise JournalUnavailable(f"{self._queued} bytes wait for the disk", retry_after=RETRY_S)
        if not job.vital:
            self._health.admit(self._now())
        if not job.sync:
            self._put(job)
            return
        job.told = committed = self._loop.create_future()
        self._put(job)
        await committed

    def _put(self, job: CommitRequest) -> None:
        job.epoch = self._epoch
        self._queued += job.size
        self._lingering.append(job)
        if job.sync:
            self._hand_over()
        elif self._timer is None:
            self._timer = self._loop.call_later(LINGER_S, self._hand_over)

    def _hand_over(self) -> None:
        """Gives the writer what lingers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lingering:
            self._jobs.put(self._lingering)
            self._lingering = []

    def _tell(self, group: CommitBatch) -> None:
        """Called by the writer: wakes the loop once per group."""
        with contextlib.suppress(RuntimeError):  # the loop was closed before the store: no caller is left
            self._loop.call_soon_threadsafe(self._settle, group)

    def _settle(self, group: CommitBatch) -> None:
        """Called on the loop: answers the callers of a group."""
        self._epoch, self._records, self._kept = group.epoch, group.records, group.kept
        self._space = group.space
        self._queued -= sum(job.size for job in (*group.done, *group.refused))
        if group.error:
            if self._health.good:
                log.error("journal %s refuses writes: %s", self._name, group.error)
            self._health.fail(group.error, self._now())
        elif group.done:
            self.transactions += 1
            if not self._health.good and not all(job.vital for job in group.done):
                log.warning("journal %s takes writes again", self._name)
                self._health.heal()
        for job in group.done:
            if job.told is not None and not job.told.done():
                job.told.set_result(None)
        for job in group.refused:
            if job.told is not None and not job.told.done():
                job.told.set_exception(JournalUnavailable(f"not written: {group.error}", retry_after=RETRY_S))
        if group.last:
            self._refuse_late(group.error)
            self._closed = self._closed or self._loop.create_future()
            if not self._closed.done():
                self._closed.set_result(None)

    def _refuse_late(self, error: str) -> None:
        """What was queued after the writer's last look, and before the loop knew that it had ended."""
        while not self._jobs.empty():
            for job in self._jobs.get() or ():
                if job.told is not None and not job.told.done():
                    job.told.set_exception(
                        JournalUnavailable(f"not written: {error or 'the journal is closed'}")
                    )


class Writer:
    """The thread that owns the backend."""

    def __init__(
        self,
        backend: CommitStore,
        jobs: Jobs,
        tell: Callable[[CommitBatch], None],
    ) -> None:
        self.backend, self.jobs, self.tell = backend, jobs, tell
        self.epoch = 0
        self.kept: list[CommitRequest] = []

    def run(self) -> None:
        """Writes until None is queued. Whatever happens, every caller that waits gets an answer."""
        last, taken = False, list[CommitRequest]()
        try:
            while not last:
                taken, last = self.gather()
                self.tell(self.attempt(taken))
                taken = []
        finally:
            self.backend.close()
            while not self.jobs.empty():
                taken += self.jobs.get() or ()
            self.tell(self.refuse(taken, "the writer stopped" if taken or not last else "", last=True))

    def gather(self) -> tuple[list[CommitRequest], bool]:
        """The requests queued by now, at least one, up to about GROUP_BYTES_MAX; and whether they are the last."""
        jobs: list[CommitRequest] = []
        size = 0
        while not jobs or (size < GROUP_BYTES_MAX and not self.jobs.empty()):
            handed = self.jobs.get()
            if handed is None:
                return jobs, True
            jobs += handed
            size += sum(job.size for job in handed)
        return jobs, False

    def attempt(self, jobs: list[CommitRequest]) -> CommitBatch:
        """Commits the kept requests, then these, in one transaction."""
        if any(job.epoch < self.epoch for job in jobs):
            return self.refuse(jobs, "queued behind a write that failed")
        pending = self.kept + jobs
        if not pending:
            return CommitBatch(self.epoch, self.records, space=self.backend.space)
        try:
            self.backend.commit(pending)
        except NotWritten as error:
            self.epoch += 1
            vital, _ = first_in_need(pending)
            if not vital or not self.backend.rescue(vital):
                return self.refuse(jobs, str(error))
            batch = self.refuse([job for job in jobs if job not in vital], str(error))
            batch.done = vital
            return batch
        self.kept = []
        return CommitBatch(self.epoch, self.records, done=pending, space=self.backend.space)

    def refuse(self, jobs: list[CommitRequest], error: str, *, last: bool = False) -> CommitBatch:
        refused, self.kept = after_failure(self.kept + jobs)
        kept = sum(len(job.bodies) for job in self.kept)
        return CommitBatch(
            self.epoch,
            self.records,
            refused=refused,
            error=error,
            kept=kept,
            last=last,
            space=self.backend.space,
        )

    @property
    def records(self) -> int:
        return self.backend.records
