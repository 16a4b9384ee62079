"""All gateways of a job as one: groups from whichever has them, weight updates that reach every one or none.

async with cluster_fleet("shop") as fleet:
    async for group in fleet.groups():
        async with group:
            await train(group.trajectories)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from sandgate.contract.errors import NotFound, SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.names import short_hash
from sandgate.contract.trajectory import Json
from sandgate.gateway.client import Lease
from sandgate.trainer import leasing
from sandgate.trainer.client import AsyncRolloutClient, Retries
from sandgate.trainer.cluster import Place, job_gateways
from sandgate.trainer.rollouts import POLL_S, Group, groups

log = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_S = 30.0
"""Between two signs of life; the shortest sensible `trainer.heartbeatSeconds` is a few of these."""
ASK = Retries(attempts=2)
"""Requests for one lease at one gateway: another may have groups while this one restarts."""
AWAY_S = 90.0
"""A gateway that drains and starts again is back in half of that; so long may none of them answer."""
PATIENT = Retries(attempts=15)
"""For the rest, about as long: an acknowledgement that is given up makes a group be trained on twice."""


class AsyncFleet:
    """Several gateways. A lease belongs to the gateway it came from, a task to one of them; the rest goes to all."""

    def __init__(
        self, clients: Mapping[str, AsyncRolloutClient], *, job: str = "", away_s: float = AWAY_S
    ) -> None:
        """`clients`: by gateway name. They are not closed. `away_s`: how long a lease waits while none answers."""
        if not clients:
            raise Unavailable("the job has no gateway yet", retry_after=5.0)
        self.clients, self.job, self._away_s = dict(clients), job, away_s
        self._order = list(clients)
        self._leased: dict[str, str] = {}
        """Lease id -> gateway."""

    # -- groups -------------------------------------------------------------------------------------------------------

    def groups(
        self, *, job: str | None = None, ttl_s: float = leasing.TTL_S, idle_s: float | None = None
    ) -> AsyncIterator[Group]:
        """See `AsyncRolloutClient.groups`. A gateway that is away is passed over until it is back; its groups wait in
        its journal."""
        return groups(self, job=job or self.job or None, ttl_s=ttl_s, idle_s=idle_s)

    async def lease(
        self,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = leasing.TTL_S,
    ) -> Lease | None:
        """Of the first gateway, in turn, that has any. Raises Unavailable only if none answers for a while."""
        asked = leasing.lease(job or self.job or None, max_groups, max_tokens, ttl_s)
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._away_s
        while True:
            away: list[str] = []
            for name in tuple(self._order):
                self._order.remove(name)
                self._order.append(name)
                try:
                    found = await self.clients[name].call(asked, ASK)
                except Unavailable as error:
                    away.append(f"{name}: {error}")
                    continue
                if found is not None:
                    self._leased[found.lease_id] = name
                    return found
            if len(away) < len(self.clients):
                return None
            if clock() >= give_up:
                raise Unavailable("no gateway answers: " + "; ".join(away))
            await asyncio.sleep(POLL_S)

    async def ack(self, lease: Lease) -> None:
        """Trained on, or stored. Raises NotFound for a lease of another fleet."""
        await self._client_of(lease).ack(lease)
        self._leased.pop(lease.lease_id, None)

    async def nack(self, lease: Lease) -> None:
        """Offer it again at once."""
        await self._client_of(lease).nack(lease)
        self._leased.pop(lease.lease_id, None)

    def _client_of(self, lease: Lease) -> AsyncRolloutClient:
        if (name := self._leased.get(lease.lease_id)) is None:
            raise NotFound(f"lease {lease.lease_id}: not of this fleet, or settled")
        return self.clients[name]

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def push_tasks(self, tasks: Sequence[Task], *, last: bool = False) -> None:
        """See `AsyncRolloutClient.push_tasks`. Tasks are spread over the gateways by uid, each of which holds up to
        `tasks.queue.capacity`; `last` is told to all of them, once all tasks are there.

        Where one gateway is away or full, the others have taken their part: push the same again. A task is run once,
        however often it was pushed, and wherever."""
        parts: dict[str, list[Task]] = {}
        names = sorted(self.clients)
        for task in tasks:
            parts.setdefault(names[int(short_hash(task.uid), 16) % len(names)], []).append(task)
        await self._push(parts)
        if last:
            await self._push({name: [] for name in names}, last=True)

    async def _push(self, parts: Mapping[str, Sequence[Task]], *, last: bool = False) -> None:
        """All are tried; raises the first error."""
        said = await asyncio.gather(
            *(self.clients[name].push_tasks(part, last=last, job=self.job) for name, part in parts.items()),
            return_exceptions=True,
        )
        for error in said:
            if isinstance(error, BaseException):
                raise error

    # -- weights ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def weight_update(self, version: int) -> AsyncIterator[None]:
        """Pause every gateway; swap the weights inside the block; then all carry `version` and go on.

        A gateway that cannot be paused is an error before the block, with the others let go again. If the block
        raises, the old weights are still there: the version stays, and turns go on.
        """
        try:
            await self._all(lambda one: one.pause())
            yield
            await self._all(lambda one: one.policy_version(version))
        finally:
            await asyncio.shield(self._resume())

    async def _resume(self) -> None:
        """Every one is tried, whatever the others say: a gateway left on hold holds its agents."""
        said = await asyncio.gather(*(one.resume() for one in self.clients.values()), return_exceptions=True)
        for name, error in zip(self.clients, said, strict=True):
            if isinstance(error, BaseException):
                log.warning("gateway %s is not resumed: %s", name, error)

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """A sign of life, so that the job is not suspended while a trainer only computes. At least one must hear."""
        said = await asyncio.gather(
            *(one.heartbeat() for one in self.clients.values()), return_exceptions=True
        )
        errors = [error for error in said if isinstance(error, BaseException)]
        if len(errors) == len(said):
            raise errors[0]

    @asynccontextmanager
    async def beating(self, every_s: float = HEARTBEAT_S) -> AsyncIterator[None]:
        """Heartbeats while the block runs."""

        async def beat() -> None:
            while True:
                try:
                    await self.heartbeat()
                except SandgateError as error:
                    log.warning("heartbeat: %s", error)
                await asyncio.sleep(every_s)

        task = asyncio.get_running_loop().create_task(beat())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def status(self) -> dict[str, dict[str, Json]]:
        """By gateway. Raises Unavailable if one does not answer."""
        return dict(zip(self.clients, await self._all(lambda one: one.status()), strict=True))

    async def sessions(self, *, state: str | None = None) -> AsyncIterator[dict[str, Json]]:
        """Of all gateways, one after another."""
        for one in self.clients.values():
            async for session in one.sessions(state=state, job=self.job or None):
                yield session

    async def _all(self, ask: Callable[[AsyncRolloutClient], Awaitable[T]]) -> list[T]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(_one(ask(client))) for client in self.clients.values()]
        return [task.result() for task in running]


async def _one(asked: Awaitable[T]) -> T:
    return await asked


@asynccontextmanager
async def fleet(
    origins: Mapping[str, str], key: str, *, job: str = "", **options: Any
) -> AsyncIterator[AsyncFleet]:
    """Gateways by name -> origin. `options`: of AsyncRolloutClient. Closes its connections."""
    options.setdefault("retries", PATIENT)
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(AsyncRolloutClient(origin, key, **options))
            for name, origin in origins.items()
        }
        yield AsyncFleet(clients, job=job)


@asynccontextmanager
async def cluster_fleet(job: str, place: Place = Place(), **options: Any) -> AsyncIterator[AsyncFleet]:  # noqa: B008
    """The gateways of a RolloutJob, found through the API server. Raises NotFound, Forbidden, Unavailable."""
    with contextlib.ExitStack() as stack:
        found = await asyncio.to_thread(stack.enter_context, job_gateways(job, place))
        async with fleet(found.origins, found.key, job=job, **options) as all_of_them:
            yield all_of_them
