"""Which of the groups that come to a fleet are handed out: those that are new, and young enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sandgate.contract.errors import Conflict, NotFound
from sandgate.trainer.client.counters import Counters
from sandgate.trainer.client.fleet_leases import FleetLeases
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.lease_renewal import Keeper
from sandgate.trainer.client.streaming import CLOSE_S

log = logging.getLogger(__name__)

GIVEN_MAX = 10_000
"""As many as a gateway remembers."""


class GroupIntake:
    """What is not handed out is acknowledged, as the trainer has it, or wants it no more."""

    def __init__(
        self,
        leases: FleetLeases,
        keeper: Keeper,
        counters: Counters,
        version: Callable[[], Awaitable[int]],
    ) -> None:
        """`version`: of the trainer's weights."""
        self._leases, self._keeper, self._counters, self._version = leases, keeper, counters, version
        self.given: dict[str, None] = {}
        """Uids of the newest GIVEN_MAX groups that came."""
        self._discarding: dict[str, asyncio.Task[None]] = {}
        """By lease id: groups that are not handed out, and are being acknowledged."""

    async def aclose(self) -> None:
        """Wait for a while until what is discarded is acknowledged."""
        if self._discarding:
            await asyncio.wait(self._discarding.values(), timeout=CLOSE_S)

    async def admit(
        self, group: Group, max_behind: int | None, on_stale: Callable[[Group], None] | None
    ) -> bool:
        """Whether it is handed out, maybe with fewer rows; see `AsyncFleet.groups`."""
        self._note_given(group.uid)
        if not await self._first_time(group):
            return False
        if max_behind is None or not await self._stale(group, max_behind):
            return True

        def discarded() -> None:
            self._counters.stale += 1
            if on_stale is not None:
                on_stale(group)

        await self._discard(group, discarded)
        return False

    def _note_given(self, uid: str) -> None:
        if uid:
            self.given.pop(uid, None)
            self.given[uid] = None
        if len(self.given) > GIVEN_MAX:
            del self.given[next(iter(self.given))]

    async def _first_time(self, group: Group) -> bool:
        ledger, gateways = self._leases.ledger, self._leases.gateways
        rows = ledger.fresh(group.trajectories)
        if len(rows) == len(group.trajectories):
            return True
        if rows:  # a sample was tried again since: its new attempt is all that is new
            group.trajectories = rows
            return True
        if before := ledger.move(group, gateways[group.lease.lease_id]):
            # Its lease ended while this trainer stood still. No checkpoint has it yet: nothing is acknowledged.
            log.info("group %s, trained on, is held under lease %s now", group.uid, group.lease.lease_id)
            for lease in before:
                if lease != group.lease.lease_id:
                    gateways.pop(lease, None)
            return False

        def repeated() -> None:
            ledger.forget(group.lease.sessions)
            self._counters.repeated += 1

        await self._discard(group, repeated)
        return False

    async def _discard(self, group: Group, then: Callable[[], None]) -> None:
        """Acknowledged, and not as something that was trained on now; `then` belongs to it. One that is another's by
        now is passed over. A caller that is cancelled waits for no gateway: it goes on, and who is given the group
        next waits for it, if it is not over by then."""

        async def whole() -> None:
            try:
                await self._leases.ack(group.lease)
            except Conflict as error:
                self._keeper.lose(group.hold, error)
                return
            except NotFound:  # acknowledged before, and forgotten by its gateway
                self._leases.settle(group.lease.lease_id)
            group.settled = group.hold.over = True
            then()

        lease = group.lease.lease_id
        if (task := self._discarding.get(lease)) is None:
            task = self._discarding[lease] = asyncio.ensure_future(whole())
            task.add_done_callback(lambda _: self._discarding.pop(lease))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise
        task.result()

    async def _stale(self, group: Group, max_behind: int) -> bool:
        from sandgate.trainer.client.lag import oldest  # loads Arrow

        seen = oldest(group.trajectories)
        return seen is not None and await self._version() - seen > max_behind


def _log_failure(discarding: asyncio.Task[None]) -> None:
    if not discarding.cancelled() and (error := discarding.exception()) is not None:
        log.warning("a group that is not handed out, whose caller was cancelled: %r", error)
