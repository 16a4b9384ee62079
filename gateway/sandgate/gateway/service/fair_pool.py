"""Threads for what would stall the event loop: sessions take turns in them (see fair_queue)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from sandgate.contract.errors import Overloaded
from sandgate.gateway.service.fair_queue import REFUSED_S, FairQueue, Waste

P = ParamSpec("P")
T = TypeVar("T")

WORKERS = 2
"""Most of the work holds the interpreter's lock; tokenizers do not."""

WAITING_MAX = 16
"""Requests of one session that wait until it may be served again; their clients may be gone."""

REFUSED_AFTER_S = 1.0
"""A client that is refused because too many wait is told so after a second: it may ask again at once."""

TOLD_S = 1.0
"""A session that waits longer than this is named in the log."""

log = logging.getLogger("sandgate.gateway")


class FairPool(Executor):
    """An executor whose `of(name)` are executors, too: what waits in one of them does not hold up the others."""

    def __init__(self, workers: int = WORKERS, name: str = "render") -> None:
        """One name has all workers but one at most."""
        self._threads = ThreadPoolExecutor(workers, name)
        self._queue: FairQueue[tuple[Future[Any], Callable[[], Any]]] = FairQueue(max(1, workers - 1))
        self._lock = Lock()
        self._waste = Waste()
        self._over = asyncio.Event()
        self._waiting: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: str) -> Lane:
        """For the work of one session."""
        return Lane(self, name)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """For nobody in particular."""
        return self.put("", fn, *args, **kwargs)

    def put(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `submit`, for `name`."""
        future: Future[T] = Future()
        with self._lock:
            self._queue.put(name, (future, lambda: fn(*args, **kwargs)))
        self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        """What may run now, until nothing may: whatever was held back when its name had enough is taken here."""
        done = None
        while True:
            with self._lock:
                if done is not None:
                    self._queue.done(done)
                found = self._queue.take()
            if found is None:
                return
            done, (future, work) = found
            _run(future, work)

    def spend(self, name: str, seconds: float = REFUSED_S) -> None:
        """A session used so much of a core for what may come to nothing."""
        with self._lock:
            self._waste.spend(name, seconds, time.monotonic())

    def earn(self, name: str, tokens: int) -> None:
        """A prompt of so many tokens goes to the engine: what was done for it was not for nothing."""
        with self._lock:
            self._waste.earn(name, tokens, time.monotonic())

    def charged(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Done here and now; what it takes of a core counts as waste until a prompt goes to the engine."""
        before = time.thread_time()
        try:
            return fn(*args, **kwargs)
        finally:
            self.spend(name, time.thread_time() - before)

    async def fair(self, name: str) -> None:
        """Until the session may make us work again: at once, unless it wasted too much (see fair_queue.Waste). Raises
        Overloaded if too many of its requests wait already."""
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
        """Nobody waits any more: the process ends, and says so to each."""
        self._over.set()

    def turn(self, name: str) -> asyncio.Lock:
        """Held by whoever does the first work for a request: the next is let in when it is known what that cost."""
        return self._turns.setdefault(name, asyncio.Lock())

    def _wait_s(self, name: str) -> float:
        with self._lock:
            return self._waste.wait_s(name, time.monotonic())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What waits is cancelled, or done first."""
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
        """As the pool's, but in a thread. It does not wait: a request that was let in is finished."""

        def work() -> T:
            return self._pool.charged(self._name, fn, *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self, work)

    async def admitted(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The first work for a request: charged, one at a time, and once the session may. Raises Overloaded."""
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
    """Of this session, where the pool has lanes."""
    return pool.of(session) if isinstance(pool, FairPool) else pool
