"""Runs an event loop in a thread, so that programs without one can call coroutines, streams and blocks."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")


LOOK_S = 1.0
"""Between two looks for a Ctrl-C while an answer is waited for."""


class Closed(RuntimeError):
    """The thread is gone: nothing that it is asked for would ever be answered."""


class LoopThread:
    """An event loop in a thread. Any other thread may `run` something on it; a process that was forked off may not, as
    it has no such thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._gate = threading.RLock()  # Python's collector may end a stream here, within another call
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="sandgate client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        run_on(self._loop)
        self._loop.run_until_complete(_cancel_all())

    def submit(self, doing: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine, and do not wait for it. Raises Closed."""
        if self._forked:  # before the gate, which another thread may have held when this process began
            doing.close()
            raise Closed(
                f"the client was made in process {self._pid}, and a fork has none of its threads: make one in this"
                " process, as in a DataLoader's worker_init_fn"
            )
        with self._gate:  # what comes before `close` is run or cancelled, and what comes after it is refused
            if self._closed:
                doing.close()
                raise Closed("the client is closed")
            return asyncio.run_coroutine_threadsafe(doing, self._loop)

    def run(self, doing: Coroutine[Any, Any, T], *, through: bool = False) -> T:
        """Run a coroutine and return its result. If the caller is interrupted (Ctrl-C), the coroutine is cancelled; or,
        `through`, waited for first, until there is another Ctrl-C. Raises Closed, RuntimeError in the loop's own
        thread."""
        if threading.current_thread() is self._thread:
            doing.close()
            raise RuntimeError(
                "a blocking call in the client's own thread, as from on_stale, would wait for itself: note what"
                " is to be done, and do it in the thread that iterates"
            )
        future = self.submit(doing)
        try:
            return answer(future)
        except BaseException:
            try:
                if through:
                    ended(future)
            finally:
                future.cancel()
            raise

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._pid

    @property
    def closed(self) -> bool:
        """It takes no more calls; in a process that was forked off it never did."""
        return self._closed or self._forked

    def close(self) -> None:
        """Cancel what is left, and end the thread. Idempotent."""
        if self._forked:  # its selector is the parent's too, and closing would make the parent deaf
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def answer(future: Future[T]) -> T:
    """Wait for it. A Ctrl-C that comes just before a thread blocks on a lock is not seen while it blocks, as CPython
    looks for signals only when the wait is interrupted: so the wait ends now and then."""
    while not wait([future], timeout=LOOK_S).done:
        pass
    return future.result()


def ended(future: Future[Any]) -> None:
    """Wait for what an interrupted caller must not leave half-way: a program that goes on closes its client next, which
    cancels whatever is left. Another Ctrl-C ends the wait."""
    told = False
    while not wait([future], timeout=LOOK_S).done:
        if not told:
            log.warning("interrupted: what was begun ends first; another Ctrl-C leaves it half-way")
        told = True


def run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop in this thread until it is stopped. A `sys.exit` in it, as of somebody's callback, is raised to
    whoever waits for what called it; it would end the thread without a word, and all others would wait for ever."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            log.error("%r in the thread %s", error, threading.current_thread().name)
        else:
            return


async def _cancel_all() -> None:
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class Blocking(Generic[A_co]):
    """Something asynchronous, and the loop on which its methods run."""

    def __init__(self, inner: A_co, loop: LoopThread) -> None:
        self.inner, self._loop = inner, loop


def _own(method: Callable[Concatenate[A, P], T], inner: A) -> Callable[P, T]:
    """The inner object's own method of that name: its class may have another than the one that was named."""
    own: Callable[P, T] = getattr(inner, method.__name__)
    return own


def blocking(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[A_co], P], T]:
    """A coroutine method of the inner object, as a method that blocks: same parameters, same words."""

    @wraps(method)
    def call(self: Blocking[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(_own(method, self.inner)(*args, **kwargs))

    return call


def blocking_stream(
    method: Callable[Concatenate[A_co, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[A_co], P], Generator[T, None, None]]:
    """An async iterator of the inner object, as a generator. When the loop over it ends, the iterator is closed."""

    @wraps(method)
    def each(self: Blocking[A_co], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        async def begin() -> Any:
            return _own(method, self.inner)(*args, **kwargs)

        stream = self._loop.run(begin())
        try:
            while found := self._loop.run(_next(stream)):
                yield found[0]
        finally:
            with suppress(Closed):  # it was closed with its client, which another thread has left
                self._loop.run(stream.aclose())

    return each


def blocking_block(
    method: Callable[Concatenate[A_co, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate[Blocking[A_co], P], AbstractContextManager[T]]:
    """An `async with` of the inner object, as `with`."""

    @wraps(method)
    def block(self: Blocking[A_co], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return entered(_own(method, self.inner)(*args, **kwargs), self._loop)

    return block


async def _next(stream: AsyncIterator[T]) -> tuple[T] | None:
    async for found in stream:
        return (found,)
    return None


@contextmanager
def entered(manager: AbstractAsyncContextManager[T], loop: LoopThread) -> Iterator[T]:
    """An async context manager whose block is in another thread. It is entered and left in one task: locks and
    timeouts want that."""
    begun: asyncio.Future[T] = loop.run(_future())
    left: asyncio.Future[BaseException | None] = loop.run(_future())
    task: asyncio.Task[None] | None = None

    async def hold() -> None:
        async with manager as found:
            begun.set_result(found)
            if (error := await left) is not None:
                raise error

    async def begin() -> T:
        nonlocal task
        task = asyncio.get_running_loop().create_task(hold())
        both: list[asyncio.Future[Any]] = [task, begun]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await task
        return begun.result()

    async def abandon() -> None:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def end(error: BaseException | None) -> None:
        assert task is not None
        left.set_result(error)
        await asyncio.wait([task])
        if error is None:
            task.result()
        elif not task.cancelled():
            task.exception()  # it is told as the block's own

    try:
        found = loop.run(begin())
    except BaseException:  # a caller who was interrupted will not leave it: gateways would stay on hold
        loop.run(abandon())
        raise
    try:
        yield found
    except BaseException as error:
        # What is no Exception would end the loop's thread, too: there it is a cancellation.
        told = error if isinstance(error, Exception) else asyncio.CancelledError()
        loop.run(end(told), through=not isinstance(error, KeyboardInterrupt))
        raise
    loop.run(end(None), through=True)


async def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()
