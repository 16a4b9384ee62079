"""Tells at once when a gateway of a local run cannot write its journal, as on a full disk, and when it can again.

Its turns are refused meanwhile, and calls of ours wait for it, for minutes and without a word. A gateway that cannot
write takes no sessions: agents would give up on it (in a cluster its readiness probe does the same). An agent that
died of it is tried again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandgate.contract.errors import FailureReason
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local.progress import Note, Problem, Tell
from sandgate.operator.observed.events import GatewayChanged, GatewaysBlocked, OutageSeen
from sandgate.operator.plan.actions import Outage

FULL_BYTES = 64 << 20
"""Less than that is free: the disk is what is wrong. A gateway sets half of it aside for itself (`journal.room`)."""


@dataclass(slots=True)
class Journals:
    """Of one run."""

    state: DriverState
    root: Path
    """The run's folder."""
    tell: Tell
    broken: dict[str, str] = field(default_factory=dict)
    """Gateway -> why its journal cannot be written."""
    outages: dict[str, Outage] = field(default_factory=dict)
    """Of these: what an agent that failed meanwhile, or ran out of time, failed of."""

    def look(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """What each gateway says of itself."""
        for name, one in said.items():
            journal = one["journal"]
            if not journal["healthy"] and name not in self.broken:
                self.broken[name] = str(journal["detail"])
                self.outages[name] = Outage(self.state.now(), None, FailureReason.GATEWAY_LOST)
                self.state.observe(OutageSeen(name, self.outages[name]))
                self.tell(
                    Problem(text=f"{name} cannot write its journal: {self._why(name)}; no turn of it goes on")
                )
                self._changed(name)
            elif journal["healthy"] and name in self.broken:
                del self.broken[name]
                self.state.observe(OutageSeen(name, replace(self.outages.pop(name), until=self.state.now())))
                self.tell(Note(text=f"{name} writes its journal again"))
                self._changed(name)

    def _why(self, name: str) -> str:
        try:
            free = shutil.disk_usage(self.root).free
        except OSError:
            return self.broken[name]
        if free >= FULL_BYTES:
            return self.broken[name]
        return f"{self.broken[name]}; {free >> 20} MiB are free in {self.root}: make room there"

    def _changed(self, name: str) -> None:
        self.state.observe(GatewaysBlocked("; ".join(f"{one}: {why}" for one, why in self.broken.items())))
        self.state.observe(GatewayChanged(name, ready=name not in self.broken))
