"""Stream of leased groups: prefetched within bounds of groups and bytes, from all gateways at once.

A gateway is asked for several groups in one request, and gives each of them under a lease of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Self

from sandgate.contract.attach import NoRun
from sandgate.contract.control_call import may_retry
from sandgate.contract.errors import Conflict, NotFound, SandgateError, Unavailable
from sandgate.contract.lease import LEASES_MAX, Lease
from sandgate.gateway.client import new_lease_id
from sandgate.trainer.client.groups import Group, Leaser
from sandgate.trainer.client.lease_renewal import Keeper, awake_clock

POLL_S = 0.5
"""Between two questions for a group while there is none; a rollout takes seconds to minutes."""
POLL_FIRST = 0.1
"""Of that, after the first question that finds none; doubles from there."""
AWAY_REST_S = 30.0
"""A gateway that is away rests as long as its last question took, at most so long: one that hangs is asked now and
then."""
QUIET_S = 30.0
"""See `Well.left_alone`."""
CLOSE_S = 5.0
"""What a request that is under way when the stream is closed may take; what it leases is given back, and so much
longer may that take."""
CLOCK_S = 0.001
"""What a loop's clock tells apart: uvloop's has whole milliseconds, and may say a hair less than was waited for."""
TOKEN_BYTES = 13
"""Of the arrays of a response token: id, logprob, mask, version."""
MANY = 8
"""Groups ahead from which on they are asked for by halves."""
REQUEST_BYTES = 64 << 20
"""Of what one request is asked for; a group that is larger comes alone."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much is leased before the trainer asks for it: what one trainer holds, another cannot have."""

    groups: int = 0
    """0: a group is leased when the trainer asks. From 8 on, half of them are asked for at a time, so that one request
    brings several."""
    nbytes: int = 1 << 30
    """Of token arrays; nothing more is leased once this is reached, so one group may go beyond it, and one for each
    gateway that is being asked."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a gateway is asked for."""

    groups: int
    max_tokens: int | None
    ttl_s: float
    job: str | None


Ask = Callable[[Wanted, str], Awaitable[list[Lease]]]
"""One gateway's groups, each under a lease of its own, the first of this id; none if there is none now. The same id
again is the same leases, for whoever lost the answer. Raises what `may_retry` takes, and Conflict: it is over."""


@dataclass(slots=True, eq=False)
class Well:
    """One gateway, as the stream knows it."""

    name: str
    ask: Ask
    task: asyncio.Task[list[Lease]] | None = None
    asking: int = 0
    """Groups that it is being asked for."""
    asked_at: float = 0.0
    call: int = -1
    """The number of the trainer's call that it was asked for last."""
    empty_at: float = float("-inf")
    """When the last question was sent that found no group."""
    rests_until: float = float("-inf")
    """On the loop's clock, which `poll_s` is of."""
    rest_s: float = 0.0
    away: SandgateError | None = None
    """What the last question met with."""
    unheard_at: float = 0.0
    """On the loop's clock: when the first question was sent that no answer came to since."""
    lease_id: str = ""
    """Of a question that is not answered: what it leased is asked for again."""
    lease_asked_at: float = 0.0
    """When it was asked first."""
    over: bool = False
    """No group would ever come again when the last question was sent."""
    dry: bool = False
    """It was so, and there was none."""

    def left_alone(self, now: float) -> bool:
        """Nobody wanted a group of it for a while: what its last question met with says nothing of now."""
        return now > self.rests_until + QUIET_S


def never() -> bool:
    """Groups may always come."""
    return False


async def everything(group: Group) -> bool:
    """Hand out all groups."""
    return True


def groups(
    client: Leaser,
    *,
    job: str | None = None,
    ttl_s: float,
    idle_s: float | None,
    ahead: Ahead | None = None,
    poll_s: float = POLL_S,
    ask: Ask | None = None,
) -> Groups:
    """Groups as they become ready, oldest first, each under its own lease; ends after `idle_s` seconds without one.
    `ask`: for several at once, if the client can."""

    async def one(wanted: Wanted, _lease_id: str) -> list[Lease]:
        lease = await client.lease(job=wanted.job, max_groups=1, ttl_s=wanted.ttl_s)
        return [] if lease is None else [lease]

    asks = {"": ask or one}
    keeper = Keeper(client, awake_clock)
    return Groups(
        client,
        keeper,
        lambda: asks,
        job=job,
        ttl_s=ttl_s,
        idle_s=idle_s,
        ahead=ahead or Ahead(),
        poll_s=poll_s,
    )


@dataclass(slots=True, eq=False, weakref_slot=True)
class Supply:
    """What stands behind a stream: asks gateways, and keeps what they gave until somebody takes it."""

    client: Leaser
    keeper: Keeper
    asks: Callable[[], Mapping[str, Ask]]
    """The gateways that there are now, by name."""
    job: str | None
    ttl_s: float
    ahead: Ahead
    poll_s: float
    over: Callable[[], bool]
    away_s: float
    """How long all gateways may be away, from the first question that none of them answered. One that is under way is
    waited for, as it may bring a group."""
    buffer: deque[tuple[Group, int]] = field(default_factory=deque)
    nbytes: int = 0
    wells: dict[str, Well] = field(default_factory=dict)
    """In turn: the next one to be asked is first."""
    waiting: int = 0
    """Callers that want a group now."""
    asked: int = 0
    """Calls for a group so far."""
    awake_at: float = float("inf")
    """When the loop was here last, on the keeper's clock."""
    task: asyncio.Task[None] | None = None
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    # -- what the trainer sees ----------------------------------------------------------------------------------------

    def pop(self) -> Group:
        group, size = self.buffer.popleft()
        self._count(-1, -size)
        return group

    def put_back(self, group: Group) -> None:
        """As the next."""
        size = group.nbytes
        self.buffer.appendleft((group, size))
        self._count(1, size)

    def tell(self) -> None:
        """Whoever waits looks again."""
        self.news.set()
        self.news = asyncio.Event()

    @property
    def empty_at(self) -> float:
        """When the last round of questions began that found no group anywhere."""
        return min((well.empty_at for well in self.wells.values()), default=float("-inf"))

    @property
    def dry(self) -> bool:
        """All that there ever will be was leased."""
        return bool(self.wells) and all(well.dry for well in self.wells.values())

    def run(self) -> None:
        """Ask in the background. Raises what the last attempt to do so has raised; the next call tries again."""
        if self.task is not None and self.task.done():
            ended, self.task = self.task, None
            ended.result()
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._fill(), name="lease groups")
            self.task.add_done_callback(lambda _: self.tell())

    async def aclose(self) -> None:
        """Lease no more, and give back what nobody took."""
        self.ended = True
        self.tell()
        if self.task is not None:
            _, late = await asyncio.wait([self.task], timeout=CLOSE_S)
            if late:
                self.task.cancel()
                await asyncio.wait([self.task])
        left = [asyncio.ensure_future(self.pop().nack()) for _ in range(len(self.buffer))]
        if left:  # what a gateway does not take back runs out
            _, late = await asyncio.wait(left, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        try:
            while not self.ended and not self.dry:
                self._look_for_gateways()
                await self._wake_up()
                now = asyncio.get_running_loop().time()
                self._ask_more(now)
                await self._something(now)
                for well in [one for one in self.wells.values() if one.task is not None and one.task.done()]:
                    self._answered(well)
                self._all_away()
        finally:
            await self._last_answers()

    async def _wake_up(self) -> None:
        """A trainer that slept, as in a long step on this loop, renews what it holds before it asks for more: its own
        groups would be what it is given."""
        before, self.awake_at = self.awake_at, self.keeper.clock()
        if self.awake_at - before > self.ttl_s:
            await self.keeper.renew_due()

    def _look_for_gateways(self) -> None:
        for name, ask in self.asks().items():
            if name not in self.wells:
                self.wells[name] = Well(name, ask, rest_s=self.poll_s * POLL_FIRST)

    def _ask_more(self, now: float) -> None:
        ready = [well for well in self.wells.values() if self._may_ask(well, now)]
        rested = [well for well in ready if well.rests_until <= now]
        room = self._room()
        for number, well in enumerate(chosen := rested or ready):
            if room <= 0:
                return
            share = min(-(-room // (len(chosen) - number)), LEASES_MAX)
            room -= share
            self._ask(well, share)

    def _may_ask(self, well: Well, now: float) -> bool:
        """One that had nothing rests, unless somebody came meanwhile who wants a group, and no other may have one."""
        if well.task is not None:
            return False
        if well.rests_until <= now:
            return True
        asking = any(one.asking for one in self.wells.values() if one.away is None)
        return not asking and self.waiting > len(self.buffer) and well.call != self.asked

    def _room(self) -> int:
        """How many groups to ask for now. From one that was away nothing is expected."""
        coming = len(self.buffer) + sum(well.asking for well in self.wells.values() if well.away is None)
        if coming and self._bytes_left() <= 0:
            return 0
        if self.waiting <= coming and self.ahead.groups >= MANY and coming > self.ahead.groups // 2:
            return 0  # not each time that one is taken, or each would be a request of its own
        return max(self.ahead.groups, self.waiting) - coming

    def _bytes_left(self) -> int:
        asking = sum(1 for well in self.wells.values() if well.asking)
        return (
            self.ahead.nbytes - self.nbytes - asking * REQUEST_BYTES
            if asking
            else self.ahead.nbytes - self.nbytes
        )

    def _ask(self, well: Well, count: int) -> None:
        tokens = max(1, min(self._bytes_left(), REQUEST_BYTES) // TOKEN_BYTES)
        wanted = Wanted(count, tokens if count > 1 else None, self.ttl_s, self.job)
        now = asyncio.get_running_loop().time()
        if well.away is None or well.left_alone(now):
            well.unheard_at = now
        well.asking, well.asked_at, well.call, well.over = count, self.keeper.clock(), self.asked, self.over()
        if not well.lease_id:
            well.lease_id, well.lease_asked_at = new_lease_id(), well.asked_at
        well.task = asyncio.ensure_future(well.ask(wanted, well.lease_id))
        well.task.add_done_callback(lambda _: self.tell())
        self.wells[well.name] = self.wells.pop(well.name)  # the others come first next time

    async def _something(self, now: float) -> None:
        """Wait for an answer, for somebody who asks or takes, or until a gateway has rested. `now`: what `_ask_more`
        went by. A later look at the clock may find that a gateway has rested meanwhile, which nobody would tell."""
        if any(well.task is not None and well.task.done() for well in self.wells.values()):
            return
        news = self.news
        rests = [well.rests_until for well in self.wells.values() if well.task is None]
        pause = max(CLOCK_S, min(rests) - now) if rests and self._room() > 0 else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await news.wait()

    def _answered(self, well: Well) -> None:
        """Take in what a gateway said. Raises what it raised, unless it is only away."""
        assert well.task is not None
        task, well.task, well.asking = well.task, None, 0
        try:
            leases = task.result()
            well.away = None
        except NoRun:
            if not well.over:
                raise
            leases, well.away = [], None
        except Conflict:
            if well.lease_asked_at >= well.asked_at:
                raise
            # Of a lease whose answer was lost, and which is over by now: its groups are offered again.
            well.lease_id, well.away, well.rests_until = "", None, float("-inf")
            return
        except SandgateError as error:
            if not may_retry(error):
                raise
            leases, well.away = [], error
        for lease in leases:
            self._push(lease, well.lease_asked_at)
        if well.away is None:
            well.lease_id = ""
        if leases:
            well.rest_s, well.rests_until = self.poll_s * POLL_FIRST, float("-inf")
            return
        if well.away is None or any(one.away is None for one in self.wells.values()):
            well.empty_at, well.dry = well.asked_at, well.over
        took_s = 0.0 if well.away is None else min(self.keeper.clock() - well.asked_at, AWAY_REST_S)
        well.rests_until = asyncio.get_running_loop().time() + max(well.rest_s, took_s)
        well.rest_s = min(2 * well.rest_s, self.poll_s)
        self.tell()

    def _all_away(self) -> None:
        """Raises Unavailable if no gateway has answered for too long."""
        wells, now = self.wells.values(), asyncio.get_running_loop().time()
        if not all(one.away and (one.task or not one.left_alone(now)) for one in wells):
            return
        if now >= max((one.unheard_at for one in wells), default=inf) + self.away_s:
            for one in wells:
                one.unheard_at = now
            told = "; ".join(f"{one.name}: {one.away}" for one in self.wells.values())
            if len(self.wells) == 1 and (only := next(iter(self.wells.values()))).away and not only.name:
                raise only.away
            raise Unavailable(f"no gateway answers: {told}")

    def _push(self, lease: Lease, asked_at: float) -> None:
        named = next(iter(lease.trajectories), None)
        job, uid = (named.job, named.uid) if named else (lease.job, lease.uid)
        hold = self.keeper.hold(lease.lease_id, self.ttl_s, asked_at)
        group = Group(job, uid, lease.trajectories, lease, self.client, self.keeper, hold)
        size = group.nbytes
        self.keeper.counters.leased += 1
        self.keeper.counters.leased_bytes += size
        self.buffer.append((group, size))
        self._count(1, size)

    def _count(self, groups: int, size: int) -> None:
        self.nbytes += size
        self.keeper.counters.buffered += groups
        self.keeper.counters.buffered_bytes += size
        self.tell()

    async def _last_answers(self) -> None:
        """What is under way may still bring groups: they are kept, to be handed out or given back."""
        pending = [well for well in self.wells.values() if well.task is not None]
        if not pending:
            return
        try:
            await asyncio.wait([well.task for well in pending if well.task], timeout=CLOSE_S)
        finally:
            for well in pending:
                assert well.task is not None
                if not well.task.done():
                    well.task.cancel()
                elif not well.task.cancelled() and well.task.exception() is None:
                    for lease in well.task.result():
                        self._push(lease, well.lease_asked_at)
                well.task, well.asking = None, 0


class Groups(AsyncIterator[Group]):
    """See `groups`. `aclose` (or `async with`) gives back what was leased ahead, and so does whoever drops it, as by
    leaving a loop over it in the middle."""

    def __init__(
        self,
        client: Leaser,
        keeper: Keeper,
        asks: Callable[[], Mapping[str, Ask]],
        *,
        job: str | None,
        ttl_s: float,
        idle_s: float | None,
        ahead: Ahead,
        admit: Callable[[Group], Awaitable[bool]] = everything,
        over: Callable[[], bool] = never,
        poll_s: float = POLL_S,
        away_s: float = 0.0,
    ) -> None:
        """`admit`: False if it settled the group itself. Asked when the trainer asks, not when the group comes; again
        if a call was cancelled in it, or failed, unless it settled the group. `over`: no group will ever come again;
        asked before each question that finds none."""
        self.supply = Supply(client, keeper, asks, job, ttl_s, ahead, poll_s, over, away_s)
        self._keeper, self._admit, self._idle_s = keeper, admit, idle_s
        self._dropped: weakref.finalize[..., Groups] | None = None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What asks in the background."""
        return self.supply.task

    async def __anext__(self) -> Group:
        """Raises StopAsyncIteration after `idle_s` without a group, and what the gateways say."""
        began = self._keeper.clock()
        try:
            while (group := await self._next(began)) is not None:
                if group.settled:  # since a call was cancelled that was about to
                    continue
                try:
                    mine = await self._keeper.sure(group.hold) and await self._admit(group)
                except BaseException as error:
                    self._keep(group, error)
                    raise
                if mine:
                    self._keeper.counters.given += 1
                    return group
        finally:
            self._keeper.counters.waited_s += self._keeper.clock() - began
        raise StopAsyncIteration

    def _keep(self, group: Group, error: BaseException) -> None:
        """Nobody was given it, because of this error: the next call is. In a stream that has ended there is none."""
        if group.settled or isinstance(error, Conflict | NotFound):
            return
        self.supply.put_back(group)
        if self.supply.ended:
            _give_back(self.supply, asyncio.get_running_loop())

    async def _next(self, began: float) -> Group | None:
        """From the buffer, or as soon as there is one; None when it was idle long enough since `began`."""
        supply = self.supply
        if self._dropped is None:
            loop = asyncio.get_running_loop()
            self._dropped = weakref.finalize(self, _give_back, supply, loop)
            self._dropped.atexit = False
        supply.waiting += 1
        supply.asked += 1
        supply.tell()
        try:
            while not supply.ended:
                if supply.buffer:
                    return supply.pop()
                idle = self._idle_s is not None and supply.empty_at >= began + self._idle_s
                if idle or supply.dry:
                    supply.ended = True
                    supply.tell()
                    break
                supply.run()
                await supply.news.wait()
        finally:
            supply.waiting -= 1
        return None

    async def aclose(self) -> None:
        """Give back what was leased ahead, and lease no more. Groups that were handed out are the trainer's to settle.
        Idempotent."""
        if self._dropped is not None:
            self._dropped.detach()
        await self.supply.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


_closing: set[asyncio.Task[None]] = set()
"""Streams that are being closed because nobody holds them any more, or once more, for a group that came back."""


def _give_back(supply: Supply, loop: asyncio.AbstractEventLoop) -> None:
    """In whatever thread the last reference was dropped."""

    def close() -> None:
        task = loop.create_task(supply.aclose(), name="give groups back")
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    if not supply.ended or supply.buffer:
        supply.ended = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: leases run out
            loop.call_soon_threadsafe(close)
