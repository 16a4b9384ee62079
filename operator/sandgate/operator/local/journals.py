"""Tells at once when a gateway of a local run cannot write its journal, as on a full disk, and when it can again.

Its turns are refused meanwhile, and calls of ours wait for it, for minutes and without a word. A gateway that cannot
write takes no sessions: agents would give up on it (in a cluster its readiness probe does the same). An agent that
died of it is tried again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandgate.operator.driver.journal_outages import JournalOutages
from sandgate.operator.local.progress import Note, Problem, Tell

FULL_BYTES = 64 << 20
"""Less than that is free: the disk is what is wrong. A gateway sets half of it aside for itself (`journal.room`)."""


@dataclass(slots=True)
class Journals(JournalOutages):
    """Of one run."""

    root: Path
    """The run's folder."""
    tell: Tell

    def look(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """What each gateway says of itself."""
        for name, one in said.items():
            news = self.heard(name, one)
            if news:
                self.tell(
                    Problem(text=f"{name} cannot write its journal: {self._why(name)}; no turn of it goes on")
                )
            elif news is not None:
                self.tell(Note(text=f"{name} writes its journal again"))

    def stepped(self, by: float) -> None:
        """The clock jumped: what lasts is known by its beginning, which moves with what was observed."""
        self.outages = {name: replace(one, since=one.since + by) for name, one in self.outages.items()}

    def _why(self, name: str) -> str:
        try:
            free = shutil.disk_usage(self.root).free
        except OSError:
            return self.broken[name]
        if free >= FULL_BYTES:
            return self.broken[name]
        return f"{self.broken[name]}; {free >> 20} MiB are free in {self.root}: make room there"
