"""The one place of the tests that may sleep: waits for a condition of another process, and says what it waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

POLL_S = 0.02
RESTS = 4
"""A look is followed by a pause so many times as long: what costs a tenth of a second, as a kubectl does, is not asked
for all the time on two cores that others need."""
REST_MAX_S = 0.5
WITHIN_S = 30.0
"""Of what takes milliseconds: a machine that others use stalls for seconds."""


async def until(
    condition: Callable[[], Awaitable[bool]],
    *,
    what: str,
    within_s: float = WITHIN_S,
    every_s: float | None = None,
) -> None:
    """Return when `condition` holds. Raises AssertionError naming `what` after `within_s` seconds.

    For what only another process can tell. In one process, wait for the event itself. `every_s`: the pause between
    looks; by default as long as a look deserves.
    """
    began = time.monotonic()
    end = began + within_s
    while not await condition():
        now = time.monotonic()
        assert now < end, f"still not so after {within_s} s: {what}"
        await asyncio.sleep(pause_after(now - began) if every_s is None else every_s)
        began = time.monotonic()


def pause_after(look_s: float) -> float:
    """Seconds to wait after a look that took so long."""
    return min(max(POLL_S, RESTS * look_s), REST_MAX_S)


async def paced(every_s: float = POLL_S) -> AsyncIterator[None]:
    """For ever, with a pause between rounds: the pace of a client that asks again and again."""
    while True:
        yield
        await asyncio.sleep(every_s)


def until_now(condition: Callable[[], bool], *, what: str, within_s: float = WITHIN_S) -> None:
    """The same without an event loop: for fixtures that start real machines."""
    began = time.monotonic()
    end = began + within_s
    while not condition():
        now = time.monotonic()
        assert now < end, f"still not so after {within_s} s: {what}"
        time.sleep(pause_after(now - began))
        began = time.monotonic()


def lasts(seconds: float) -> None:
    """Let an outage last: the length of a blow, not a wait for something to happen."""
    time.sleep(seconds)
