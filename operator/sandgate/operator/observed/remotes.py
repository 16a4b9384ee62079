"""Sessions of agents elsewhere, which people apply: they belong to a job but are none of its samples. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandgate.contract.session import SessionSummary
from sandgate.operator.plan.actions import Ref
from sandgate.operator.plan.remote import Attempt

REMOTE = "remote"
"""In the metadata that a gateway keeps of a session."""
METADATA: Mapping[str, bool] = {REMOTE: True}


def is_remote(said: SessionSummary) -> bool:
    """Was it opened for an agent elsewhere?"""
    return said.metadata.get(REMOTE) is True


@dataclass(slots=True)
class Remotes:
    """Of one job."""

    asked: dict[str, tuple[Ref, str]] = field(default_factory=dict)
    """AgentSessions that are not open yet -> (what they are, gateway that they name)."""
    looked: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """What of the job was seen when they were planned last."""
    homes: dict[str, str] = field(default_factory=dict)
    """Task -> the gateway of its sessions."""
    newest: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    """(task, sample) -> its newest attempt."""
    live: dict[str, None] = field(default_factory=dict)
    """Sessions that are not sealed."""
    _owed: set[str] = field(default_factory=set)

    @property
    def owed(self) -> int:
        """Sessions that live, or that somebody is still to be given."""
        return len(self._owed)

    def opened(self, ref: Ref, gateway: str) -> None:
        """It is at that gateway."""
        self.no_more(ref.name)
        self.homes.setdefault(ref.uid, gateway)
        self.live[ref.name] = None
        self._owed.add(ref.name)
        held = self.newest.get((ref.uid, ref.sample))
        if held is None or held.attempt <= ref.attempt:
            self.newest[ref.uid, ref.sample] = Attempt(ref.name, ref.attempt)

    def no_more(self, name: str) -> None:
        """It is open, refused, or gone."""
        self.asked.pop(name, None)
        self.looked.pop(name, None)

    def refused(self, ref: Ref) -> None:
        """It will not be opened. A task of which nothing is open is free again."""
        self.no_more(ref.name)
        if not any(uid == ref.uid for uid, _ in self.newest):
            self.homes.pop(ref.uid, None)

    def ended(self, ref: Ref, *, counts: bool) -> None:
        """It is sealed; `counts`: a trainer will be given it."""
        self.live.pop(ref.name, None)
        if not counts:
            self._owed.discard(ref.name)
        held = self.newest.get((ref.uid, ref.sample))
        if held is not None and held.name == ref.name:
            self.newest[ref.uid, ref.sample] = Attempt(ref.name, ref.attempt, failed=not counts)

    def forget(self, ref: Ref) -> None:
        """Nothing is left to be done for it."""
        self.live.pop(ref.name, None)
        self._owed.discard(ref.name)
