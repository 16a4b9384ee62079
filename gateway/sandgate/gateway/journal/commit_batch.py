"""CommitRequest and CommitBatch of a group commit: one transaction, one fsync; what a failed write refuses. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sandgate.gateway.journal.records import Delivered, Record
from sandgate.gateway.journal.space import UNKNOWN, Space


class Waiter(Protocol):
    """The part of asyncio.Future that a waiting caller is answered by."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(eq=False, slots=True)
class CommitRequest:
    """A change of the journal: first the records of the sessions in `forget` go, then `bodies` are appended to
    `session`, and each of `lines` to the session that it names.

    If both are empty it is a probe, which only proves that the disk takes writes.
    """

    session: str = ""
    bodies: tuple[bytes, ...] = ()
    forget: tuple[str, ...] = ()
    lines: tuple[tuple[str, bytes], ...] = ()
    epoch: int = 0
    """Failures that its caller could know of."""
    vital: bool = False
    """It lets the journal become smaller, sooner or later: the room that is set aside is for it."""
    sync: bool = True
    """False: no caller waits; the request is kept over a failure where order allows."""
    alone: bool = False
    """It rests on nothing that is not durable: without sync it is kept whatever was refused before it."""
    told: Waiter | None = None

    @property
    def size(self) -> int:
        """Bytes that wait, bookkeeping included."""
        return 256 + sum(len(body) for _, body in self.rows)

    @property
    def rows(self) -> tuple[tuple[str, bytes], ...]:
        """(session, body) of each record that is appended, in order."""
        return (*((self.session, body) for body in self.bodies), *self.lines)


def stands_alone(records: Iterable[Record]) -> bool:
    """Do these records rest on durable ones only? An answer is sent once its turn is durable; without the record of
    that, its row is in no lease."""
    return all(isinstance(record, Delivered) for record in records)


@dataclass(slots=True)
class CommitBatch:
    """The outcome of requests that were committed together."""

    epoch: int
    records: int
    """Records in the journal now."""
    done: list[CommitRequest] = field(default_factory=list)
    refused: list[CommitRequest] = field(default_factory=list)
    error: str = ""
    kept: int = 0
    """Unsynced records that wait for the next group commit."""
    last: bool = False
    space: Space = UNKNOWN
    """What the volume has left now."""


def first_in_need(
    jobs: Iterable[CommitRequest],
) -> tuple[list[CommitRequest], list[CommitRequest]]:
    """(vital requests, the others) of those whose write failed. One behind a request of its session that is among the
    others may rest on it, and so is, too; the process's own records, whose session has no name, never do."""
    vital: list[CommitRequest] = []
    others: list[CommitRequest] = []
    holes: set[str] = set()
    for job in jobs:
        if job.vital and job.session not in holes:
            vital.append(job)
        else:
            others.append(job)
            if job.session:
                holes.add(job.session)
    return vital, others


def after_failure(jobs: Iterable[CommitRequest]) -> tuple[list[CommitRequest], list[CommitRequest]]:
    """(refused, kept) of the requests that were queued when a write failed.

    Requests whose callers wait are refused. Those without sync are kept, in order, unless an earlier request of their
    session was refused, on which they may rest.
    """
    refused: list[CommitRequest] = []
    kept: list[CommitRequest] = []
    holes: set[str] = set()
    for job in jobs:
        if job.sync or (job.session in holes and not job.alone):
            refused.append(job)
            if job.bodies:
                holes.add(job.session)
        else:
            kept.append(job)
    return refused, kept
