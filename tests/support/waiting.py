"""The one place of the tests that may sleep: waits for a condition of another process, and says what it waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

POLL_S = 0.02
WITHIN_S = 30.0
"""Of what takes milliseconds: a machine that others use stalls for seconds."""


async def until(
    condition: Callable[[], Awaitable[bool]],
    *,
    what: str,
    within_s: float = WITHIN_S,
    every_s: float = POLL_S,
) -> None:
    """Return when `condition` holds. Raises AssertionError naming `what` after `within_s` seconds.

    For what only another process can tell. In one process, wait for the event itself. `every_s`: where looking costs
    the other side more than a moment.
    """
    end = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < end, f"still not so after {within_s} s: {what}"
        await asyncio.sleep(every_s)


async def paced(every_s: float = POLL_S) -> AsyncIterator[None]:
    """For ever, with a pause between rounds: the pace of a client that asks again and again."""
    while True:
        yield
        await asyncio.sleep(every_s)


def until_now(condition: Callable[[], bool], *, what: str, within_s: float = WITHIN_S) -> None:
    """The same without an event loop: for fixtures that start real machines."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"still not so after {within_s} s: {what}"
        time.sleep(POLL_S)


def lasts(seconds: float) -> None:
    """Let an outage last: the length of a blow, not a wait for something to happen."""
    time.sleep(seconds)
