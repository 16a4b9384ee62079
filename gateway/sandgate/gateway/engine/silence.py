"""Silence: lets go of generations that wait for a server which answers no probe any more, so that another goes on.

A process that hangs keeps its connections: its kernel goes on to acknowledge, and nothing ever breaks. Without this a
generation would wait there for the engine's whole time-out, and its session run out of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandgate.gateway.engine.transport import Lost

SILENT_S = 120.0
"""Without an answer to any probe. A server that loads weights, or compiles, may say nothing for a minute."""


@dataclass(slots=True)
class Silence:
    """Of all replicas of a pool."""

    after_s: float = SILENT_S
    _since: dict[str, float] = field(default_factory=dict)
    """Replica -> when it first did not answer, in the loop's time."""
    _waits: dict[str, set[asyncio.Timeout]] = field(default_factory=dict)

    @asynccontextmanager
    async def broken_for(self, url: str) -> AsyncIterator[None]:
        """What waits for this replica in the block is let go of. Raises Lost then."""
        waits, limit = self._waits.setdefault(url, set()), asyncio.timeout(None)
        try:
            async with limit:
                waits.add(limit)
                try:
                    yield
                finally:
                    waits.discard(limit)
                    if not waits:
                        self._waits.pop(url, None)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Lost(f"it has answered nothing for {self.after_s:g} s", refused=False) from None

    def heard(self, url: str, *, silent: bool) -> None:
        """Takes note of a probe."""
        if not silent:
            self._since.pop(url, None)
            return
        now = asyncio.get_running_loop().time()
        if now >= self._since.setdefault(url, now) + self.after_s:
            for limit in self._waits.get(url, ()):
                limit.reschedule(now)

    def keep(self, urls: Container[str]) -> None:
        """Forgets all other replicas: an address may come again as another server's."""
        self._since = {url: at for url, at in self._since.items() if url in urls}
