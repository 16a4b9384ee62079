"""A model call in the making, detached from the connection that asked for it: retries join it, streams follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.turns import Turn
from sandgate.gateway.protocols.base import Tokens
from sandgate.gateway.session import Session
from sandgate.gateway.tokens.api import ParseDelta

Step = tuple[int, list[ParseDelta], Tokens | None]
"""(choice index, what it said, the tokens that arrived with it if logprobs were asked for)."""


@dataclass(slots=True, eq=False)
class Call:
    """One request's n generations. `done` resolves when they are durable; nothing is told before."""

    session: Session
    request: TurnRequest
    turns: tuple[str, ...]
    """Turn ids, one per choice."""
    done: asyncio.Future[list[Turn]]
    prepared: asyncio.Future[None]
    """The prompt is rendered and admitted: from here on headers may go out."""
    task: asyncio.Task[None] | None = None
    fork: str | None = None
    listeners: int = 0
    steps: list[Step] = field(default_factory=list)
    replayed: bool = False
    linger: asyncio.TimerHandle | None = None
    _waiter: asyncio.Future[None] | None = None

    def say(self, index: int, deltas: list[ParseDelta], tokens: Tokens | None = None) -> None:
        """More of choice `index`; wakes the followers."""
        if deltas or tokens is not None:
            self.steps.append((index, deltas, tokens))
            self.wake()

    def wake(self) -> None:
        """Something changed."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def follow(self, keepalive_s: float) -> AsyncIterator[list[Step]]:
        """New steps as they come; an empty list after `keepalive_s` of silence. Ends when the call is durable;
        raises what the call raised."""
        at = 0
        loop = asyncio.get_running_loop()
        while True:
            if at < len(self.steps):
                fresh, at = self.steps[at:], len(self.steps)
                yield fresh
                continue
            if self.done.done():
                self.done.result()
                return
            if self._waiter is None:
                self._waiter = loop.create_future()
            waiter = self._waiter
            timer = loop.call_later(keepalive_s, self.wake)
            try:
                await waiter
            finally:
                timer.cancel()
            if at == len(self.steps) and not self.done.done():
                yield []
