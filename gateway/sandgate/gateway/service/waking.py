"""Waiting that takes no turn of the event loop more than it needs: each polls the kernel, and a callback of a future
comes a turn after it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Self

P = ParamSpec("P")


class Bell:
    """Wakes one waiter: by `waiters`, which others set; when the client is `gone`; or at a time."""

    def __init__(self, waiters: set[asyncio.Future[None]], gone: asyncio.Future[Any]) -> None:
        self._waiters, self._gone = waiters, gone
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.rang = False
        """The time of `ring_at` has come."""

    def __enter__(self) -> Self:
        self._gone.add_done_callback(self._wake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._gone.remove_done_callback(self._wake)

    def ring_at(self, when: float) -> None:
        """On the loop's clock; once, and not at an earlier time that was told."""
        if self._timer is not None:
            self._timer.cancel()
        self.rang = False
        self._timer = self._loop.call_at(when, self._ring)

    async def wait(self) -> None:
        """Until it is woken from now on. What was so before must have been looked at."""
        waiter = self._waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _ring(self) -> None:
        self.rang = True
        self._wake()

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def either(one: asyncio.Future[Any], other: asyncio.Future[Any]) -> None:
    """Returns when one of the two is done, whatever came of it: `asyncio.wait` for two takes four times as long."""
    if one.done() or other.done():
        return
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    one.add_done_callback(wake)
    other.add_done_callback(wake)
    try:
        await waiter
    finally:
        one.remove_done_callback(wake)
        other.remove_done_callback(wake)


async def carried_through(
    change: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
) -> None:
    """Finishes a change even if the caller is cancelled, and raises CancelledError after it: what is durable must be
    visible."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None]

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    async def told() -> None:
        try:
            await change(*args, **kwargs)
        finally:
            wake()  # by the time the caller runs the task is done; its own callbacks come a turn of the loop later

    work, cancelled = loop.create_task(told()), False
    work.add_done_callback(wake)  # one that is cancelled before its first step tells nobody else
    while not work.done():
        waiter = loop.create_future()
        try:
            await waiter
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        work.exception()  # nobody is left to be told
        raise asyncio.CancelledError
    work.result()
