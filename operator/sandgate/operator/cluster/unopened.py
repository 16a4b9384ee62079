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
        if not self._tell(ref, why):
            self._said[ref] = why

    def unwelcome(self, ref: Ref, why: str) -> None:
        """What it needs was made, and its gateway does not take it. An operator before this one may have made that:
        then it counts as open."""
        self._unwelcome[ref] = why
        self._tell(ref, why)

    def _tell(self, ref: Ref, why: str) -> bool:
        """False: it is not open. What is, has a pod that waits for this."""
        if ref.name not in self.at.observed.sessions:
            return False
        self.at.observe(AgentHeld(ref, why))
        return True

    def made(self, ref: Ref) -> None:
        """All that it needs is there."""
        self._said.pop(ref, None)

    def opened(self, ref: Ref) -> None:
        """Its gateway took it."""
        self._unwelcome.pop(ref, None)

    def words(self) -> str:
        """What most of those that are still to be opened were refused for; of several as frequent the first."""
        self._said = {ref: why for ref, why in self._said.items() if self._is_wanted(ref)}
        unwelcome = (why for ref, why in self._unwelcome.items() if self._is_wanted(ref))
        counts = Counter((*self._said.values(), *unwelcome))
        return max(counts, key=counts.__getitem__, default="")

    def behind(self) -> frozenset[SampleKey]:
        """Those that a gateway does not take."""
        self._unwelcome = {
            ref: why for ref, why in self._unwelcome.items() if self._is_wanted(ref) or self._is_held(ref)
        }
        return frozenset((ref.uid, ref.sample) for ref in self._unwelcome)

    def _is_held(self, ref: Ref) -> bool:
        """It counts as open, and has no sandbox."""
        seen = self.at.observed.sessions.get(ref.name)
        return seen is not None and seen.sandbox is None and seen.stop is None

    def _is_wanted(self, ref: Ref) -> bool:
        group = self.at.observed.groups.get(ref.uid)
        return group is not None and not group.closed and ref.name not in self.at.observed.sessions
