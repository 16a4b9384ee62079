"""What callers queue and what the writer tells them: one group is one transaction and one fsync. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


class Waiter(Protocol):
    """The part of asyncio.Future that is needed to tell a caller."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(eq=False, slots=True)
class CommitRequest:
    """A change of the journal: first `forget` these sessions' records, then append `bodies` to `session`.

    Nothing in either: a probe, which only proves that the disk takes writes.
    """

    session: str = ""
    bodies: tuple[bytes, ...] = ()
    forget: tuple[str, ...] = ()
    epoch: int = 0
    """How many failures its caller could know of."""
    sync: bool = True
    """False: nobody waits; kept over a failure where order allows."""
    told: Waiter | None = None

    @property
    def size(self) -> int:
        """Bytes that wait, bookkeeping included."""
        return 256 + sum(map(len, self.bodies))


@dataclass(slots=True)
class CommitBatch:
    """What became of the jobs taken together."""

    epoch: int
    records: int
    """In the journal now."""
    done: list[CommitRequest] = field(default_factory=list)
    refused: list[CommitRequest] = field(default_factory=list)
    error: str = ""
    kept: int = 0
    """Unsynced records that wait for the next group."""
    last: bool = False


def after_failure(jobs: Iterable[CommitRequest]) -> tuple[list[CommitRequest], list[CommitRequest]]:
    """(refused, kept) of what was queued when a write failed.

    Who waits is refused. What asked for no sync is kept, in order, unless something before it in its session
    was refused: it may rest on that.
    """
    refused: list[CommitRequest] = []
    kept: list[CommitRequest] = []
    holes: set[str] = set()
    for job in jobs:
        if job.sync or job.session in holes:
            refused.append(job)
            if job.bodies:
                holes.add(job.session)
        else:
            kept.append(job)
    return refused, kept
