"""FairPool: threads for work that would stall the event loop; sessions take turns in them (see fair_queue)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from sandgate.contract.errors import Overloaded
from sandgate.gateway.service.core_time import core_s
from sandgate.gateway.service.fair_queue import REFUSED_S, FairQueue, Waste

P = ParamSpec("P")
T = TypeVar("T")

WORKERS = 2
"""Threads. Most of the work holds the interpreter's lock; tokenizers do not."""

WAITING_MAX = 16
"""Limit of requests of one session that wait until it may be served again; their clients may be gone."""

REFUSED_AFTER_S = 1.0
"""Seconds until a client that is refused because too many wait gets its answer: it may ask again at once."""

TOLD_S = 1.0
"""Seconds: a session that waits longer is named in the log."""

log = logging.getLogger("sandgate.gateway")


class FairPool(Executor):
    """An executor whose `of(name)` are executors, too: work that waits in one of them does not hold up the others."""

    def __init__(self, workers: int = WORKERS, name: str = "render") -> None:
        """Work of one name uses all workers but one at most."""
        self._threads = ThreadPoolExecutor(workers, name)
        self._queue: FairQueue[tuple[Future[Any], Callable[[], Any]]] = FairQueue(max(1, workers - 1))
        self._lock = Lock()
        self._waste = Waste()
        self._over = asyncio.Event()
        self._waiting: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: str) -> Lane:
        """The executor for the work of one session."""
        return Lane(self, name)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queues work that is no session's."""
        return self.put("", fn, *args, **kwargs)

    def put(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queues work of the session `name`."""
        future: Future[T] = Future()
        with self._lock:
            self._queue.put(name, (future, lambda: fn(*args, **kwargs)))
        self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        """Runs queued work until none may run now. Work that was held back because its name had enough workers is taken
        here, too."""
        done = None
        while True:
            with self._lock:
                if done is not None:
                    self._queue.done(done)
                next_item = self._queue.take()
            if next_item is None:
                return
            done, (future, work) = next_item
            _run(future, work)

    def spend(self, name: str, seconds: float = REFUSED_S) -> None:
        """Charges a session for seconds of a core that may lead to no prompt."""
        with self._lock:
            self._waste.spend(name, seconds, time.monotonic())

    def earn(self, name: str, tokens: int) -> None:
        """Credits a session with a prompt of so many tokens that goes to the engine: the work for it was not wasted."""
        with self._lock:
            self._waste.earn(name, tokens, time.monotonic())

    def charged(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `fn` here and now. The core time that it takes counts as waste until a prompt goes to the engine."""
        return self.charged_at_most(math.inf, name, fn, *args, **kwargs)

    def charged_at_most(
        self, seconds: float, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `charged`, for work of which no more is the session's doing."""
        before = core_s()
        try:
            return fn(*args, **kwargs)
        finally:
            self.spend(name, min(seconds, core_s() - before))

    async def fair(self, name: str) -> None:
        """Waits until the session may be served again: at once, unless it wasted too much (see fair_queue.Waste).
        Raises Overloaded if too many of its requests wait already."""
        while (seconds := self._wait_s(name)) > 0 and not self._over.is_set():
            if self._waiting[name] >= WAITING_MAX:
                await self._pause(min(seconds, REFUSED_AFTER_S))
                raise Overloaded("this session's requests cost more than their prompts", retry_after=seconds)
            if seconds > TOLD_S and not self._waiting[name]:
                log.warning(
                    "session %s waits %.1f s: its requests cost more than their prompts", name, seconds
                )
            self._waiting[name] += 1
            try:
                await self._pause(seconds)
            finally:
                self._waiting[name] -= 1
                if not self._waiting[name]:
                    del self._waiting[name]

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    def let_in(self) -> None:
        """Lets every waiting request go on: the process ends, and refuses each of them."""
        self._over.set()

    def turn(self, name: str) -> asyncio.Lock:
        """The session's lock for the first work on a request: the next request starts when the cost of this one is
        charged."""
        return self._turns.setdefault(name, asyncio.Lock())

    def _wait_s(self, name: str) -> float:
        with self._lock:
            return self._waste.wait_s(name, time.monotonic())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads. Waiting work is done first, or cancelled."""
        if cancel_futures:
            with self._lock:
                for mine in self._queue.waiting.values():
                    for future, _ in mine:
                        future.cancel()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


class Lane(Executor):
    """One session's share of a pool."""

    def __init__(self, pool: FairPool, name: str) -> None:
        self._pool, self._name = pool, name

    async def charged(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As the pool's `charged`, but in a thread. It does not wait: a request that was let in is finished."""

        return await self.charged_at_most(math.inf, fn, *args, **kwargs)

    async def charged_at_most(
        self, seconds: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As the pool's, but in a thread."""

        def work() -> T:
            return self._pool.charged_at_most(seconds, self._name, fn, *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self, work)

    async def admitted(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The first work for a request: charged, one at a time, and not before the session may be served. Raises
        Overloaded."""
        async with self._pool.turn(self._name):
            await self._pool.fair(self._name)
            return await self.charged(fn, *args, **kwargs)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.put(self._name, fn, *args, **kwargs)


def _run(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - the caller's, as in any executor
        future.set_exception(error)


def lane(pool: Executor, session: str) -> Executor:
    """The session's lane, where the pool has lanes; else the pool."""
    return pool.of(session) if isinstance(pool, FairPool) else pool
