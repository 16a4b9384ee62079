"""Stream of leased groups: prefetched within bounds of groups and bytes, filtered by staleness."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sandgate.contract.lease import Lease
from sandgate.trainer.client.groups import Group, Leaser
from sandgate.trainer.client.lease_renewal import Keeper

POLL_S = 0.5
"""Between two questions for a group while there is none; a rollout takes seconds to minutes."""
POLL_FIRST = 0.1
"""Of that, after the first question that finds none; doubles from there."""
CLOSE_S = 5.0
"""What a request that is under way when the stream is closed may take; what it leases is given back."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much is leased before the trainer asks for it: what one trainer holds, another cannot have."""

    groups: int = 0
    """0: a group is leased when the trainer asks."""
    nbytes: int = 1 << 30
    """Of token arrays; nothing more is leased once this is reached, so one group may go beyond it."""


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
) -> Groups:
    """Groups as they become ready, oldest first, each under its own lease; ends after `idle_s` seconds without one."""
    keeper = Keeper(client, time.monotonic)
    return Groups(client, keeper, job=job, ttl_s=ttl_s, idle_s=idle_s, ahead=ahead or Ahead(), poll_s=poll_s)


class Groups(AsyncIterator[Group]):
    """See `groups`. `aclose` (or `async with`) gives back what was leased ahead."""

    def __init__(
        self,
        client: Leaser,
        keeper: Keeper,
        *,
        job: str | None,
        ttl_s: float,
        idle_s: float | None,
        ahead: Ahead,
        admit: Callable[[Group], Awaitable[bool]] = everything,
        over: Callable[[], bool] = never,
        poll_s: float = POLL_S,
    ) -> None:
        """`admit`: False if it settled the group itself. Asked when the trainer asks, not when the group comes. `over`:
        no group will ever come again; asked before each question that finds none."""
        self._client, self._keeper, self._admit, self._over = client, keeper, admit, over
        self._job, self._ttl_s, self._idle_s, self._ahead, self._poll_s = job, ttl_s, idle_s, ahead, poll_s
        self._clock, self._counters = keeper.clock, keeper.counters
        self._buffer: deque[tuple[Group, int]] = deque()
        self._nbytes = 0
        self._waiting = 0
        """Callers that want a group now."""
        self._asked = 0
        """Calls for a group so far."""
        self._empty_at = float("-inf")
        """When the last question was sent that found no group."""
        self.task: asyncio.Task[None] | None = None
        self._dry = False
        """All that there ever will be was leased."""
        self._ended = False
        self._news = asyncio.Event()

    async def __anext__(self) -> Group:
        """Raises StopAsyncIteration after `idle_s` without a group, and what the gateways say."""
        began = self._clock()
        try:
            while (group := await self._next(began)) is not None:
                if await self._keeper.sure(group.hold) and await self._admit(group):
                    self._counters.given += 1
                    return group
        finally:
            self._counters.waited_s += self._clock() - began
        raise StopAsyncIteration

    async def _next(self, began: float) -> Group | None:
        """From the buffer, or as soon as there is one; None when it was idle long enough since `began`."""
        self._waiting += 1
        self._asked += 1
        self._tell()
        try:
            while not self._ended:
                if self._buffer:
                    return self._pop()
                if self.task is not None and self.task.done():
                    ended, self.task = self.task, None  # the next call tries again
                    ended.result()
                idle = self._idle_s is not None and self._empty_at >= began + self._idle_s
                if idle or self._dry:
                    self._ended = True
                    self._tell()
                    break
                if self.task is None:
                    self.task = asyncio.get_running_loop().create_task(self._fill(), name="lease groups")
                    self.task.add_done_callback(lambda _: self._tell())
                await self._news.wait()
        finally:
            self._waiting -= 1
        return None

    def _pop(self) -> Group:
        group, size = self._buffer.popleft()
        self._count(-1, -size)
        return group

    def _count(self, groups: int, size: int) -> None:
        self._nbytes += size
        self._counters.buffered += groups
        self._counters.buffered_bytes += size
        self._tell()

    def _tell(self) -> None:
        """Whoever waits looks again."""
        self._news.set()
        self._news = asyncio.Event()

    def _room(self) -> bool:
        held = len(self._buffer)
        return held < max(self._ahead.groups, self._waiting) and (
            not held or self._nbytes < self._ahead.nbytes
        )

    async def _fill(self) -> None:
        wait_s = self._poll_s * POLL_FIRST
        while not self._ended:
            if not self._room():
                await self._news.wait()
                continue
            asked_at, over = self._clock(), self._over()
            lease = await self._client.lease(job=self._job, max_groups=1, ttl_s=self._ttl_s)
            if lease is not None:
                wait_s = self._poll_s * POLL_FIRST
                self._push(lease, asked_at)
                continue
            self._empty_at = asked_at
            if over:
                self._dry = True
                return
            self._tell()
            await self._rest(wait_s)
            wait_s = min(2 * wait_s, self._poll_s)
        await self._give_back()

    def _push(self, lease: Lease, asked_at: float) -> None:
        named = next(iter(lease.trajectories), None)
        job, uid = (named.job, named.uid) if named else ("", "")
        hold = self._keeper.hold(lease.lease_id, self._ttl_s, asked_at)
        group = Group(job, uid, lease.trajectories, lease, self._client, self._keeper, hold)
        size = group.nbytes
        self._counters.leased += 1
        self._counters.leased_bytes += size
        self._buffer.append((group, size))
        self._count(1, size)

    async def _rest(self, seconds: float) -> None:
        """Sleep, or until somebody comes who wants a group now."""
        asked = self._asked
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._asked == asked and not self._ended:
                    await self._news.wait()

    async def _give_back(self) -> None:
        left = [self._pop() for _ in range(len(self._buffer))]
        await asyncio.gather(*(group.nack() for group in left), return_exceptions=True)

    async def aclose(self) -> None:
        """Give back what was leased ahead, and lease no more. Groups that were handed out are the trainer's to settle.
        Idempotent."""
        self._ended = True
        self._tell()
        if self.task is not None:
            _, late = await asyncio.wait([self.task], timeout=CLOSE_S)
            if late:
                self.task.cancel()
                await asyncio.wait([self.task])
        await self._give_back()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
