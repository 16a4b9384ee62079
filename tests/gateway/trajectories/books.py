"""A lease book and the journal it is the fold of."""

from __future__ import annotations

from collections.abc import Iterable

from sandgate.gateway.journal.records import Acked, GroupClosed, Leased, Nacked, Opened, Record, Sealed
from sandgate.gateway.trajectories.leases import LeaseBook

TTL = 100.0


class Journalled:
    """Every decision is recorded and folded, as the gateway does it. Sessions are named task + sample + attempt:
    "q1.0.1" is attempt 1 at sample 0 of task q1."""

    def __init__(self, size: int = 2, job: str = "shop") -> None:
        self.size, self.job = size, job
        self.now = 1000.0
        self.book = LeaseBook()
        self.log: list[tuple[str, Record]] = []

    def write(self, session: str, record: Record) -> None:
        self.log.append((session, record))
        self.book.fold(session, record)

    def open(self, *sessions: str, size: int | None = None) -> None:
        for session in sessions:
            uid, sample, attempt = session.split(".")
            spec = {"job": self.job, "uid": uid, "sample_index": int(sample), "attempt": int(attempt)}
            self.write(session, Opened(at=self.now, spec={**spec, "group_size": size or self.size}))

    def seal(self, *sessions: str, failure: str | None = None, aborted: bool = False) -> None:
        for session in sessions:
            self.write(session, Sealed(at=self.now, failure_class=failure, aborted=aborted))

    def ended(self, *sessions: str) -> None:
        self.open(*sessions)
        self.seal(*sessions)

    def passes(self, seconds: float) -> Journalled:
        self.now += seconds
        return self

    def lease(self, name: str = "l1", **how: object) -> tuple[str, ...]:
        """The sessions it got."""
        record = self.book.lease(name, self.now, ttl_s=TTL, **how)  # type: ignore[arg-type]
        if record is None:
            return ()
        self.write("", record)
        return record.sessions

    def ack(self, name: str = "l1", sessions: Iterable[str] | None = None) -> tuple[str, ...] | None:
        """The sessions that are now acknowledged; None if they were already."""
        record = self.book.ack(name, self.now, sessions)
        if record is None:
            return None
        self.write("", record)
        return record.sessions

    def nack(self, name: str = "l1") -> Nacked | None:
        record = self.book.nack(name, self.now)
        if record is not None:
            self.write("", record)
        return record

    def renew(self, name: str = "l1") -> float | None:
        """Its new end; None if all of it is acknowledged."""
        record = self.book.renew(name, self.now, ttl_s=TTL)
        if record is None:
            return None
        self.write("", record)
        return record.until

    def close(self, uid: str) -> GroupClosed | None:
        record = self.book.close(self.job, uid, self.now)
        if record is not None:
            self.write("", record)
        return record

    def replayed(self) -> LeaseBook:
        book = LeaseBook()
        for session, record in self.log:
            book.fold(session, record)
        return book

    def compacted(self) -> LeaseBook:
        """Replayed from a journal whose lease records were replaced by a snapshot."""
        kinds = Leased | Acked | Nacked | GroupClosed
        book = LeaseBook()
        for session, record in self.log:
            if not isinstance(record, kinds):
                book.fold(session, record)
        for record in self.book.snapshot(self.now):
            book.fold("", record)
        return book
