"""An event loop in virtual time: nothing waits, one callback is one step, and a process can die between two steps."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

LIFE: contextvars.ContextVar[int] = contextvars.ContextVar("life", default=0)
"""Which life of the gateway process the running code belongs to; 0 = the world outside of it."""
STEPS_MAX = 2_000_000
"""A world that takes more is a busy loop: a usual one takes a few ten thousand."""


class Stuck(Exception):
    """Nothing can ever happen any more, or too much happens at once."""


class _Numbered:
    """Hashes by age, not by address: sets of futures are walked in the same order in every run of a seed."""

    numbers = itertools.count(1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(_Numbered.numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _SimFuture(_Numbered, asyncio.Future[Any]):
    pass


class _SimTask(_Numbered, asyncio.Task[Any]):
    pass


class VirtualLoop(asyncio.BaseEventLoop):
    """FIFO as asyncio promises; timers that are due at the same moment fire in an order drawn from the seed.

    A life in `dead` never runs again, not even its `finally` blocks: that is what SIGKILL means. Its callbacks are
    kept until `bury`, which ends them behind closed doors, so that nothing is left for the garbage collector.
    """

    def __init__(self, rng: Random) -> None:
        super().__init__()
        _Numbered.numbers = itertools.count(1)
        self.steps = 0
        self.dead: set[int] = set()
        self.on_step: Callable[[], None] | None = None
        """Called between two callbacks."""
        self.tasks: defaultdict[int, dict[asyncio.Task[Any], None]] = defaultdict(dict)
        """Unfinished tasks by life."""
        self.complaints: list[str] = []
        """What asyncio said nobody handles."""
        self._rng = rng
        self._now = 0.0
        self._graves: list[asyncio.Handle] = []
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any
    ) -> asyncio.Task[Any]:
        task = _SimTask(coro, loop=loop, **more)
        context = more.get("context") or contextvars.copy_context()
        mine = self.tasks[context.get(LIFE, 0)]
        mine[task] = None
        task.add_done_callback(lambda done: mine.pop(done, None), context=contextvars.Context())
        return task

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    # what BaseEventLoop leaves to the platform

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._advance(ready)
        handle = ready.popleft()
        if handle._cancelled:
            return
        if self.dead and handle._context.get(LIFE, 0) in self.dead:
            self._graves.append(handle)
            return
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Stuck(f"{STEPS_MAX} steps by {self._now:.3f} s; the last one was {handle!r}")
        handle._run()
        if self.on_step is not None:
            self.on_step()

    def _advance(self, ready: Any) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due: list[asyncio.TimerHandle] = []
        while timers and (not due or timers[0].when() <= self._now):
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._now = max(self._now, timer.when())
                due.append(timer)
        if not due:
            raise Stuck(f"nothing is left to happen at {self._now:.3f} s")
        self._rng.shuffle(due)
        ready.extend(due)

    async def bury(self, lives: list[int]) -> None:
        """End the tasks of dead lives, in which by now nothing can reach the world."""
        for life in lives:
            self.dead.discard(life)
            left = list(self.tasks[life])
            for task in left:
                task.cancel()
            graves, self._graves = self._graves, []
            for handle in graves:
                if handle._context.get(LIFE, 0) == life:  # type: ignore[attr-defined]
                    self._ready.append(handle)  # type: ignore[attr-defined]
                else:
                    self._graves.append(handle)
            await asyncio.gather(*left, return_exceptions=True)


class InlineExecutor(Executor):
    """Threads without threads: the work is done in one piece, now or a little later, and is told later still."""

    def __init__(self, loop: VirtualLoop, rng: Random) -> None:
        self._loop, self._rng = loop, rng

    async def fair(self, name: str) -> None:
        """Nothing here takes time of a core."""

    def charged(self, name: str, fn: Callable[..., Any], /, *args: Any) -> Any:
        """As `fair`."""
        return fn(*args)

    def let_in(self) -> None:
        """As `fair`."""

    def earn(self, name: str, tokens: int) -> None:
        """As `fair`."""

    def spend(self, name: str) -> None:
        """As `fair`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def done(result: Any) -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(result)

        def work() -> None:
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - told to the caller, as a pool does
                if future.set_running_or_notify_cancel():  # a kill leaves nobody to tell
                    future.set_exception(error)
            else:
                self._loop.call_later(self._rng.choice((0.0, 0.001, 0.02)), done, result)

        self._loop.call_later(self._rng.choice((0.0, 0.001, 0.05)), work)
        return future
