"""Threads for what would stall the event loop: sessions take turns in them (see fairness)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from sandgate.gateway.fairness import FairQueue

P = ParamSpec("P")
T = TypeVar("T")

WORKERS = 2
"""Most of the work holds the interpreter's lock; tokenizers do not."""


class FairPool(Executor):
    """An executor whose `of(name)` are executors, too: what waits in one of them does not hold up the others."""

    def __init__(self, workers: int = WORKERS, name: str = "render") -> None:
        """One name has all workers but one at most."""
        self._threads = ThreadPoolExecutor(workers, name)
        self._queue: FairQueue[tuple[Future[Any], Callable[[], Any]]] = FairQueue(max(1, workers - 1))
        self._lock = Lock()

    def of(self, name: str) -> Executor:
        """For the work of one session."""
        return _Lane(self, name)

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

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What waits is cancelled, or done first."""
        if cancel_futures:
            with self._lock:
                for mine in self._queue.waiting.values():
                    for future, _ in mine:
                        future.cancel()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


class _Lane(Executor):
    def __init__(self, pool: FairPool, name: str) -> None:
        self._pool, self._name = pool, name

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
