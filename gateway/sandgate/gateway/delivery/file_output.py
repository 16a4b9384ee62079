"""Delivery of trajectories to files, without a trainer: each whole group is leased, written, and acknowledged.

A kill at any moment loses no group and doubles none: groups that the process before this one had leased are offered
again, and a group's file has the same name and the same rows however often it is written. No file is written over that
has rows of other sessions: of a task that was retired, and came once more, nothing else is known here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from sandgate.contract.errors import Conflict, JournalUnavailable, NotFound
from sandgate.contract.names import group_name
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.gateway.journal.records import Leased
from sandgate.gateway.service.leasing import Leasing
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.trajectories.leases import LeaseBook

log = logging.getLogger(__name__)

T = TypeVar("T")

SUFFIX = ".parquet"
OURS = "parquet-"
"""Prefix of the ids of our leases."""
LEASE_S = 3600.0
"""Seconds of a lease. A group that cannot be written (see `stuck`) is tried again after it; other groups do not
wait."""
STUCK_SAID = 10
"""Limit of stuck groups that the status names."""
POLL_S = 1.0
"""Seconds between checks for groups that became whole without a session's change: their driver closed them."""
RETRY_S, RETRY_MAX_S = 0.5, 30.0
SILENT_S = 30.0
"""Seconds after which the status says that a store does not answer. Arrow's stores give up after minutes."""


class FileOutput:
    """Writes groups to files. There is one per process and journal, so no two write the same group at a time."""

    def __init__(
        self,
        leasing: Leasing,
        job: str,
        new_id: Callable[[], str],
        shape: Callable[[Iterable[Trajectory]], bytes],
        put: Callable[[str, bytes], None],
        held: Callable[[str], frozenset[str]],
    ) -> None:
        """`put` and `held` block, and are called from one thread. When `put` returns, the file is durable; `held` says
        which sessions a file has rows of, none if there is no file."""
        self._leasing, self._job, self._new_id, self._shape = leasing, job, new_id, shape
        self._put, self._held = put, held
        self._sessions, self._metrics = leasing.sessions, leasing.metrics
        self._thread = ThreadPoolExecutor(1, "output")
        self.groups = 0
        """Groups that this process wrote and acknowledged."""
        self._asked: float | None = None
        """When the store was asked what it has not answered yet."""
        self.problem = ""
        """Why the group at hand is not written yet; empty: nothing is wrong."""
        self.stuck: dict[str, str] = {}
        """File -> why no retry will make it: its group has values that a file cannot hold. The other groups go on."""

    def status(self) -> dict[str, Json]:
        """The state of the output, for GET /v1/status."""
        stuck: dict[str, Json] = dict(islice(self.stuck.items(), STUCK_SAID))
        return {"groups": self.groups, "problem": self.problem or self._silence(), "stuck": stuck}

    def _silence(self) -> str:
        silent = 0.0 if self._asked is None else time.monotonic() - self._asked
        return f"the store has not answered for {silent:.0f} s" if silent > SILENT_S else ""

    def close(self) -> None:
        """Stops writing; does not wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> None:
        """Writes groups for ever. Nobody waits for this task: ended by an error, it would write no more without a
        word, so what no step expects is said and tried again, too."""
        await self._insist(self._give_back)
        while True:
            changed = self._sessions.changed
            if not await self._insist(self._next):
                try:
                    async with asyncio.timeout(POLL_S):
                        await changed.wait()
                except TimeoutError:
                    pass

    async def _give_back(self) -> None:
        """What the process before this one had leased is offered again."""
        for lease in unfinished(self._sessions.book):
            await self._insist(lambda lease=lease: self._leasing.nack(lease))  # type: ignore[misc]

    async def _next(self) -> bool:
        """Writes the next group. Returns whether there was one."""
        if not self._sessions.book.whole:
            return False  # a lease checks all leases there ever were, and this is called at each session's change
        record = await self._insist(self._lease)
        if record is None:
            return False
        if not any(map(self._sessions.book.tells, record.sessions)):  # lost: a file would hold nothing
            await self._insist(lambda: self._acknowledge(record.lease))
            return True
        named = file_name(self._sessions.book, record.sessions)
        data = await self._insist(lambda: self._made(record, named))
        if data is not None:
            await self._insist(lambda: self._stored(named, record.sessions, data))
            await self._insist(lambda: self._acknowledge(record.lease))
            self.stuck.pop(named, None)
            self.groups += 1
            self._metrics.written.inc()
        return True

    async def _acknowledge(self, lease: str) -> None:
        """Who asks for a session itself, as an AReaL trainer does, has it from whoever leased it."""
        try:
            await self._leasing.ack(lease)
        except (Conflict, NotFound) as error:
            log.warning("output: a group was written that somebody else has, too: %s", error)

    async def _stored(self, name: str, sessions: Sequence[str], data: bytes) -> None:
        self._asked = time.monotonic()
        try:
            await off_loop(self._thread, self._write, name, sessions, data)
        finally:
            self._asked = None

    def _write(self, name: str, sessions: Sequence[str], data: bytes) -> None:
        """Each try looks for a name again: a store that refuses everything for a moment, reading as well as writing,
        is asked next when it says what is there."""
        self._put(self._free(name, sessions), data)

    def _free(self, name: str, sessions: Sequence[str]) -> str:
        """The name, or with a number the first one of which no file has rows of other sessions."""
        stem, number, free = name.removesuffix(SUFFIX), 0, name
        while not self._held(free) <= frozenset(sessions):
            number += 1
            free = f"{stem}-{number}{SUFFIX}"
        return free

    async def _made(self, record: Leased, name: str) -> bytes | None:
        """The bytes of a group's file; None if it is stuck. Raises JournalUnavailable: it may be read later."""
        try:
            return (await self._leasing.rows(record, shape=self._shape)).rows
        except JournalUnavailable:
            raise
        except Exception as error:
            log.exception("output: %s cannot be made", name)
            self.stuck[name] = f"{type(error).__name__}: {error}"
            self._metrics.unwritten.inc()
            return None

    async def _lease(self) -> Leased | None:
        return await self._leasing.lease(f"{OURS}{self._new_id()}", job=self._job or None, ttl_s=LEASE_S)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeats `ask` until it succeeds: a storage or journal that is away or full delays everything, and loses
        nothing."""
        pause = RETRY_S
        while True:
            try:
                result = await ask()
            except Exception as error:  # noqa: BLE001 - stores raise what they like
                self._trouble(f"{type(error).__name__}: {error}")
                await asyncio.sleep(pause)
                pause = min(RETRY_MAX_S, 2 * pause)
            else:
                self.problem = ""
                return result

    def _trouble(self, text: str) -> None:
        if text != self.problem:
            log.warning("output: %s", text)
        self.problem = text
        self._metrics.unwritten.inc()


def unfinished(book: LeaseBook) -> list[str]:
    """Ids of our leases that the process before this one neither acknowledged nor gave back."""
    return [lease for lease in book.leases if lease.startswith(OURS) and book.outstanding(lease)]


def file_name(book: LeaseBook, sessions: Sequence[str]) -> str:
    """The name of a group's file: the same until these sessions are acknowledged. A group that gets further samples
    later has a further file."""
    key = book.members[sessions[0]].key
    before = sum(bool(member.acked) for member in book.groups[key].members())
    stem = group_name(key.job, " ".join(filter(None, (key.uid, key.session))))
    return f"{stem}-{before}{SUFFIX}" if before else f"{stem}{SUFFIX}"
