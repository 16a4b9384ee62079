"""Decides when to sweep: every few minutes, and soon after a watch began anew (it may have missed deletions)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandgate.contract.errors import SandgateError
from sandgate.operator.cluster.health import SWEEP_S

log = logging.getLogger(__name__)

QUIET_S = 1.0
"""After the last reason for a sweep: three watches that broke together are one sweep."""
WAIT_S_MAX = 5.0
"""After the first reason, whatever follows."""
RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""After a sweep that failed, doubled each time."""


@dataclass(slots=True)
class Sweeps:
    """Calls `sweep` from one task, never twice at the same time."""

    sweep: Callable[[], Awaitable[None]]
    told: Callable[[bool], None] = lambda ok: None
    """Whether it succeeded."""
    every_s: float = SWEEP_S
    quiet_s: float = QUIET_S
    wait_s_max: float = WAIT_S_MAX
    retry_s: float = RETRY_S
    clock: Callable[[], float] = time.monotonic
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def soon(self) -> None:
        """There is a reason. Cheap; many are one sweep."""
        self._asked.set()

    async def run(self) -> None:
        """For ever; the first sweep is at once. Only a failure that time may mend is tried again."""
        failed = 0
        while True:
            self._asked.clear()
            try:
                await self.sweep()
            except (SandgateError, OSError) as error:
                pause = min(self.retry_s * (1 << min(failed, 16)), RETRY_S_MAX)
                failed += 1
                log.warning("sweep failed: %s; again in %g s", str(error) or type(error).__name__, pause)
                self.told(False)
                await asyncio.sleep(pause)
                continue
            failed = 0
            self.told(True)
            await self._reason()

    async def _reason(self) -> None:
        try:
            async with asyncio.timeout(self.every_s):
                await self._asked.wait()
        except TimeoutError:
            return
        end = self.clock() + self.wait_s_max
        while (left := end - self.clock()) > 0:
            self._asked.clear()
            try:
                async with asyncio.timeout(min(self.quiet_s, left)):
                    await self._asked.wait()
            except TimeoutError:
                return
