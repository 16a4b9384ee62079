"""Unopened: sessions that cannot begin, and the words of who does not take them: the API server their keys or their
AgentSession (a quota, a webhook), a gateway the session itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.observed.events import AgentHeld
from sandgate.operator.plan.actions import Ref, SampleKey


@dataclass(slots=True)
class Unopened:
    """Of one job. Nobody is told of a refusal: it is tried again soon, and planned anew before that."""

    at: JobState
    _said: dict[Ref, str] = field(default_factory=dict)
    """By the API server."""
    _unwelcome: dict[Ref, str] = field(default_factory=dict)
    """By a gateway: of this session, not of the next."""

    def refused(self, ref: Ref, why: str) -> None:
        """What it needs was not made."""
        self._keep(self._said, ref, why)

    def unwelcome(self, ref: Ref, why: str) -> None:
        """What it needs was made, and its gateway does not take it."""
        self._keep(self._unwelcome, ref, why)

    def _keep(self, those: dict[Ref, str], ref: Ref, why: str) -> None:
        if ref.name in self.at.observed.sessions:  # it was open; its pod waits for this
            self.at.observe(AgentHeld(ref, why))
        else:
            those[ref] = why

    def made(self, ref: Ref) -> None:
        """All that it needs is there."""
        self._said.pop(ref, None)

    def opened(self, ref: Ref) -> None:
        """Its gateway took it."""
        self._unwelcome.pop(ref, None)

    def words(self) -> str:
        """What most of those that are still to be opened were refused for; of several as frequent the first."""
        self._said, self._unwelcome = self._wanted(self._said), self._wanted(self._unwelcome)
        counts = Counter((*self._said.values(), *self._unwelcome.values()))
        return max(counts, key=counts.__getitem__, default="")

    def behind(self) -> frozenset[SampleKey]:
        """Those that a gateway does not take."""
        self._unwelcome = self._wanted(self._unwelcome)
        return frozenset((ref.uid, ref.sample) for ref in self._unwelcome)

    def _wanted(self, those: dict[Ref, str]) -> dict[Ref, str]:
        return {ref: why for ref, why in those.items() if self._is_wanted(ref)}

    def _is_wanted(self, ref: Ref) -> bool:
        group = self.at.observed.groups.get(ref.uid)
        return group is not None and not group.closed and ref.name not in self.at.observed.sessions
