"""Remotes: sessions of agents elsewhere, which people apply: they are of a job, and none of its samples. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sandgate.contract.session import SessionSummary
from sandgate.operator.plan.actions import Ref
from sandgate.operator.plan.remote import Attempt

K = TypeVar("K")
V = TypeVar("V")

REMOTE = "remote"
"""In the metadata that a gateway keeps of a session."""
METADATA: Mapping[str, bool] = {REMOTE: True}


def is_remote(said: SessionSummary) -> bool:
    """Was it opened for an agent elsewhere?"""
    return said.metadata.get(REMOTE) is True


@dataclass(frozen=True, slots=True)
class Remotes:
    """Of one job."""

    asked: Mapping[str, tuple[Ref, str]] = field(default_factory=dict)
    """AgentSessions that are not open yet -> (what they are, gateway that they name)."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """Task -> the gateway of its sessions."""
    newest: Mapping[tuple[str, int], Attempt] = field(default_factory=dict)
    """(task, sample) -> its newest attempt."""
    live: Mapping[str, None] = field(default_factory=dict)
    """Sessions that are not sealed."""
    due: frozenset[str] = frozenset()
    """Sessions that live, or that somebody is still to be given."""

    def ask(self, ref: Ref, gateway: str) -> Remotes:
        """Somebody wants it."""
        return replace(self, asked={**self.asked, ref.name: (ref, gateway)})

    def place(self, uid: str, gateway: str) -> Remotes:
        """Sessions of this task are there."""
        return replace(self, homes={**self.homes, uid: gateway})

    def opened(self, ref: Ref, gateway: str) -> Remotes:
        """It is at that gateway."""
        held, newest = self.newest.get((ref.uid, ref.sample)), self.newest
        if held is None or held.attempt <= ref.attempt:
            newest = {**newest, (ref.uid, ref.sample): Attempt(ref.name, ref.attempt)}
        return replace(
            self.withdrawn(ref.name),
            homes={ref.uid: gateway, **self.homes},
            live={**self.live, ref.name: None},
            due=self.due | {ref.name},
            newest=newest,
        )

    def withdrawn(self, name: str) -> Remotes:
        """It is open, refused, or gone."""
        return replace(self, asked=_without(self.asked, name)) if name in self.asked else self

    def refused(self, ref: Ref) -> Remotes:
        """It will not be opened. A task of which nothing is open is free again."""
        free = not any(uid == ref.uid for uid, _ in self.newest)
        homes = _without(self.homes, ref.uid) if free else self.homes
        return replace(self.withdrawn(ref.name), homes=homes)

    def ended(self, ref: Ref, *, counts: bool) -> Remotes:
        """It is sealed; `counts`: a trainer will be given it."""
        held, newest = self.newest.get((ref.uid, ref.sample)), self.newest
        if held is not None and held.name == ref.name:
            newest = {**newest, (ref.uid, ref.sample): Attempt(ref.name, ref.attempt, failed=not counts)}
        due = self.due if counts else self.due - {ref.name}
        return replace(self, live=_without(self.live, ref.name), due=due, newest=newest)

    def forget(self, ref: Ref) -> Remotes:
        """Nothing is left to be done for it."""
        return replace(self, live=_without(self.live, ref.name), due=self.due - {ref.name})


def _without(entries: Mapping[K, V], key: K) -> Mapping[K, V]:
    return {name: value for name, value in entries.items() if name != key}
