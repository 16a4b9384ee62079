"""Leases: whole groups are lent to a trainer or to files, renewed, acknowledged, given back; and their rows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from sandgate.contract.errors import Conflict, NotFound
from sandgate.contract.lease import LEASE_TTL_S, lease_name
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.journal.records import Acked, Leased, Record
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.rows import Rows, shaped
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.trajectories.linearize import Facts

T = TypeVar("T")

log = logging.getLogger("sandgate.gateway")


@dataclass(slots=True, repr=False)
class Leasing:
    """One per process. A change is durable when its call returns. Raises what the lease book and the journal raise."""

    sessions: Sessions
    metrics: GatewayMetrics
    facts: Callable[[], Facts]
    """What is recorded beside every trajectory."""
    exports: Executor
    """Where rows are made: whole trees may have to be read back from the journal."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Session -> why a trainer is not given its rows. Its group stays in the journal when it is acknowledged."""

    async def lease(
        self,
        lease_id: str,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = LEASE_TTL_S,
        whole_groups: bool = True,
    ) -> Leased | None:
        """Groups, oldest first; None if there are none."""
        record = self.sessions.book.lease(
            lease_id,
            self.sessions.by_leases(),
            ttl_s=ttl_s,
            size=self._tokens,
            job=job,
            max_groups=max_groups,
            max_tokens=max_tokens,
            whole_groups=whole_groups,
        )
        await self.sessions.settle(record)
        return record

    async def lease_several(
        self,
        lease_id: str,
        most: int,
        *,
        job: str | None,
        max_groups: int,
        max_tokens: int | None,
        ttl_s: float,
        whole_groups: bool,
    ) -> list[Leased]:
        """Up to `most` leases, made durable together; fewer if there are not so many groups."""
        now, found, left = self.sessions.by_leases(), list[Leased](), max_tokens
        try:
            for number in range(most):
                record = self.sessions.book.lease(
                    lease_name(lease_id, number),
                    now,
                    ttl_s=ttl_s,
                    size=self._tokens,
                    job=job,
                    max_groups=max_groups,
                    max_tokens=left,
                    whole_groups=whole_groups,
                    at_least_one=not number,
                )
                if record is None:
                    break
                found.append(record)
                if left is not None:
                    left = max(0, left - sum(map(self._tokens, record.sessions)))
        except BaseException:
            for record in found:
                self.sessions.book.undo(record)
            raise
        await self.sessions.settle(*found)
        return found

    def _tokens(self, session_id: str) -> int:
        return self.sessions.get(session_id).tokens

    def again_several(self, lease_id: str, most: int) -> list[Leased]:
        """The leases that were made by one request with this id, as far as they hold."""
        found = []
        for number in range(most):
            if (record := self.again(lease_name(lease_id, number))) is None:
                break
            found.append(record)
        return found

    def again(self, lease_id: str) -> Leased | None:
        """The lease that has this id already, if it still holds."""
        now = self.sessions.by_leases()
        lease = self.sessions.book.again(lease_id, now)
        if lease is None:
            return None
        return Leased(at=now, lease=lease.lease, sessions=lease.sessions, until=lease.until)

    async def renew(self, lease_id: str, ttl_s: float) -> float | None:
        """Until when the trainer has it now (unix seconds); None if it acknowledged all of it."""
        record = self.sessions.book.renew(lease_id, self.sessions.by_leases(), ttl_s=ttl_s)
        await self.sessions.settle(record)
        return None if record is None else record.until

    async def renew_several(self, lease_ids: Iterable[str], ttl_s: float) -> dict[str, str]:
        """The same for many leases, in one write. Those that are refused, and why."""
        now = self.sessions.by_leases()
        return await self._several(lease_ids, lambda one: self.sessions.book.renew(one, now, ttl_s=ttl_s))

    async def ack(self, lease_id: str) -> None:
        """The trainer has its rows for good. Idempotent."""
        await self.sessions.settle(self._acked(lease_id))

    async def ack_several(self, lease_ids: Iterable[str]) -> dict[str, str]:
        """The same for many leases, in one write. Those that are refused, and why; the others are acknowledged."""
        return await self._several(lease_ids, self._acked)

    def _acked(self, lease_id: str) -> Acked | None:
        return self.sessions.book.ack(lease_id, self.sessions.now(), left_out=self.left_out)

    async def _several(
        self, lease_ids: Iterable[str], decide: Callable[[str], Record | None]
    ) -> dict[str, str]:
        refused, decided = dict[str, str](), []
        for lease_id in dict.fromkeys(lease_ids):
            try:
                decided.append(decide(lease_id))
            except (NotFound, Conflict) as error:
                refused[lease_id] = f"{error.reason}: {error}"
        await self.sessions.settle(*decided)
        return refused

    async def nack(self, lease_id: str) -> None:
        """The trainer gives its rows back. Idempotent."""
        await self.sessions.settle(self.sessions.book.nack(lease_id, self.sessions.now()))

    async def close_group(self, job: str, uid: str) -> None:
        """No more sessions count for this task: what is sealed and good now is its group. Idempotent."""
        await self.sessions.settle(self.sessions.book.close(job, uid, self.sessions.now()))

    async def hand_over(self, session: Session, lease_id: str) -> None:
        """Acknowledges an ended session that the trainer was given otherwise, as by a lease of its own. Idempotent."""
        decided = self.sessions.book.hand_over(
            lease_id,
            session.session_id,
            self.sessions.now(),
            leased_at=self.sessions.by_leases(),
            left_out=self.left_out,
        )
        await self.sessions.settle(*decided)

    async def rows(self, *leases: Leased, shape: Callable[[Iterable[Trajectory]], T]) -> Rows[T]:
        """The trajectories of leases, by group, sample and trajectory id, as `shape` gives them."""
        names = [name for lease in leases for name in lease.sessions if self.sessions.book.tells(name)]
        return await self.rows_of([self.sessions.get(name) for name in names], shape)

    async def rows_of(self, sessions: list[Session], shape: Callable[[Iterable[Trajectory]], T]) -> Rows[T]:
        """Trajectories of ended sessions, made and shaped in a thread. A session that cannot be shaped is named, and
        left out. Raises Gone if one of them is retired, or was meanwhile: what was read may be half of it."""
        _refuse_retired(sessions)
        facts = self.facts()
        copies = [copy.copy(session) for session in sessions]  # one may be evicted meanwhile

        def work() -> Rows[T]:
            return shaped(copies, lambda session: self.sessions.trajectories(session, facts), shape)

        rows = await off_loop(self.exports, work)
        _refuse_retired(sessions)
        for session_id, why in rows.failed.items():
            if session_id not in self.left_out:
                log.error("session %s is left out of what trainers are given: %s", session_id, why)
                self.metrics.left_out.inc()
                self.left_out[session_id] = why
        return rows


def _refuse_retired(sessions: Iterable[Session]) -> None:
    for session in sessions:
        session.refuse_if_retired()
