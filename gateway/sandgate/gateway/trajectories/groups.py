"""Groups of sessions: which attempts count for a task, and when a group is whole or closed. (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from sandgate.contract.failure_reasons import FailureClass
from sandgate.gateway.journal.records import Sealed

ALONE = "alone"
"""Member of `Opened.spec` of a session that is a group of its own though it has a task: another stands for the same
attempt at the same sample, and of those at most one counts. It was said at its creation, so that it stays so when the
other is forgotten."""


class GroupKey(NamedTuple):
    """A task of a job. A session that is a group of its own is named by `session`: one without a task, whose `uid` is
    empty, and one that is ALONE."""

    job: str
    uid: str
    session: str = ""


class Place(NamedTuple):
    """What a session stands for. Two of one place are never both offered."""

    key: GroupKey
    sample: int
    attempt: int


@dataclass(slots=True)
class Member:
    """One attempt at one sample."""

    session: str
    key: GroupKey
    sample: int
    attempt: int
    sealed: bool = False
    good: bool = False
    """Sealed, not aborted, and no failure of the infrastructure: it can count for its group."""
    leased: str = ""
    """The lease that has or had it last; empty if it was given back."""
    acked: str = ""
    """The lease that acknowledged it."""
    left_out: bool = False
    """It was acknowledged with its group, and whoever did was given none of its rows: only the journal has them."""
    changed_at: float = 0.0
    """When it was sealed, then when it was acknowledged."""

    def seal(self, record: Sealed) -> None:
        self.sealed, self.changed_at = True, max(self.changed_at, record.at)
        self.good = not record.aborted and record.failure_class != FailureClass.INFRA.value


@dataclass(slots=True)
class GroupState:
    """All attempts at all samples of one task.

    Of each sample at most one attempt counts: one that was acknowledged, else the newest good one, if no newer attempt
    is still running. Closing a group fixes which sessions count; later seals change nothing. One that is closed with
    none is lost.
    """

    key: GroupKey
    size: int = 1
    samples: dict[int, dict[str, Member]] = field(default_factory=dict)
    """Sample index -> its attempts by session id."""
    closed: frozenset[str] | None = None
    """The sessions that counted when it was closed; None = open."""

    def counting(self) -> list[Member]:
        """The attempts that count, in order of sample."""
        if self.closed is None:
            picks = [_pick(self.samples[sample]) for sample in sorted(self.samples)]
            return [pick for pick in picks if pick is not None]
        return [member for member in self.members() if member.session in self.closed]

    def lost(self) -> bool:
        """Whether it was closed and no session counts: there is nothing of it to train on, and never will be."""
        return self.closed is not None and not self.closed

    def whole(self) -> bool:
        """Whether every sample has an attempt that counts, or the group was closed."""
        return self.closed is not None or len(self.counting()) >= self.size

    def offer(self, *, whole: bool) -> list[Member]:
        """The attempts that a trainer may have now: they count and are not acknowledged. `whole`: none, unless the
        group is whole. Of a lost group those that failed, once, and without rows: whoever waits for the task must
        learn that it is over."""
        if self.lost():
            return self._failed()
        if whole and not self.whole():
            return []
        return [member for member in self.counting() if not member.acked]

    def _failed(self) -> list[Member]:
        if any(member.acked for member in self.members()):
            return []
        newest = (
            max(attempts.values(), key=lambda member: (member.sealed, member.attempt, member.session))
            for _, attempts in sorted(self.samples.items())
        )
        return [member for member in newest if member.sealed]

    def good_now(self) -> tuple[str, ...]:
        """The sessions that count if the group is closed now, in order of sample: running attempts are not waited
        for."""
        picks = [_newest_good(self.samples[sample]) for sample in sorted(self.samples)]
        return tuple(pick.session for pick in picks if pick is not None)

    def members(self) -> list[Member]:
        """All attempts at all samples, in order of sample."""
        return [member for sample in sorted(self.samples) for member in self.samples[sample].values()]

    def finished(self, before: float = inf) -> bool:
        """Whether every attempt is sealed and none will ever be offered again, and all that was so `before` (unix
        seconds)."""
        if any(member.changed_at >= before for member in self.members()):
            return False
        if not all(member.sealed for member in self.members()) or self.offer(whole=False):
            return False
        return bool(self.key.session) or self.whole()


def place_of(session: str, spec: dict[str, Any]) -> Place:
    """What a session stands for, from its `Opened.spec`."""
    sample, attempt = int(spec.get("sample_index") or 0), int(spec.get("attempt") or 0)
    return Place(group_key(session, spec), sample, attempt)


def group_key(session: str, spec: dict[str, Any]) -> GroupKey:
    """The group of a session, from its `Opened.spec`."""
    job, uid = str(spec.get("job") or ""), str(spec.get("uid") or "")
    return GroupKey(job, uid, session if spec.get(ALONE) or not uid else "")


def _pick(attempts: dict[str, Member]) -> Member | None:
    if len(attempts) == 1:  # nearly always, and asked for at each step of a lease
        (only,) = attempts.values()
        return only if only.acked or only.good else None
    acked = next((member for member in attempts.values() if member.acked), None)
    if acked is not None:
        return acked
    best = _newest_good(attempts)
    if best is None or any(not other.sealed and other.attempt > best.attempt for other in attempts.values()):
        return None
    return best


def _newest_good(attempts: dict[str, Member]) -> Member | None:
    acked = next((member for member in attempts.values() if member.acked), None)
    good = (member for member in attempts.values() if member.good)
    return acked or max(good, key=lambda member: (member.attempt, member.session), default=None)
