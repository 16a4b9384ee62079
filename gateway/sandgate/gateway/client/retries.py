"""When a call is sent again: attempts, a deadline, growing pauses with jitter, Retry-After. (pure)"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sandgate.contract.errors import SandgateError

BACKOFF_S = 0.1
"""The first pause, with up to as much again; doubles, so that many clients do not come back together."""
BACKOFF_MAX_S = 10.0
"""Also the most of a Retry-After that is kept: looking again is cheap."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Bounds on trying again."""

    attempts: int | None = 6
    """Requests sent for one call, the first included; None: as many as the deadline allows."""
    deadline_s: float = math.inf
    """From the first attempt, beyond what the gateway holds the answer back on purpose."""
    longest_s: float = BACKOFF_MAX_S
    """Of the growing pauses."""

    def delay(self, attempt: int, error: SandgateError, chance: float, spent_s: float = 0.0) -> float | None:
        """Seconds until the next attempt, None if that was the last. `attempt` counts from 1; `chance` is in [0, 1);
        `spent_s`: since the first attempt."""
        if self.attempts is not None and attempt >= self.attempts:
            return None
        grown = min(self.longest_s, BACKOFF_S * 2 ** min(attempt, 16) * (0.5 + chance / 2))
        pause = max(grown, min(error.retry_after or 0.0, BACKOFF_MAX_S))
        return None if spent_s + pause >= self.deadline_s else pause
