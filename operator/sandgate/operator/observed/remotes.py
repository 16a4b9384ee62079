"""Remotes: sessions of agents elsewhere, which people apply: they are of a job, and none of its samples. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sandgate.contract.session import SessionSummary
from sandgate.operator.observed.frozen_map import FrozenMap
from sandgate.operator.plan.actions import Ref
from sandgate.operator.plan.remote import Attempt

REMOTE = "remote"
"""In the metadata that a gateway keeps of a session."""
METADATA: Mapping[str, bool] = {REMOTE: True}


def is_remote(said: SessionSummary) -> bool:
    """Was it opened for an agent elsewhere?"""
    return said.metadata.get(REMOTE) is True


@dataclass(frozen=True, slots=True)
class Remotes:
    """Of one job."""

    asked: FrozenMap[str, tuple[Ref, str]] = field(default_factory=FrozenMap)
    """AgentSessions that are not open yet -> (what they are, gateway that they name)."""
    homes: FrozenMap[str, str] = field(default_factory=FrozenMap)
    """Task -> the gateway of its sessions. Kept as long as the job: its other samples go there, whenever they come."""
    newest: FrozenMap[str, Mapping[int, Attempt]] = field(default_factory=FrozenMap)
    """Task -> sample -> its newest attempt. Kept as long: what a trainer has must not be made a second time."""
    live: FrozenMap[str, None] = field(default_factory=FrozenMap)
    """Sessions that are not sealed."""
    due: FrozenMap[str, None] = field(default_factory=FrozenMap)
    """Sessions that live, or that somebody is still to be given."""

    def ask(self, ref: Ref, gateway: str) -> Remotes:
        """Somebody wants it."""
        return replace(self, asked=self.asked.set(ref.name, (ref, gateway)))

    def place(self, uid: str, gateway: str) -> Remotes:
        """Sessions of this task are there."""
        return replace(self, homes=self.homes.set(uid, gateway))

    def of(self, uid: str, sample: int) -> Attempt | None:
        """The newest attempt at that sample."""
        return self.newest.get(uid, {}).get(sample)

    def opened(self, ref: Ref, gateway: str) -> Remotes:
        """It is at that gateway."""
        held = self.of(ref.uid, ref.sample)
        later = held is None or held.attempt <= ref.attempt
        return replace(
            self.withdrawn(ref.name),
            homes=self.homes if ref.uid in self.homes else self.homes.set(ref.uid, gateway),
            live=self.live.set(ref.name, None),
            due=self.due.set(ref.name, None),
            newest=self._with(ref, Attempt(ref.name, ref.attempt)) if later else self.newest,
        )

    def withdrawn(self, name: str) -> Remotes:
        """It is open, refused, or gone."""
        return replace(self, asked=self.asked.without(name)) if name in self.asked else self

    def refused(self, ref: Ref) -> Remotes:
        """It will not be opened. A task of which nothing is open is free again."""
        homes = self.homes if ref.uid in self.newest else self.homes.without(ref.uid)
        return replace(self.withdrawn(ref.name), homes=homes)

    def ended(self, ref: Ref, *, counts: bool) -> Remotes:
        """It is sealed; `counts`: a trainer will be given it."""
        held = self.of(ref.uid, ref.sample)
        last = held is not None and held.name == ref.name
        return replace(
            self,
            live=self.live.without(ref.name),
            due=self.due if counts else self.due.without(ref.name),
            newest=self._with(ref, Attempt(ref.name, ref.attempt, failed=not counts))
            if last
            else self.newest,
        )

    def forget(self, ref: Ref) -> Remotes:
        """Nothing is left to be done for it."""
        return replace(self, live=self.live.without(ref.name), due=self.due.without(ref.name))

    def _with(self, ref: Ref, attempt: Attempt) -> FrozenMap[str, Mapping[int, Attempt]]:
        return self.newest.set(ref.uid, {**self.newest.get(ref.uid, {}), ref.sample: attempt})
