"""Unopened: sessions whose keys or AgentSession the API server does not take (a quota, a webhook), and its words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.observed.events import AgentHeld
from sandgate.operator.plan.actions import Ref


@dataclass(slots=True)
class Unopened:
    """Of one job. Nobody is told of a refusal: it is tried again soon, and planned anew before that."""

    at: JobState
    _said: dict[Ref, str] = field(default_factory=dict)

    def refused(self, ref: Ref, why: str) -> None:
        """What it needs was not made."""
        if ref.name in self.at.observed.sessions:  # it was open; its pod waits for this
            self.at.observe(AgentHeld(ref, why))
        else:
            self._said[ref] = why

    def made(self, ref: Ref) -> None:
        """All of it is there."""
        self._said.pop(ref, None)

    def words(self) -> str:
        """What most of those that are still to be opened were refused for; of several as frequent the first."""
        self._said = {ref: why for ref, why in self._said.items() if self._is_wanted(ref)}
        counts = Counter(self._said.values())
        return max(counts, key=counts.__getitem__, default="")

    def _is_wanted(self, ref: Ref) -> bool:
        group = self.at.observed.groups.get(ref.uid)
        return group is not None and not group.closed and ref.name not in self.at.observed.sessions
