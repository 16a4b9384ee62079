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
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakSet

from sandgate.contract import control_api
from sandgate.contract.choices import EngineKind
from sandgate.contract.errors import Conflict, SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.lease import LEASE_TTL_S, Lease
from sandgate.contract.names import short_hash
from sandgate.contract.trajectory import Json
from sandgate.gateway.client import Retries, new_lease_id
from sandgate.trainer.client import lease_call, weight_update
from sandgate.trainer.client.cluster import ClusterPlace, job_gateways, trainer_key
from sandgate.trainer.client.counters import Counters
from sandgate.trainer.client.fleet_leases import FleetLeases
from sandgate.trainer.client.fleet_progress import Progress, progress_of, without_weights
from sandgate.trainer.client.group_intake import GroupIntake
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.lease_renewal import Keeper, awake_clock
from sandgate.trainer.client.rollout_client import AsyncRolloutClient, warn_of_finished
from sandgate.trainer.client.streaming import POLL_S, Ahead, Ask, Groups, Supply, Wanted
from sandgate.trainer.client.trained import Note, TrainedGroups, entries

log = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_S = 30.0
"""Seconds between two heartbeats; the shortest sensible `trainer.heartbeatSeconds` is a few of these."""
BEAT_S = 10.0
"""For a gateway's answer to one of them; they go on to the others whatever becomes of it."""
ONCE = Retries(attempts=1)
AWAY_S = 90.0
"""So long may none of them answer; a gateway that drains and starts again is back in half of that."""
RESTART_S = 45.0
"""Of these, what a gateway takes at most that drains and starts again: a stream that is to end when it is idle waits so
much longer for gateways, not for ever."""
PATIENT = Retries(attempts=15)
"""For the rest, about as long: an acknowledgement that is given up makes a group be trained on twice."""


class AsyncFleet:
    """Several gateways. A lease belongs to the gateway it came from, a task to one of them; the rest goes to all.

    Everything here needs the event loop: leases are not renewed while a step blocks it. Train in a thread
    (`asyncio.to_thread`), or use `blocking.Fleet`, which has a loop of its own.
    """

    def __init__(
        self,
        clients: Mapping[str, AsyncRolloutClient],
        *,
        job: str = "",
        away_s: float = AWAY_S,
        clock: Callable[[], float] = awake_clock,
    ) -> None:
        """`clients`: by gateway name. They are not closed. `away_s`: how long a lease waits while none answers.
        `clock`: seconds."""
        if not clients:
            raise Unavailable("the job has no gateway yet", retry_after=5.0)
        self.clients, self.job, self._away_s = dict(clients), job, away_s
        self.counters = Counters()
        self._ledger = TrainedGroups()
        self._leases = FleetLeases(self.clients, self._ledger, self.counters, away_s)
        self.keeper = Keeper(self, clock, self._leases.gateways.get, self.counters)
        self._intake = GroupIntake(self._leases, self.keeper, self.counters, self.version)
        self._streams: WeakSet[Supply] = WeakSet()
        self._version: int | None = None
        self._updating = asyncio.Lock()
        self._in_doubt: set[str] = set()
        """Engines that a weight update left paused."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back what was leased ahead, and renew no more; the clients stay open. What was handed out and is not
        settled is offered again when its lease ends."""
        await self._intake.aclose()
        await self._leases.aclose()
        await asyncio.gather(*(stream.aclose() for stream in list(self._streams)))
        await self.keeper.aclose()

    @property
    def engines(self) -> tuple[str, ...]:
        """URLs of the engines of a run on this machine; none of others, whose gateways `engine_urls` asks."""
        return ()

    def over(self) -> bool:
        """It is known that no group will ever come again."""
        return False

    # -- groups -------------------------------------------------------------------------------------------------------

    def groups(
        self,
        *,
        job: str | None = None,
        ttl_s: float = LEASE_TTL_S,
        idle_s: float | None = None,
        ahead: Ahead | None = None,
        max_behind: int | None = None,
        on_stale: Callable[[Group], None] | None = None,
        poll_s: float = POLL_S,
    ) -> Groups:
        """See `AsyncRolloutClient.groups`. A gateway that is away is passed over until it is back; its groups wait in
        its journal. Where none answers for 90 s, or with `idle_s` for 45 s more than that if it is less, the stream
        raises Unavailable.

        `max_behind`: a group with a token that an older policy version than the trainer's minus this has sampled is
        never handed out: it is acknowledged unseen, counted in `counters.stale`, and `on_stale` is told (push its task
        again under another uid, if you want it: a task is run once). Groups of the note given to `resume_from` are not
        handed out again, either.
        """

        async def admit(group: Group) -> bool:
            return await self._intake.admit(group, max_behind, on_stale)

        stream = Groups(
            self,
            self.keeper,
            self._asks,
            job=job or self.job or None,
            ttl_s=ttl_s,
            idle_s=idle_s,
            ahead=ahead or Ahead(),
            admit=admit,
            over=self.over,
            poll_s=poll_s,
            away_s=self._away_s if idle_s is None else min(self._away_s, idle_s + RESTART_S),
        )
        self._streams.add(stream.supply)
        return stream

    def _asks(self) -> Mapping[str, Ask]:
        """How each gateway is asked for groups. In a subclass: of those that there are now."""
        return {name: partial(self._ask, name) for name in self._leases.order}

    async def _ask(self, gateway: str, wanted: Wanted, lease_id: str = "") -> list[Lease]:
        return await self._leases.ask(gateway, wanted, lease_id)

    async def lease(
        self,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = LEASE_TTL_S,
        lease_id: str = "",
    ) -> Lease | None:
        """Of the first gateway, in turn, that has any. Raises Unavailable only if none answers for a while. `lease_id`:
        a new id (`new_lease_id`), for whoever must know it even if the answer never arrives; the same again until there
        is an answer is the same lease. What a gateway leased in a call that ended without its answer is given back
        before it is asked by another id."""
        lease_id = lease_id or new_lease_id()
        asked = lease_call.lease(
            job=job or self.job or None,
            max_groups=max_groups,
            max_tokens=max_tokens,
            ttl_s=ttl_s,
            lease_id=lease_id,
        )
        return await self._leases.lease(lease_id, asked, self.over)

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        """See `AsyncRolloutClient.renew`."""
        await self._leases.renew(lease_id, ttl_s)

    async def ack(self, lease: Lease) -> None:
        """Acknowledge a lease: its groups were trained on or stored. Raises NotFound for a lease of another fleet."""
        await self._leases.ack(lease)

    async def nack(self, lease: Lease) -> None:
        """Give the lease back: its groups are offered again at once."""
        await self._leases.nack(lease)

    # -- the trainer's checkpoint -------------------------------------------------------------------------------------

    def trained(self, *groups: Group) -> None:
        """The weights have learned from these. They stay leased, and are acknowledged by `commit` once a checkpoint has
        them. Raises Conflict for one whose lease was lost: then leave it out of the step; and for one that is settled
        already. None of them is noted then."""
        for group in groups:
            if group.lease.lease_id not in self._leases.gateways:
                raise Conflict(
                    f"group {group.uid} was acknowledged or given back already: `trained` keeps a group until a"
                    " checkpoint has it, and `commit` acknowledges it"
                )
            self._ledger.check(group)
        for group in groups:
            self._ledger.add(group, self._leases.gateways[group.lease.lease_id])

    async def checkpoint(self) -> Note:
        """What belongs into the trainer's checkpoint beside the weights: JSON, and what `commit` wants. Its groups are
        this trainer's for the whole time of their leases from now; within it, write the checkpoint and commit.

        Raises Conflict if a lease was lost since its group was `trained`: another trainer may have learned from it,
        too, so write no checkpoint, and go back to the last one. Raises Unavailable if a gateway does not answer."""
        holds = await self.keeper.renew_together(
            self._ledger.unnoted(), lambda lease: self.clients.get(self._leases.gateways.get(lease, ""))
        )
        said = await asyncio.gather(*map(self.keeper.renew, holds), return_exceptions=True)
        for hold, kept in zip(holds, said, strict=True):
            if isinstance(kept, BaseException):
                raise kept
            if not kept:
                raise Conflict(
                    f"lease {hold.lease_id} was lost: another trainer may have trained on its group"
                )
        return self._ledger.note(await self.version())

    async def commit(self, note: Note) -> None:
        """The checkpoint with this note is durable: acknowledge its groups, and no others. Raises Unavailable if a
        gateway does not answer; its groups stay in the next note."""
        for error in await self._leases.commit(entries(note)):
            raise error

    async def resume_from(self, note: Note) -> None:
        """First thing after a restart, with the note of the checkpoint that was loaded: what it holds is acknowledged,
        and never handed out again. A gateway that is away gets its acknowledgements when it offers the groups again.

        Next make a weight update with the checkpoint's weights, under a version that was never used (`version()` + 1):
        engines may have newer weights than the checkpoint, and gateways may be on hold. Raises NewerRecord,
        CorruptRecord."""
        self._leases.load(entries(note))
        before = self.counters.acked
        for error in await self._leases.commit(entries(note)):
            log.warning("what the checkpoint holds is acknowledged later: %s", error)
        self.counters.repeated += self.counters.acked - before
        self.counters.acked = before

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def push_tasks(self, tasks: Sequence[Task], *, last: bool = False) -> tuple[str, ...]:
        """See `AsyncRolloutClient.push_tasks`. Tasks are spread over the gateways by uid, each of which holds up to
        `tasks.queue.capacity`; `last` is told to all of them, once all tasks are there. Those whose groups this fleet
        was given have finished, too, whatever the gateways know.

        Where one gateway is away or full, the others have taken their part: push the same again. A task is run once,
        however often it was pushed, and wherever."""
        parts: dict[str, list[Task]] = {}
        names = sorted(self.clients)
        for task in tasks:
            parts.setdefault(names[int(short_hash(task.uid), 16) % len(names)], []).append(task)
        given = [task.uid for task in tasks if task.uid in self._intake.given]
        known = await self._push(parts)
        warn_of_finished([uid for uid in given if uid not in known])
        if last:
            await self._push({name: [] for name in names}, last=True)
        return tuple(dict.fromkeys((*given, *known)))

    async def _push(self, parts: Mapping[str, Sequence[Task]], *, last: bool = False) -> set[str]:
        """Push to every gateway in `parts`, also after a failure of one; raises the first error. Uids of those that had
        finished before."""
        finished: set[str] = set()
        said = await asyncio.gather(
            *(self.clients[name].push_tasks(part, last=last, job=self.job) for name, part in parts.items()),
            return_exceptions=True,
        )
        for answer in said:
            if isinstance(answer, BaseException):
                raise answer
            finished.update(answer)
        return finished

    # -- weights ------------------------------------------------------------------------------------------------------

    async def version(self) -> int:
        """Policy version of the trainer's weights: of the last weight update here, or the newest that a gateway was
        told. Of an update that failed after some engines had loaded the weights (`Update.reload`), here or in a
        process before this one, it is that update's: there are tokens of it. So no token is of `version() + 1` yet. A
        rank that makes no updates is told by `told_version`."""
        if self._version is None:
            said = await self._all(lambda one: one.status())
            newest = (max(int(one["policy_version"]), int(one.get("newest_label", 0))) for one in said)
            self.told_version(max(newest))
        assert self._version is not None
        return self._version

    def told_version(self, version: int) -> None:
        """Somebody else updated the weights that this process trains."""
        self._version = self.counters.version = version

    @asynccontextmanager
    async def weight_update(
        self,
        version: int,
        *,
        mode: weight_update.Mode = "keep",
        engines: Iterable[str] = (),
        kind: EngineKind | str = EngineKind.VLLM,
        drain_s: float = weight_update.DRAIN_S,
        adapter: str = "",
    ) -> AsyncIterator[weight_update.Update]:
        """Pause every gateway; swap the weights inside the block; then all carry `version` and go on.

        `engines`: URLs of servers of this `kind` that are paused too, labelled with the version, and have their prefix
        caches cleared; the trainer must reach them. `mode`: what becomes of running generations (see
        `weight_update.Mode`). `adapter`: the version is that of a LoRA adapter which vLLM servers have loaded under
        this name, and a server without it is not used; nothing is paused then but new turns, and generations that run
        end under the version that they began with.

        A gateway or engine that cannot be paused is an error before the block, with the others let go again. If the
        block raises, the old weights must still be there: the version stays, and turns go on, but at an engine that was
        paused before. What fails afterwards is a `weight_update.HalfUpdated`. Updates wait for one another.
        """
        async with self._updating, weight_update.controls(engines, kind=kind) as controls:
            began = self.keeper.clock()
            update: weight_update.Update | None = None
            try:
                async with weight_update.weight_update(
                    self.clients,
                    version,
                    mode=mode,
                    engines=controls,
                    drain_s=drain_s,
                    adapter=adapter,
                    in_doubt=self._in_doubt,
                ) as update:
                    yield update
                    self.told_version(version)
                    self.counters.weight_updates += 1
            except BaseException:
                if update is not None and update.loaded:
                    # Its tokens are told apart from those of whatever is loaded next.
                    self.told_version(max(version, self._version or 0))
                raise
            finally:
                self.counters.paused_s += self.keeper.clock() - began

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Tell the gateways that the trainer lives, so that the job is not suspended while it only computes. Each is
        asked once, and waited for 10 s at most: one that hangs keeps no beat from the others. Raises if no gateway
        answers."""
        beats = (one.call(control_api.heartbeat(), ONCE, timeout_s=BEAT_S) for one in self.clients.values())
        said = await asyncio.gather(*beats, return_exceptions=True)
        errors = [error for error in said if isinstance(error, BaseException)]
        if len(errors) == len(said):
            raise errors[0]

    @asynccontextmanager
    async def beating(self, every_s: float = HEARTBEAT_S) -> AsyncIterator[None]:
        """Send heartbeats while the block runs. Engines that wait for a weight update are told in the log."""

        before: tuple[str, ...] = ()

        async def look() -> None:
            nonlocal before
            if (bare := await self.engines_without_weights()) and bare != before:
                log.warning("make the weight update again: %s was started anew", ", ".join(bare))
            before = bare

        # Apart: a gateway that hangs is asked for its status for long, and the others want their beats meanwhile.
        tasks = [
            asyncio.get_running_loop().create_task(_every(every_s, do), name="heartbeats")
            for do in (self.heartbeat, look)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def status(self) -> dict[str, dict[str, Json]]:
        """The status of every gateway, by its name. Raises Unavailable if one does not answer."""
        return dict(zip(self.clients, await self._all(lambda one: one.status()), strict=True))

    async def progress(self) -> Progress:
        """Sums over the gateways that answer; the others are named."""
        return progress_of(await self._statuses())

    async def engine_urls(self) -> tuple[str, ...]:
        """Engines as the gateways reach them, sorted; for `weight_update(..., engines=...)` of a trainer that reaches
        them too: on the same machine, or in a pod (docs/cluster.md). Raises Unavailable if a gateway does not answer,
        as it may know one that no other does."""
        said = await self.status()
        return tuple(sorted({str(engine["url"]) for one in said.values() for engine in one["engines"]}))

    async def engines_without_weights(self) -> tuple[str, ...]:
        """URLs of engines that were started anew since the last weight update, as far as gateways that answer know.
        They take no turns before it is made again, with the same version or a new one: of a job whose engines are all
        so, no group comes. Only of engines whose weights are labelled (see `weight_update`)."""
        return without_weights(await self._statuses())

    async def _statuses(self) -> dict[str, dict[str, Json] | BaseException]:
        said = await asyncio.gather(*(one.status() for one in self.clients.values()), return_exceptions=True)
        return dict(zip(self.clients, said, strict=True))

    async def sessions(self, *, state: str | None = None) -> AsyncIterator[dict[str, Json]]:
        """The sessions of all gateways, one gateway after another."""
        for one in self.clients.values():
            async for session in one.sessions(state=state, job=self.job or None):
                yield session

    async def _all(self, ask: Callable[[AsyncRolloutClient], Awaitable[T]]) -> list[T]:
        said = await asyncio.gather(*map(ask, self.clients.values()), return_exceptions=True)
        for one in said:
            if isinstance(one, BaseException):
                raise one
        return [one for one in said if not isinstance(one, BaseException)]


async def _every(seconds: float, do: Callable[[], Awaitable[None]]) -> None:
    """For ever; what fails is logged."""
    while True:
        try:
            await do()
        except Exception as error:
            log.warning("heartbeat: %s", error, exc_info=not isinstance(error, SandgateError))
        await asyncio.sleep(seconds)


@asynccontextmanager
async def fleet(
    origins: Mapping[str, str], key: str | os.PathLike[str], *, job: str = "", **options: Any
) -> AsyncIterator[AsyncFleet]:
    """A fleet of the gateways in `origins`, by name. `options`: of AsyncRolloutClient. Closes its connections.

    `key`: or the path of a file with it (of a mounted Secret), read again when the key has expired."""
    options.setdefault("retries", PATIENT)
    if not isinstance(key, str):
        file = Path(key)

        async def newer_key() -> str:
            try:
                return (await asyncio.to_thread(file.read_text)).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise Unavailable(f"the key's file {file}: {error}", retry_after=1.0) from error

        options.setdefault("newer_key", newer_key)
        key = await newer_key()
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(AsyncRolloutClient(origin, key, **options))
            for name, origin in origins.items()
        }
        yield await stack.enter_async_context(AsyncFleet(clients, job=job))


@asynccontextmanager
async def cluster_fleet(
    job: str,
    place: ClusterPlace = ClusterPlace(),  # noqa: B008 - frozen
    **options: Any,
) -> AsyncIterator[AsyncFleet]:
    """The gateways of a RolloutJob, found through the API server. Raises NotFound, Forbidden, Unavailable.

    Its key expires one day, and is read again from the job's Secret when it has."""

    async def newer_key() -> str:
        return await asyncio.to_thread(trainer_key, job, place)

    options.setdefault("newer_key", newer_key)
    with contextlib.ExitStack() as stack:
        found = await asyncio.to_thread(stack.enter_context, job_gateways(job, place))
        async with fleet(found.origins, found.key, job=job, **options) as all_of_them:
            yield all_of_them
