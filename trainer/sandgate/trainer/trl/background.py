"""Runs an event loop in a thread: TRL calls from its training loop while agents and leases go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from types import TracebackType
from typing import Any, Self, TypeVar

from sandgate.trainer.client.loop_thread import answer, ended, run_on

T = TypeVar("T")

JOIN_S = 30.0
"""For what is cancelled as the loop ends."""


class Background:
    """Use as `with`. What is called from outside runs in the loop; the caller waits."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()  # not before: nobody closes that of one that is never entered
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)

    def call(
        self,
        wanted: Coroutine[Any, Any, T],
        *,
        meanwhile: Callable[[], None] | None = None,
        every_s: float = 1.0,
    ) -> T:
        """Its result, or what it raised. Interrupted (Ctrl-C), it is cancelled, and ends before this does, however long
        it takes: engines that load weights are waited for. Another Ctrl-C ends the wait. `meanwhile`: called every
        `every_s` seconds until then, here; what it raises ends the call."""
        future = asyncio.run_coroutine_threadsafe(wanted, self._loop)
        try:
            while meanwhile is not None and not wait([future], timeout=every_s).done:
                meanwhile()
            return answer(future)
        except BaseException:
            if future.cancel():
                ended(asyncio.run_coroutine_threadsafe(self._ended(wanted), self._loop))
            raise

    async def _ended(self, wanted: Coroutine[Any, Any, Any]) -> None:
        """What it began is ended by it: a loop that is stopped meanwhile would cancel it in the middle of that."""
        for task in asyncio.all_tasks():
            if task.get_coro() is wanted:
                await asyncio.wait([task])

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            run_on(self._loop)
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
