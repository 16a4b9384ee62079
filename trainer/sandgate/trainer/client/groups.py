"""A leased group as a trainer sees it: its trajectories, and `ack`, `nack` and `renew` of its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from sandgate.contract.errors import Conflict
from sandgate.contract.lease import Lease
from sandgate.contract.trajectory import ARRAY_FIELDS, Trajectory
from sandgate.trainer.client.lease_renewal import Keeper, RenewedLease


class Leaser(Protocol):
    """The lease calls that a group needs of a client."""

    async def lease(
        self,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = ...,
    ) -> Lease | None: ...
    async def renew(self, lease_id: str, ttl_s: float) -> None: ...
    async def ack(self, lease: Lease) -> None: ...
    async def nack(self, lease: Lease) -> None: ...


@dataclass(slots=True, eq=False)
class Group:
    """All trajectories of one task, under a lease of their own.

    `async with group:` acknowledges it when the block ends, and gives it back when the block raises. As long as the
    group is held on to and the event loop runs, its lease is renewed. What is neither acknowledged nor given back is
    offered again when its lease ends: a trainer that died loses nothing.
    """

    job: str
    uid: str
    trajectories: tuple[Trajectory, ...]
    """In the gateway's order: by sample, then by trajectory id. Empty if no session gave anything to train on."""
    lease: Lease
    client: Leaser = field(repr=False)
    keeper: Keeper = field(repr=False)
    hold: RenewedLease = field(repr=False)
    settled: bool = False

    @property
    def lost(self) -> bool:
        """Whether another trainer has the group, or may have it: do not train on it then."""
        return self.hold.lost

    @property
    def nbytes(self) -> int:
        """Bytes of its token arrays and binaries."""
        return nbytes(self.trajectories)

    async def renew(self) -> None:
        """Renew the lease now, for its whole time. Call it before an optimizer step that comes late. Raises
        Conflict if the lease was lost, Unavailable if the gateway does not answer."""
        if self.hold.lost or not await self.keeper.renew(self.hold):
            raise Conflict(f"group {self.uid}: its lease ended, and another trainer may have it")

    async def ack(self) -> None:
        """Acknowledge the group: it was trained on or stored, and is never offered again. Idempotent. Raises Conflict
        if the lease ended and another trainer was given the group: then it is trained on there."""
        if not self.settled:
            await self.client.ack(self.lease)
            self.settled = self.hold.over = True
            self.keeper.counters.acked += 1

    async def nack(self) -> None:
        """Give the group back: it is offered again at once. Idempotent."""
        if not self.settled:
            await self.client.nack(self.lease)
            self.settled = self.hold.over = True
            self.keeper.counters.nacked += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.ack()
        else:
            await asyncio.shield(self.nack())  # also when the trainer was cancelled


def nbytes(rows: Iterable[Trajectory]) -> int:
    """What the token arrays and binaries of these rows take in memory."""
    total = 0
    for row in rows:
        for name in ARRAY_FIELDS:
            values = getattr(row, name)
            total += len(values) * values.itemsize
        total += len(row.multimodal or b"") + len(row.routed_experts or b"")
    return total
