"""Cancelling at every wait: whoever is cancelled anywhere leaves nothing to undo."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from itertools import count
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def cancelled_at(work: Coroutine[Any, Any, T], number: int, *, late: bool) -> T:
    """What `work` gives, in a task that is cancelled when it waits for the `number`-th time, from 1; raises
    CancelledError. `late`: when what it waits for is there, and before it goes on."""

    async def stepped() -> T:
        return await _stepped(work, number, late=late)

    return await asyncio.ensure_future(stepped())


@coroutine
def _stepped(work: Coroutine[Any, Any, T], number: int, *, late: bool) -> Generator[Any, Any, T]:
    task, value, error = asyncio.current_task(), None, None
    assert task is not None
    for wait in count(1):
        try:
            awaited = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            given: T = end.value
            return given
        if wait == number and late and awaited is not None:
            awaited.add_done_callback(lambda _: task.cancel())
        elif wait == number:
            task.cancel()
        try:
            value, error = (yield awaited), None
        except BaseException as thrown:  # noqa: BLE001 - it is thrown into `work`
            error = thrown
    raise AssertionError("it counts for ever")
