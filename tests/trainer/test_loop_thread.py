"""The loop of programs without one: whatever ends, whoever waits for it is told."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import pytest

from sandgate.trainer.client.loop_thread import Blocking, Closed, LoopThread, blocking_stream, entered
from sandgate.trainer.client.weight_update import carried_through
from sandgate.trainer.trl.background import Background

LIMIT_S = 20.0


async def leave() -> None:
    sys.exit("the groups are too old")


async def fine() -> str:
    return "fine"


async def for_ever() -> None:
    await asyncio.Event().wait()


def in_time(loop: LoopThread, doing: Coroutine[Any, Any, Any]) -> Any:
    return loop.submit(doing).result(LIMIT_S)


def test_an_exit_in_the_loop_ends_the_program_that_asked_and_not_the_thread_it_waits_for() -> None:
    loop = LoopThread()
    with pytest.raises(SystemExit, match="too old"):
        in_time(loop, leave())
    assert in_time(loop, fine()) == "fine"
    loop.close()


def test_an_exit_in_the_loop_of_trls_rollouts_is_told_too() -> None:
    with Background("rollouts") as background:
        found = asyncio.run_coroutine_threadsafe(leave(), background._loop)
        with pytest.raises(SystemExit, match="too old"):
            found.result(LIMIT_S)
        assert background.call(fine()) == "fine"


def test_a_blocking_call_in_the_loops_own_thread_is_refused_as_it_would_wait_for_itself() -> None:
    loop = LoopThread()

    async def on_stale() -> None:
        loop.run(fine())

    with pytest.raises(RuntimeError, match="on_stale"):
        in_time(loop, on_stale())
    loop.close()


FORK = """
import asyncio, os, threading
from sandgate.trainer.client.loop_thread import Closed, LoopThread

loop = LoopThread()
loop.run(asyncio.sleep(0))
loop._gate.acquire()  # as if another thread were just asking
child = os.fork()
if child == 0:
    try:
        loop.run(asyncio.sleep(0))
    except Closed as error:
        assert "made in process" in str(error), error
    else:
        os._exit(2)
    loop.close()
    os._exit(0)
loop._gate.release()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert loop.run(asyncio.sleep(0, "still heard")) == "still heard"
loop.close()
"""


def test_a_forked_process_is_told_that_its_client_has_no_thread_and_leaves_the_parents_alone() -> None:
    """As a DataLoader's workers are: they waited for ever."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_what_is_asked_of_a_closed_loop_is_refused() -> None:
    loop = LoopThread()
    loop.close()
    loop.close()
    assert loop.closed
    with pytest.raises(Closed):
        loop.run(fine())


def test_what_is_asked_while_the_loop_is_closed_ends_with_it() -> None:
    """A thread iterates over the groups while another one leaves the fleet."""
    loop = LoopThread()
    begun, late = threading.Event(), []

    async def slow_to_end() -> None:
        begun.set()
        try:
            await for_ever()
        finally:  # from here on, what is there was cancelled already
            late.append(loop.submit(for_ever()))

    first = loop.submit(slow_to_end())
    assert begun.wait(LIMIT_S)
    loop.close()
    assert first.done()
    assert all(one.done() for one in late), "nobody waits for a loop that is gone"


class Numbers:
    async def each(self) -> AsyncIterator[int]:
        yield 1
        await for_ever()


class BlockingNumbers(Blocking[Numbers]):
    each = blocking_stream(Numbers.each)


def test_a_thread_that_iterates_ends_when_another_one_closes_the_client() -> None:
    loop = LoopThread()
    seen: list[object] = []
    first = threading.Event()

    def iterate() -> None:
        try:
            for number in BlockingNumbers(Numbers(), loop).each():
                seen.append(number)
                first.set()
        except BaseException as error:  # noqa: BLE001 - looked at below
            seen.append(type(error).__name__)

    thread = threading.Thread(target=iterate)
    thread.start()
    assert first.wait(LIMIT_S)
    loop.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert seen == [1, "CancelledError"]


def test_a_stream_that_the_collector_ends_in_the_middle_of_a_call_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = LoopThread()
    said: list[str] = []
    begin = asyncio.run_coroutine_threadsafe

    class Trainer:
        def __init__(self) -> None:
            self.me = self
            self.numbers = BlockingNumbers(Numbers(), loop).each()
            next(self.numbers)

    def collects(doing: Coroutine[Any, Any, Any], where: asyncio.AbstractEventLoop) -> Any:
        gc.collect()
        return begin(doing, where)

    gc.disable()
    try:
        Trainer()
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", collects)
        thread = threading.Thread(target=lambda: said.append(loop.run(fine())), daemon=True)
        thread.start()
        thread.join(LIMIT_S)
    finally:
        gc.enable()
    assert said == ["fine"]
    loop.close()


def test_a_block_that_is_interrupted_on_the_way_in_is_left() -> None:
    """As `with fleet.weight_update(1)` in a notebook, whose gateways would stay on hold."""
    loop = LoopThread()
    said: list[str] = []
    main = threading.get_ident()

    @asynccontextmanager
    async def update() -> AsyncIterator[None]:
        said.append("paused")
        press = asyncio.get_running_loop().call_later(0.5, signal.pthread_kill, main, signal.SIGINT)
        try:
            await for_ever()
            yield
        finally:
            press.cancel()
            said.append("resumed")

    # Ignored in whatever a shell without a terminal began with `&`, and in its children: nobody can press it there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), entered(update(), loop):
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert said == ["paused", "resumed"]
    loop.close()


class Interrupted:
    """Interrupts the thread that made it `times` times, and ends soon after the last one (`ends`), or never, whoever
    cancels it: as a weight update whose engines load."""

    def __init__(self, times: int, *, ends: bool) -> None:
        self.times, self.ends = times, ends
        self.ended = threading.Event()
        self.main = threading.get_ident()

    async def run(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        self._soon(self._press)
        await carried_through(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        await self.over.wait()
        self.ended.set()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.over.set)

    def _soon(self, do: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(self.loop.call_later, 0.3, do)

    def _press(self) -> None:
        signal.pthread_kill(self.main, signal.SIGINT)

    def _pressed(self, *_: object) -> None:
        self.times -= 1
        if self.times:
            self._soon(self._press)
        elif self.ends:
            self._soon(self.over.set)
        raise KeyboardInterrupt

    @contextmanager
    def pressed(self) -> Iterator[None]:
        limit = threading.Timer(LIMIT_S, self.end)
        limit.start()
        before = signal.signal(signal.SIGINT, self._pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            limit.cancel()


@asynccontextmanager
async def left_by(slow: Interrupted) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await slow.run()


@asynccontextmanager
async def entered_by(slow: Interrupted) -> AsyncIterator[None]:
    await slow.run()
    yield


def in_a_block(slow: Interrupted, made: AbstractAsyncContextManager[None], *, raises: bool = False) -> None:
    loop = LoopThread()
    try:
        with entered(made, loop):
            if raises:
                raise KeyboardInterrupt
    finally:
        assert slow.ended.is_set() is slow.ends
        loop.close()


def in_a_call_of_trls(slow: Interrupted) -> None:
    with Background("rollouts") as rollouts:
        try:
            rollouts.call(slow.run())
        finally:
            assert slow.ended.is_set() is slow.ends


def way_in(slow: Interrupted) -> None:
    in_a_block(slow, entered_by(slow))


def way_out(slow: Interrupted) -> None:
    in_a_block(slow, left_by(slow))


def way_out_of_one_interrupted(slow: Interrupted) -> None:
    in_a_block(slow, left_by(slow), raises=True)


Way = Callable[[Interrupted], None]

ONCE: dict[str, Way] = {
    "on the way into a block": way_in,
    "on the way out of a block": way_out,
    "in a call of TRL's": in_a_call_of_trls,
}


@pytest.mark.parametrize("way", ONCE.values(), ids=ONCE)
def test_whoever_is_interrupted_once_is_told_when_it_is_through(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: the fleet is closed behind it, and a weight update would end half-way."""
    slow = Interrupted(1, ends=True)
    monkeypatch.setattr("sandgate.trainer.trl.background.JOIN_S", 0.01)
    with slow.pressed(), pytest.raises(KeyboardInterrupt):
        way(slow)


AGAIN: dict[str, tuple[Way, int]] = {
    "on the way into a block": (way_in, 2),
    "on the way out of a block": (way_out, 2),
    "on the way out of a block that was interrupted": (way_out_of_one_interrupted, 1),
    "in a call of TRL's": (in_a_call_of_trls, 2),
}


@pytest.mark.parametrize(("way", "times"), AGAIN.values(), ids=AGAIN)
def test_whoever_is_interrupted_again_gets_out_at_once(way: Way, times: int) -> None:
    slow = Interrupted(times, ends=False)
    with slow.pressed(), pytest.raises(KeyboardInterrupt):
        way(slow)
    assert (slow.times, slow.ended.is_set()) == (0, False)
