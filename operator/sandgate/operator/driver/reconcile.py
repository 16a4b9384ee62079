"""Reconciler: queues of keys with backoff and timers; it plans each key and carries the plan out.

One key is never worked on twice at the same time; what happens to it meanwhile is looked at right after. An action that
fails holds up hardly any other; its key is planned again after a pause, from what is seen then.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from sandgate.contract.errors import EngineFailed, Overloaded, SandgateError, Unavailable
from sandgate.operator.plan.actions import Action, OpenSession, Provide, StopAttempt, WakeAt

log = logging.getLogger(__name__)

WORKERS = 64
"""Keys of one share (in a cluster: of one job) worked on at once: actions mostly wait for a gateway, an API server or a
process."""
WORKERS_ALL = 8 * WORKERS
"""Keys of all shares. A share gets no more than are left free after it, so that something always is, however many
jobs wait for gateways that do not answer: one such job holds 64, ten hold 46 each, and 52 are free for the others."""
TOGETHER = 32
"""Actions of one plan carried out at once, of kinds that do not wait for each other: a job opens and stops sessions by
the hundred, and one after the other they would take seconds in which it plans nothing else."""
SPARE = 64
"""Wake-ups that were replaced or forgotten and are kept beside as many as there are: they may be of hours from now, and
sessions come and go by the second."""
ALIKE = (OpenSession, StopAttempt)
BACKOFF_S, BACKOFF_S_MAX = 0.2, 30.0
"""Pause after a failure, doubled each time, with up to a quarter added at random."""
RETRIED: tuple[type[Exception], ...] = (Unavailable, Overloaded, EngineFailed, OSError, TimeoutError)
"""Failures that pass by themselves. Anything else is a mistake in the job or in us, and ends the run."""

Key = str
Plan = Callable[[Key], Sequence[Action]]
"""What is to be done for a key now; [] for one that is gone."""
CarryOut = Callable[[Key, Action], Awaitable[None]]


@dataclass(slots=True)
class Share:
    """Keys that wait for each other."""

    waiting: deque[Key] = field(default_factory=deque)
    held: int = 0
    """Keys that are worked on."""
    moved_at: float = 0.0
    """When one of these last ended, or the first of them began."""


@dataclass(slots=True)
class Reconciler:
    """Run it as a task; it ends by being cancelled, or by an error that no repetition can mend."""

    plan: Plan
    carry_out: CarryOut
    woke: Callable[[Key], None] = lambda key: None
    """Told before a key is planned because its time has come."""
    now: Callable[[], float] = time.time
    retried: tuple[type[Exception], ...] = RETRIED
    share_of: Callable[[Key], str] = lambda key: ""
    """Whose a key is: keys of one share wait for each other, not for those of another."""
    _most: int = WORKERS
    """Of one share."""
    _shares: OrderedDict[str, Share] = field(default_factory=OrderedDict)
    """Those with keys that wait or are worked on; whose turn it is comes first."""
    _occasion: asyncio.Event = field(default_factory=asyncio.Event)
    """A key came, or a worker is free."""
    _queued: dict[Key, float] = field(default_factory=dict)
    """Key -> since when it waits."""
    _busy: set[Key] = field(default_factory=set)
    _failures: dict[Key, int] = field(default_factory=dict)
    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, Key]] = field(default_factory=list)
    _earlier: asyncio.Event = field(default_factory=asyncio.Event)
    _rested: asyncio.Event = field(default_factory=asyncio.Event)

    def touch(self, key: Key) -> None:
        """Plan this key soon. Cheap; many touches are one plan."""
        if key in self._queued:
            return
        self._queued[key] = self.now()
        if key not in self._busy:
            self._wait(key)

    def wake_at(self, key: Key, at: float) -> None:
        """Plan this key at that time (unix seconds); a later call replaces an earlier one."""
        self._due[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._due) + SPARE:
            self._heap = [(at, key) for key, at in self._due.items()]
            heapq.heapify(self._heap)
        if self._heap[0] == (at, key):
            self._earlier.set()

    def forget(self, key: Key) -> None:
        """It is gone: no wake-ups, no backoff."""
        self._due.pop(key, None)
        self._failures.pop(key, None)

    @property
    def idle(self) -> bool:
        """Nothing is queued or worked on; time may still bring something."""
        return not self._queued and not self._busy

    @property
    def length(self) -> int:
        """Keys that wait."""
        return len(self._queued)

    @property
    def oldest_s(self) -> float:
        """How long the first of them has waited for us. Behind others of its share a key waits for those, as long as
        they end: only since the last one did."""
        now, since = self.now(), [self._queued[key] for key in self._busy if key in self._queued]
        for share in self._shares.values():
            if share.waiting:
                first = self._queued[share.waiting[0]]
                since.append(first if self._may(share) else max(first, share.moved_at))
        return max(0.0, now - min(since, default=now))

    async def quiet(self) -> None:
        """Returns when nothing is worked on; keys that wait may still wait."""
        while self._busy:
            self._rested.clear()
            await self._rested.wait()

    async def run(self, workers: int = WORKERS) -> None:
        """For ever. Raises what a plan or an action raised, if it is not in `retried`. `workers`: of one share."""
        self._most = workers
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._clock())
                while True:
                    self._occasion.clear()
                    while (key := self._next()) is not None:
                        tasks.create_task(self._work(key))
                    await self._occasion.wait()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def _wait(self, key: Key) -> None:
        """It is to be worked on when its share's turn comes."""
        name = self.share_of(key)
        if (share := self._shares.get(name)) is None:
            share = self._shares[name] = Share()
        share.waiting.append(key)
        self._occasion.set()

    def _may(self, share: Share) -> bool:
        """Another key of it may be worked on now."""
        return share.held < min(self._most, WORKERS_ALL - len(self._busy))

    def _next(self) -> Key | None:
        """A key that is to be worked on now, which it counts as from now on: of each share in turn."""
        for name, share in list(self._shares.items()):
            if share.waiting and self._may(share):
                self._shares.move_to_end(name)
                key = share.waiting.popleft()
                share.held += 1
                share.moved_at = self.now() if share.held == 1 else share.moved_at
                self._queued.pop(key, None)
                self._busy.add(key)
                return key
        return None

    async def _work(self, key: Key) -> None:
        try:
            await self._turn(key)
        finally:
            self._busy.discard(key)
            self._rested.set()
            name = self.share_of(key)
            share = self._shares[name]
            share.held, share.moved_at = share.held - 1, self.now()
            if key in self._queued:  # touched while we worked on it
                share.waiting.append(key)
            if not share.held and not share.waiting:
                del self._shares[name]
            self._occasion.set()

    async def _turn(self, key: Key) -> None:
        try:
            failures = await self._carry_out_plan(key, self.plan(key))
        except self.retried as error:
            failures = [error]
        if failures:
            self._again(key, failures)
        else:
            self._failures.pop(key, None)

    async def _carry_out_plan(self, key: Key, plan: Sequence[Action]) -> list[Exception]:
        """What failed of it. Kinds of actions do not wait for each other to succeed: a job whose gateways cannot be
        made is stopped all the same, and says why. But sessions are opened only behind what was made for them. Of a
        kind that failed the rest is left for the next plan, because it would mostly fail alike and take as long; but
        every stop is tried."""
        failures: list[Exception] = []
        failed: set[type[Action]] = set()
        for actions in batches(plan):
            kind = type(actions[0])
            if kind in failed or (kind is OpenSession and Provide in failed):
                continue
            found = await self._carry_out_all(key, actions)
            failures += found
            if found and kind is not StopAttempt:
                failed.add(kind)
        return failures

    def _again(self, key: Key, failures: Sequence[Exception]) -> None:
        """Plans the key anew after a pause. A mistake is told rather than what passes by itself."""
        error = min(failures, key=lambda one: isinstance(one, RETRIED))
        wait = (error.retry_after or 0.0) if isinstance(error, SandgateError) else 0.0
        pause = max(self._backoff(key), wait)
        text = str(error) or type(error).__name__
        more = f" (and {len(failures) - 1} more failures)" if len(failures) > 1 else ""
        mistake = None if isinstance(error, RETRIED) else error
        log.warning("%s: %s%s; again in %.1f s", key, text, more, pause, exc_info=mistake)
        asyncio.get_running_loop().call_later(pause, self.touch, key)

    async def _carry_out_all(self, key: Key, actions: Sequence[Action]) -> list[Exception]:
        """Each is tried; gives those failures that are tried again, raises any other."""
        if len(actions) == 1:
            found = await self._failure(key, actions[0])
            return [] if found is None else [found]
        done = await asyncio.gather(*(self._failure(key, one) for one in actions), return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException) and not isinstance(one, self.retried):
                raise one
        return [one for one in done if isinstance(one, Exception)]

    async def _failure(self, key: Key, action: Action) -> Exception | None:
        """Carries it out; why that failed, if it is to be tried again."""
        try:
            if isinstance(action, WakeAt):
                self.wake_at(key, action.at)
            await self.carry_out(key, action)
        except self.retried as error:
            return error
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            # What the action waited for was cancelled, not we: it would end this worker, and nobody would know.
            return Unavailable("what an action waited for was cancelled")
        return None

    def _backoff(self, key: Key) -> float:
        failed = self._failures.get(key, 0)
        self._failures[key] = failed + 1
        return min(BACKOFF_S * (1 << min(failed, 16)), BACKOFF_S_MAX) * (1 + random.random() / 4)

    async def _clock(self) -> None:
        while True:
            now = self.now()
            while self._heap and self._heap[0][0] <= now:
                at, key = heapq.heappop(self._heap)
                if self._due.get(key) == at:  # else it was replaced or forgotten
                    del self._due[key]
                    self.woke(key)
                    self.touch(key)
            self._earlier.clear()
            pause = self._heap[0][0] - self.now() if self._heap else None
            try:
                async with asyncio.timeout(pause if pause is None else max(0.0, pause)):
                    await self._earlier.wait()
            except TimeoutError:
                pass


def is_cancelled() -> bool:
    """Whether somebody cancelled the task that asks."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def batches(plan: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """The plan in order, in parts that are carried out one after the other."""
    for kind, neighbours in groupby(plan, type):
        actions = list(neighbours)
        size = TOGETHER if kind in ALIKE else 1
        for start in range(0, len(actions), size):
            yield actions[start : start + size]
