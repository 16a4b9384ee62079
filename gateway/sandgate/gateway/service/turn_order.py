"""Commit order of a session's turns: one at a time is decided and committed.

What a turn is (its fork, its role) depends on the turns before it. Two that end at once would each be decided without
the other, while the first is on its way to the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TurnOrder:
    """Locks by session id; each lives as long as somebody holds it or waits."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def of(self, session_id: str) -> AsyncIterator[None]:
        """Holds the session's place, from the look at its tree until the turn stands there. First come, first
        served."""
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        self._users[session_id] = self._users.get(session_id, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[session_id] -= 1
            if not self._users[session_id]:
                del self._users[session_id], self._locks[session_id]
