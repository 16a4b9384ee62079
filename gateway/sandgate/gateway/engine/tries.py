"""Tries: the attempts at one generation so far: replicas that are out, what was lost, pauses that were waited out."""

from __future__ import annotations

import asyncio

from sandgate.contract.errors import EngineUnavailable, SandgateError
from sandgate.gateway.engine import health
from sandgate.gateway.engine.routing import ReplicaTable
from sandgate.gateway.engine.transport import Lost

LOSSES_MAX = 2
"""Connections to one replica that one generation may lose: the first can be a kept-alive one that was just closed."""

PAUSED_WAITS_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between tries while the engine refuses new requests because of a weight update; the last one repeats."""

PAUSED_MAX_S = 240.0
"""Seconds that a weight update may keep a generation out; JS SDKs give up at 300 s."""


class Tries:
    """The attempts at one generation so far: which replicas are out, and the error when none is left."""

    def __init__(self) -> None:
        self.out: set[str] = set()
        self._losses: dict[str, int] = {}
        self._last: SandgateError | None = None
        self._count = 0
        self._paused_s = 0.0
        self._pauses = 0

    def name(self, request_id: str) -> str:
        """A request id of its own for each attempt."""
        self._count += 1
        return request_id if self._count == 1 else f"{request_id}-r{self._count - 1}"

    def lost(self, url: str, error: Lost) -> bool:
        """A connection was lost. Returns whether the replica counts as down now."""
        self._losses[url] = self._losses.get(url, 0) + 1
        if not error.refused and self._losses[url] < LOSSES_MAX:
            return False
        self.out.add(url)
        self._last = EngineUnavailable(f"engine {url}: {error}", retry_after=health.PROBE_S)
        return True

    def refused(self, url: str, error: SandgateError) -> None:
        """The replica is overloaded or unavailable: the next one may take the generation."""
        self.out.add(url)
        self._last = error

    async def wait_out_pause(self) -> None:
        """Waits between two tries. Raises EngineUnavailable after PAUSED_MAX_S in all."""
        if self._paused_s >= PAUSED_MAX_S:
            raise EngineUnavailable(f"the engine was paused for over {PAUSED_MAX_S:g} s", retry_after=5.0)
        seconds = PAUSED_WAITS_S[min(self._pauses, len(PAUSED_WAITS_S) - 1)]
        self._pauses += 1
        self._paused_s += seconds
        await asyncio.sleep(seconds)

    def verdict(self, table: ReplicaTable) -> SandgateError:
        """The error where no replica is left."""
        if self._last is not None:
            return self._last
        return health.none_up(table.status())
