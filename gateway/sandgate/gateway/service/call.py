"""A model call in the making, detached from the connection that asked for it: retries join it, streams follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.protocols.base import TokenLogprobs
from sandgate.gateway.service.partial import PartialChoice
from sandgate.gateway.service.session import Session
from sandgate.gateway.tokens.api import ParseDelta

Step = tuple[int, list[ParseDelta], TokenLogprobs | None]
"""(choice index, what it said, the tokens that arrived with it if logprobs were asked for)."""


@dataclass(slots=True, eq=False)
class ModelCall:
    """One request's n generations. `done` resolves when they are durable; nothing is told before."""

    session: Session
    request: TurnRequest
    turns: tuple[str, ...]
    """Turn ids, one per choice."""
    begun: float
    """Unix seconds; the answer's `created`, streamed or not, now or in a replay."""
    done: asyncio.Future[list[Turn]]
    prepared: asyncio.Future[None]
    """The prompt is rendered and admitted: from here on headers may go out."""
    task: asyncio.Task[None] | None = None
    fork: str | None = None
    listeners: int = 0
    steps: list[Step] = field(default_factory=list)
    """What was said so far, if it is streamed: a joiner starts from the first."""
    pieces: list[list[int]] = field(default_factory=list)
    """Per choice how many tokens came at once, while it is streamed: a replay is cut the same way."""
    heard: dict[int, PartialChoice] = field(default_factory=dict)
    """Per choice what has arrived of it, while it is streamed."""
    doomed: bool = False
    """Cancelled or failed: whoever asks now gets a call of its own."""
    committing: bool = False
    """Its turns are being made durable: too late to cancel."""
    linger: asyncio.TimerHandle | None = None
    _waiters: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pieces = [[] for _ in self.turns]

    def say(self, index: int, deltas: list[ParseDelta], tokens: TokenLogprobs | None = None) -> None:
        """More of choice `index`; wakes the followers."""
        if deltas or tokens is not None:
            self.steps.append((index, deltas, tokens))
            self.wake()

    def wake(self) -> None:
        """Something changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def cancel(self) -> None:
        """Abort it in the engine, unless it has its answer already."""
        if self.task is not None and not self.committing:
            self.doomed = True
            self.task.cancel()

    async def follow(self, keepalive_s: float, gone: asyncio.Future[Any]) -> AsyncIterator[list[Step]]:
        """New steps as they come; an empty list after `keepalive_s` of silence. Ends when the call is durable, or
        as soon as `gone` is done (the client's connection broke); raises what the call raised."""
        loop = asyncio.get_running_loop()
        at, heard = 0, loop.time()
        waiter: asyncio.Future[None] = loop.create_future()

        def poke(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        gone.add_done_callback(poke)
        timer = loop.call_at(heard + keepalive_s, poke)
        try:
            while not gone.done():
                if at < len(self.steps):
                    fresh, at = self.steps[at:], len(self.steps)
                    heard = loop.time()
                    yield fresh
                    continue
                if self.done.done():
                    self.done.result()
                    return
                if loop.time() >= heard + keepalive_s:
                    heard = loop.time()
                    yield []
                    continue
                if timer.cancelled() or timer.when() <= loop.time():  # one timer, moved on only when it fired
                    timer = loop.call_at(heard + keepalive_s, poke)
                waiter = loop.create_future()
                self._waiters.add(waiter)
                try:
                    await waiter
                finally:
                    self._waiters.discard(waiter)
        finally:
            timer.cancel()
            gone.remove_done_callback(poke)
