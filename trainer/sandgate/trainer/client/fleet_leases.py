"""The leases of a fleet: which gateway each is of, how they are asked for, and how they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from sandgate.contract import control_api
from sandgate.contract.attach import NoRun
from sandgate.contract.control_call import ControlCall, may_retry
from sandgate.contract.errors import Conflict, NotFound, SandgateError, Unavailable
from sandgate.contract.lease import Lease
from sandgate.gateway.client import Retries
from sandgate.trainer.client import lease_call
from sandgate.trainer.client.counters import Counters
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import CLOSE_S, POLL_S, Wanted
from sandgate.trainer.client.trained import Entry, TrainedGroups

log = logging.getLogger(__name__)

ASK = Retries(attempts=2)
"""Requests for one lease at one gateway: another may have groups while this one restarts."""


class FleetLeases:
    """A lease belongs to the gateway that it came from. What ends here leaves the ledger, too."""

    def __init__(
        self,
        clients: dict[str, AsyncRolloutClient],
        ledger: TrainedGroups,
        counters: Counters,
        away_s: float,
    ) -> None:
        """`clients`: by gateway name; the fleet's own, to which gateways may come (`order` must name them, too).
        `away_s`: how long `lease` waits while none answers."""
        self.clients, self.ledger, self.counters, self._away_s = clients, ledger, counters, away_s
        self.gateways: dict[str, str] = {}
        """The gateway of each lease, by lease id."""
        self.order = list(clients)
        """Gateways in the order in which they are asked next."""
        self.unheard: set[tuple[str, str]] = set()
        """(gateway, lease id) of calls of `lease` that ended without that gateway's answer: it may hold a group for
        nobody. Such a gateway is asked for nothing new before, so there is one of each, and of each call at once."""

    async def aclose(self) -> None:
        """Give back what gateways may hold for nobody, as far as they answer."""
        names = {name for name, _ in self.unheard}
        if not names:
            return
        asked = [asyncio.ensure_future(self._give_back(name)) for name in names]
        _, late = await asyncio.wait(asked, timeout=CLOSE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    async def ask(self, gateway: str, wanted: Wanted, lease_id: str = "") -> list[Lease]:
        """Groups of one gateway, each under a lease of its own."""
        found = await self.clients[gateway].call(lease_call.several(wanted, lease_id), ASK)
        self.gateways.update(dict.fromkeys((lease.lease_id for lease in found), gateway))
        return found

    async def lease(
        self, lease_id: str, asked: ControlCall[Lease | None], over: Callable[[], bool]
    ) -> Lease | None:
        """See `AsyncFleet.lease`. `asked`: with this id."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._away_s
        unheard: set[tuple[str, str]] = set()
        try:
            while True:
                away: list[str] = []
                for name in tuple(self.order):
                    self.order.remove(name)
                    self.order.append(name)
                    try:
                        await self._give_back(name, but=lease_id)
                        unheard.add((name, lease_id))
                        found = await self.clients[name].call(asked, ASK)
                    except NoRun:
                        if over():
                            unheard.clear()  # nobody is there to take it back, and nobody to want it
                            return None
                        raise
                    except SandgateError as error:
                        if not may_retry(error):
                            raise
                        away.append(f"{name}: {error}")
                        continue
                    unheard.discard((name, lease_id))
                    self.unheard.discard((name, lease_id))
                    if found is not None:
                        self.gateways[found.lease_id] = name
                        return found
                if len(away) < len(self.clients):
                    return None
                if clock() >= give_up:
                    raise Unavailable("no gateway answers: " + "; ".join(away))
                await asyncio.sleep(POLL_S)
        finally:
            self.unheard |= unheard

    async def _give_back(self, gateway: str, *, but: str = "") -> None:
        """What the gateway may hold for nobody, but for this lease. Raises what `may_retry` takes."""
        for lost in [one for one in self.unheard if one[0] == gateway and one[1] != but]:
            try:
                await self.clients[gateway].call(control_api.nack(lost[1]), ASK)
            except SandgateError as error:  # NotFound: it never came to lease it
                if may_retry(error):
                    raise
            self.unheard.discard(lost)

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        """At its gateway. Raises NotFound for a lease of another fleet, as `ack` and `nack` do."""
        await self._client_of(lease_id).renew(lease_id, ttl_s)

    async def ack(self, lease: Lease) -> None:
        """Acknowledge a lease: its groups were trained on or stored."""
        await self._client_of(lease.lease_id).ack(lease)
        self.settle(lease.lease_id)

    async def nack(self, lease: Lease) -> None:
        """Give it back."""
        await self._client_of(lease.lease_id).nack(lease)
        self.settle(lease.lease_id)

    def settle(self, lease_id: str) -> None:
        """It ended: acknowledged or given back."""
        self.gateways.pop(lease_id, None)
        self.ledger.drop(lease_id)

    def _client_of(self, lease_id: str) -> AsyncRolloutClient:
        if (name := self.gateways.get(lease_id)) is None:
            raise NotFound(f"lease {lease_id}: not of this fleet, or settled")
        return self.clients[name]

    def load(self, noted: Iterable[Entry]) -> None:
        """What a checkpoint of an earlier life of this trainer holds."""
        for entry in noted:
            self.ledger.put(entry)
            if entry.gateway in self.clients:
                self.gateways[entry.lease] = entry.gateway

    async def commit(self, noted: Iterable[Entry]) -> list[BaseException]:
        """A checkpoint on disk has these: acknowledge them, at each gateway in one write. What the gateways said to
        those that are not acknowledged now."""
        mine: dict[str, list[Lease]] = {}
        for one in noted:
            lease_id = self.ledger.current(one.lease)
            if lease_id not in self.ledger.entries:
                continue
            self.ledger.durable.add(lease_id)
            if lease_id in self.gateways:
                lease = Lease(lease_id, 0.0, one.sessions, ())
                mine.setdefault(self.gateways[lease_id], []).append(lease)
            else:
                log.warning("lease %s is of gateway %s, which is not here", lease_id, one.gateway)
        said = await asyncio.gather(*(self._commit(*one) for one in mine.items()), return_exceptions=True)
        return [error for error in said if isinstance(error, BaseException)]

    async def _commit(self, gateway: str, leases: Sequence[Lease]) -> None:
        client = self.clients[gateway]
        try:
            refused = await client.ack_leases(leases)
        except NotFound:  # a gateway that is older than this call
            refused = {}
            for lease in leases:
                try:
                    await client.ack(lease)
                except (NotFound, Conflict) as error:
                    refused[lease.lease_id] = f"{error.reason}: {error}"
        for lease in leases:
            why = refused.get(lease.lease_id, "")
            if not why:
                self.counters.acked += 1
            if not why or why.startswith(
                NotFound.reason
            ):  # or acknowledged before, and forgotten by its gateway
                self.settle(lease.lease_id)
            else:
                log.warning("lease %s was trained on, but is not acknowledged: %s", lease.lease_id, why)
