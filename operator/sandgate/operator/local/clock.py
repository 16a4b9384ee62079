"""The clock of a local run: unix seconds, as all of its processes have them; it notices when they jump."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_S = 2.0
"""A smaller step changes nothing that matters: no limit is that short. Clocks that are slewed stay far below it, as
each look is compared with the one before."""
APART_S = 0.1
"""Both clocks are read within it, or again: a process that was held up between them must not take that for a step."""


class RunClock:
    """`time.time`, which says what it was stepped by: set by hand or by NTP, or by a machine that slept meanwhile
    (CLOCK_MONOTONIC stands still then, as do agents)."""

    def __init__(
        self, wall: Callable[[], float] | None = None, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._steady = wall or time.time, steady
        self.stepped: Callable[[float], None] = lambda by: None
        """Told of each step, before anybody is given a time that is by it."""
        self._ahead = self._read()[1]

    def __call__(self) -> float:
        """Unix seconds."""
        now, ahead = self._read()
        by, self._ahead = ahead - self._ahead, ahead
        if abs(by) >= STEP_S:
            self.stepped(by)
        return now

    def _read(self) -> tuple[float, float]:
        """(unix seconds, by how much they are ahead of the steady clock)."""
        while True:
            before, now, after = self._steady(), self._wall(), self._steady()
            if after - before <= APART_S:
                return now, now - after
