"""HeardTrainers: when each gateway last heard a trainer, by the operator's clock, whatever the gateway's says. (pure)

A gateway whose host is some minutes behind would tell of a silence that there was not: jobs have been ended for less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class HeardTrainers:
    """Of one job's gateways."""

    _told: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Gateway -> when that was by its own clock, and by ours; 0: never in its life."""

    def says(self, gateway: str, status: Mapping[str, Any], now: float) -> None:
        """Its GET /v1/status. What it said before stays when it was: answers take now more time, now less. Older
        gateways tell no age, and their clock is taken for ours."""
        theirs, age = float(status.get("trainer_seen_at") or 0.0), status.get("trainer_age_s")
        if self._told.get(gateway, (None,))[0] != theirs:
            self._told[gateway] = theirs, theirs if age is None else now - float(age)

    def all_told(self, gateways: Iterable[str]) -> bool:
        """Each of these has said so once."""
        return self._told.keys() >= set(gateways)

    @property
    def newest(self) -> float:
        """0: none was heard."""
        return max((ours for _, ours in self._told.values()), default=0.0)
