"""Lease renewal in the background, until a lease is acknowledged, given back or lost.

That covers the time a group waits in the buffer, is trained on, and waits for the checkpoint that holds it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from sandgate.contract.errors import Conflict, NotFound, SandgateError
from sandgate.trainer.client.counters import Counters

log = logging.getLogger(__name__)

RENEWALS_A_LEASE = 3
"""A lease is renewed when a third of it is over, so that a gateway may be away for the other two."""
AT_ONCE = 16
"""Renewals in flight at one gateway at most. Each is an fsync there; those in flight together share one."""
RETRY_S = 1.0
"""Seconds until a renewal that no gateway answered is tried again, and that a round in the background waits for answers
at most: one gateway that is away must not keep the leases of the others from being renewed."""


def awake_clock() -> float:
    """Seconds, monotonic, of the time that a machine sleeps too: leases run out meanwhile. (On Linux `time.monotonic`
    stands still then; on others the same clock does not.)"""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Renewer(Protocol):
    """The call that renewal needs of a client."""

    async def renew(self, lease_id: str, ttl_s: float) -> None: ...


class GatewayRenewer(Protocol):
    """The call that one gateway has for many of its leases."""

    async def renew_leases(self, lease_ids: Sequence[str], ttl_s: float) -> dict[str, str]: ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class RenewedLease:
    """A lease of this trainer, and until when it lasts."""

    lease_id: str
    ttl_s: float
    until: float
    """On the keeper's clock; counted from before the request was sent, so never later than what the gateway says."""
    lost: bool = False
    """Another trainer has the lease, or may have it."""
    over: bool = False
    """The lease was acknowledged or given back."""
    asking: bool = False
    """A renewal in the background is under way."""


@dataclass(slots=True)
class Keeper:
    """Renews in the background from the first hold on. Whoever drops a hold lets its lease run out; a trainer that is
    killed, stopped, or busy without its event loop for that long, too."""

    client: Renewer
    clock: Callable[[], float]
    """Seconds, monotonic."""
    gateway_of: Callable[[str], Hashable] = lambda _lease_id: None
    """Which gateway has the lease of this id."""
    counters: Counters = field(default_factory=Counters)
    holds: WeakSet[RenewedLease] = field(default_factory=WeakSet)
    task: asyncio.Task[None] | None = None
    looks_at: float = float("-inf")
    """When the task looks again, on the clock."""
    sooner: asyncio.Event = field(default_factory=asyncio.Event)
    """There is a lease that is due before then."""
    asked: set[asyncio.Task[bool]] = field(default_factory=set)
    """Renewals in the background; False if one failed."""
    turns: dict[Hashable, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
    )
    """By gateway."""

    def hold(self, lease_id: str, ttl_s: float, asked_at: float) -> RenewedLease:
        """Renew the lease from now on. `asked_at`: when the lease was asked for, on this clock."""
        found = RenewedLease(lease_id, ttl_s, asked_at + ttl_s)
        self.holds.add(found)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._run(), name="renew leases")
        elif self.clock() + self._due_in(found) < self.looks_at:
            self.sooner.set()
        return found

    async def renew(self, hold: RenewedLease) -> bool:
        """Renew the lease now. False if it is lost. Raises Unavailable if that cannot be known."""
        asked_at = self.clock()
        try:
            await self.client.renew(hold.lease_id, hold.ttl_s)
        except (Conflict, NotFound) as error:
            self.lose(hold, error)
            return False
        self._renewed(hold, asked_at)
        return True

    async def renew_together(
        self, holds: Iterable[RenewedLease], gateway_of: Callable[[str], GatewayRenewer | None]
    ) -> list[RenewedLease]:
        """Renew these now, in one request to each gateway: each renewal by itself costs the trainer as much as half a
        group's rows. Returns those that were not renewed so. Raises Unavailable. `gateway_of`: of a lease id."""
        mine: dict[tuple[GatewayRenewer | None, float], list[RenewedLease]] = {}
        for hold in holds:
            mine.setdefault((gateway_of(hold.lease_id), hold.ttl_s), []).append(hold)
        left: list[RenewedLease] = []
        said = await asyncio.gather(
            *(self._renew_at(*key, of_one) for key, of_one in mine.items()), return_exceptions=True
        )
        for part in said:
            if isinstance(part, BaseException):
                raise part
            left += part
        return left

    async def _renew_at(
        self, gateway: GatewayRenewer | None, ttl_s: float, holds: list[RenewedLease]
    ) -> list[RenewedLease]:
        if gateway is None or len(holds) == 1:
            return holds
        asked_at = self.clock()
        try:
            refused = await gateway.renew_leases([hold.lease_id for hold in holds], ttl_s)
        except NotFound:  # a gateway that is older than this call
            return holds
        for hold in holds:
            if hold.lease_id not in refused:
                self._renewed(hold, asked_at)
        return [hold for hold in holds if hold.lease_id in refused]

    def _renewed(self, hold: RenewedLease, asked_at: float) -> None:
        hold.until = asked_at + hold.ttl_s
        self.counters.renewals += 1

    async def sure(self, hold: RenewedLease) -> bool:
        """Whether the lease is still this trainer's. The gateway is asked only if the lease ran out by the clock."""
        if hold.lost:
            return False
        if self.clock() < hold.until:
            return True
        try:
            return await self.renew(hold)
        except SandgateError as error:
            self.lose(hold, error)
            return False

    def lose(self, hold: RenewedLease, error: SandgateError) -> None:
        """This trainer has it no more: that is what its gateway said."""
        if not hold.over and not hold.lost:
            log.warning("lease %s is lost: %s", hold.lease_id, error)
            hold.lost = True
            self.counters.lost += 1

    async def renew_due(self, patience_s: float | None = None) -> float | None:
        """Renew the leases that are due. Returns the seconds until there is something to do again; None without a
        lease. `patience_s`: what is not answered by then goes on by itself; None waits for all."""
        for hold in self._live():
            if not hold.asking and self._due_in(hold) <= 0:
                hold.asking = True
                task = asyncio.get_running_loop().create_task(self._renew_in_turn(hold), name="renew a lease")
                self.asked.add(task)
                task.add_done_callback(self.asked.discard)
        late, failed = False, False
        if self.asked:
            answered, away = await asyncio.wait(set(self.asked), timeout=patience_s)
            late, failed = bool(away), not all(task.result() for task in answered if not task.cancelled())
        if not self._live():
            return None
        wait = min((self._due_in(hold) for hold in self._live() if not hold.asking), default=RETRY_S)
        return max(min(wait, RETRY_S) if late else wait, RETRY_S if failed else 0.0)

    async def _renew_in_turn(self, hold: RenewedLease) -> bool:
        """Returns whether the gateway answered."""
        try:
            async with self.turns[self.gateway_of(hold.lease_id)]:
                if not (hold.over or hold.lost):  # while it waited
                    await self.renew(hold)
        except Exception as error:
            known = isinstance(error, SandgateError)
            log.warning("lease %s is not renewed: %s", hold.lease_id, error, exc_info=not known)
            return False
        finally:
            hold.asking = False
        return True

    def _live(self) -> Iterable[RenewedLease]:
        return [hold for hold in self.holds if not hold.over and not hold.lost]

    def _due_in(self, hold: RenewedLease) -> float:
        return hold.until - hold.ttl_s * (1 - 1 / RENEWALS_A_LEASE) - self.clock()

    async def _run(self) -> None:
        while True:
            self.sooner.clear()
            self.looks_at = float("inf")
            wait = await self.renew_due(RETRY_S)
            if wait is None:
                return
            self.looks_at = self.clock() + wait
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.sooner.wait()

    async def aclose(self) -> None:
        """Stop renewing."""
        tasks = [*self.asked, *([self.task] if self.task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
