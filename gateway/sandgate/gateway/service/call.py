"""ModelCall: one request in the making, apart from its connection; retries join it, streams follow it (keep-alive)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.protocols.base import TokenLogprobs
from sandgate.gateway.service.partial import PartialChoice
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.waking import Bell
from sandgate.gateway.tokens.api import ParseDelta

Step = tuple[int, list[ParseDelta], TokenLogprobs | None]
"""(choice index, deltas of its reply, the tokens that arrived with them if logprobs were asked for)."""


HEADERS_HOLD_S = 2.0
"""Seconds for which a stream's headers wait for its first token. An engine's refusal is a status until they have left
(SDKs retry it, and obey its Retry-After), and the end of the answer afterwards."""


@dataclass(slots=True, eq=False)
class ModelCall:
    """One request's n generations. `done` resolves when they are durable; the whole answer is not sent before."""

    session: Session
    request: TurnRequest
    turns: tuple[str, ...]
    """Turn ids, one per choice."""
    begun: float
    """Unix seconds; the answer's `created`, streamed or not, now or in a replay."""
    done: asyncio.Future[list[Turn]]
    prepared: asyncio.Future[None]
    """Resolves when the prompt is rendered and admitted."""
    task: asyncio.Task[None] | None = None
    prompt_tokens: int = 0
    """Known when it is prepared."""
    fork: str | None = None
    listeners: int = 0
    steps: list[Step] = field(default_factory=list)
    """The answer so far, if it is streamed: a retry that joins starts from the first step."""
    pieces: list[list[int]] = field(default_factory=list)
    """For each choice, while it is streamed, how many tokens came at once: a replay is cut into the same pieces."""
    heard: dict[int, PartialChoice] = field(default_factory=dict)
    """What has arrived of each choice, while it is streamed."""
    told: bool = False
    """Some of it was sent down a stream."""
    doomed: bool = False
    """Cancelled or failed: the same request gets a new call now."""
    committing: bool = False
    """Its turns are being made durable: it is too late to cancel."""
    linger: asyncio.TimerHandle | None = None
    _waiters: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pieces = [[] for _ in self.turns]

    def say(self, index: int, deltas: list[ParseDelta], tokens: TokenLogprobs | None = None) -> None:
        """Adds a step to choice `index`, and wakes the followers."""
        if deltas or tokens is not None:
            self.steps.append((index, deltas, tokens))
            self.wake()

    def wake(self) -> None:
        """Wakes the followers: the call changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def cancel(self) -> None:
        """Aborts the call in the engine, unless its turns are being made durable already."""
        if self.task is not None and not self.committing:
            self.doomed = True
            self.task.cancel()

    async def started(self, keepalive_s: float, gone: asyncio.Future[Any]) -> None:
        """Returns when there is something to tell: a step, the end, or that the client is gone (`gone`); at the latest
        after HEADERS_HOLD_S, or after `keepalive_s`, if that is less."""
        hold = min(HEADERS_HOLD_S, keepalive_s)
        await self._until(lambda: bool(self.steps) or self.done.done(), gone, hold)

    async def ended(self, gone: asyncio.Future[Any]) -> None:
        """Returns when the call is over, or the client gone."""
        await self._until(self.done.done, gone)

    async def _until(
        self, ready: Callable[[], bool], gone: asyncio.Future[Any], within_s: float | None = None
    ) -> None:
        """Waits to be woken until the call is `ready`; not for ever. `wake` is heard a turn of the loop, or two, before
        the callbacks of `done`: each turn costs as much as much work."""
        if ready() or gone.done():
            return
        with Bell(self._waiters, gone) as bell:
            if within_s is not None:
                bell.ring_at(asyncio.get_running_loop().time() + within_s)
            while not (ready() or bell.rang or gone.done()):
                await bell.wait()

    async def follow(self, keepalive_s: float, gone: asyncio.Future[Any]) -> AsyncIterator[list[Step]]:
        """Yields new steps as they come, and an empty list after `keepalive_s` without one. Ends when the call is
        durable, or as soon as `gone` is done (the client's connection broke). Raises what the call raised."""
        loop = asyncio.get_running_loop()
        sent, yielded_at = 0, loop.time()
        with Bell(self._waiters, gone) as bell:
            bell.ring_at(yielded_at + keepalive_s)
            while not gone.done():
                if sent < len(self.steps):
                    fresh, sent = self.steps[sent:], len(self.steps)
                    yielded_at = loop.time()
                    yield fresh
                    continue
                if self.done.done():
                    self.done.result()
                    return
                if loop.time() >= yielded_at + keepalive_s:
                    yielded_at = loop.time()
                    yield []
                    continue
                if bell.rang:  # one timer for many steps. It may ring when, to the clock, it is not yet due
                    bell.ring_at(yielded_at + keepalive_s)
                await bell.wait()
