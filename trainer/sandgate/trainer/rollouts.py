"""Groups for a trainer: whole, under lease, handed back or acknowledged one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client import Lease

POLL_S = 0.5
"""Between two questions for a group while there is none; a rollout takes seconds to minutes."""


class Leaser(Protocol):
    """What is needed of a client."""

    async def lease(
        self,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = ...,
    ) -> Lease | None: ...
    async def ack(self, lease: Lease) -> None: ...
    async def nack(self, lease: Lease) -> None: ...


@dataclass(slots=True)
class Group:
    """All trajectories of one task, under a lease of their own.

    `async with group:` acknowledges it when the block ends, and gives it back when the block raises. What is neither
    acknowledged nor given back is offered again when its lease expires: a trainer that died loses nothing.
    """

    job: str
    uid: str
    trajectories: tuple[Trajectory, ...]
    """In the gateway's order: by sample, then by trajectory id. Empty if no session gave anything to train on."""
    lease: Lease
    client: Leaser = field(repr=False)
    settled: bool = False

    async def ack(self) -> None:
        """Trained on, or stored: never offered again. Idempotent. Raises Conflict if the lease expired and another
        trainer was given the group: then it is trained on there."""
        if not self.settled:
            await self.client.ack(self.lease)
            self.settled = True

    async def nack(self) -> None:
        """Offer it again at once. Idempotent."""
        if not self.settled:
            await self.client.nack(self.lease)
            self.settled = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.ack()
        else:
            await asyncio.shield(self.nack())  # also when the trainer was cancelled


async def groups(
    client: Leaser, *, job: str | None = None, ttl_s: float, idle_s: float | None, poll_s: float = POLL_S
) -> AsyncIterator[Group]:
    """Groups as they become ready, oldest first, each under its own lease; ends after `idle_s` seconds without one.

    One group at a time: what the trainer has not asked for is nobody's yet, and goes to whoever asks.
    """
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        lease = await client.lease(job=job, max_groups=1, ttl_s=ttl_s)
        if lease is not None:
            rows = [row for found in lease.groups().values() for row in found]
            named = rows[0] if rows else None
            yield Group(named.job if named else "", named.uid if named else "", tuple(rows), lease, client)
            last = loop.time()
        elif idle_s is not None and loop.time() - last >= idle_s:
            return
        else:
            await asyncio.sleep(poll_s)
