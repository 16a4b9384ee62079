"""Pace: how far a job's trainer has come, as its gateways tell it: versions published, groups taken. (pure)

`plan.staleness` admits groups by it. Three things make the numbers safe to admit by:

- Versions are counted from the job's own beginning, and only upwards: what a trainer calls its first one is its own
  affair, and one that goes back to an older number has not given back what it had consumed.
- A gateway's answer is older than what is known here by now. So what it offers is subtracted from the groups that had
  settled when it was looked at *before*: a group that settles meanwhile counts as taken one look late, never early.
- Nothing depends on an answer that comes in time: what is seen late is counted then.

Whoever starts anew goes on with what was kept: a job's status, a local run's `versions.json`. The numbers are kept
together and change only with a version, so what was acknowledged since does not count early. Versions that nobody kept
were published while nobody looked, or when the last write failed: what was acknowledged by then is not known any more,
and what is by now may be of the next one. So each of them counts for one batch of it, which it consumed, and the
rest (groups that were dropped as too old) with the next version that is seen to come: later, never earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sandgate.contract.status import RolloutJobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What one gateway said last."""

    version: int | None
    """As a trainer told it; None: none has yet."""
    owed: int
    """Whole groups that no trainer has acknowledged."""
    leased: int
    """Of them, those that a trainer has."""
    settled: int = 0
    """Groups that had settled there when this was heard ..."""
    before: int | None = None
    """... and when something was heard before that; None: never."""

    @property
    def taken(self) -> int:
        """Not too many: of those that settled while it spoke it may offer some that it did not count."""
        return max(0, (self.before or 0) - (self.owed - self.leased))

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Shelf:
        """From a gateway's GET /v1/status. One of a release before may say nothing of groups, nor whether it was told
        its version: one over 0 was."""
        version, groups = int(status.get("policy_version") or 0), status.get("groups") or {}
        return cls(
            version=version if status.get("version_told", version > 0) else None,
            owed=int(groups.get("owed") or 0),
            leased=int(groups.get("leased") or 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What of the job's groups has settled, as is known here."""

    at: Mapping[str, int]
    """Gateway -> groups."""
    others: int
    """That were with a trainer before anybody looked who looks now."""
    ready: Collection[str]
    """Gateways that take sessions."""
    open_only: bool
    """None of those that have not settled can be whole at its gateway all the same."""
    batch: int = 0
    """Groups that a version consumes; 0: nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Of one job."""

    shelves: Mapping[str, Shelf] = field(default_factory=dict)
    others: int = 0
    """`Settled.others`."""
    version: int = 0
    """The newest that gateways were told."""
    published: int | None = 0
    """Versions that the trainer published since the job began. None: the job began under a release that did not count
    them, so the first that is seen says how many."""
    told: bool = False
    """The job's first version was seen: what comes after it is counted from there."""
    done: int | None = 0
    """Groups that were acknowledged when a version was last published; None: not known yet, as a release before did not
    keep it."""

    @classmethod
    def recalled(cls, version: int, published: int | None, done: int | None = None) -> Pace:
        """As whoever looked at the job before this one left it. Without `done` what is acknowledged now counts as
        acknowledged by the last version, if there was one, which may admit a batch early."""
        if done is None and published == 0:
            done = 0
        return cls(version=version, published=published, told=bool(version or published), done=done)

    @classmethod
    def of_status(cls, status: RolloutJobStatus | None) -> Pace:
        """The same. An operator of a release before took the number of a version for how many there were."""
        if status is None:
            return cls()
        version, counted = max(0, status.policy_version), status.published_versions
        return cls.recalled(version, version if counted is None else counted, status.acknowledged_at_version)

    @property
    def taken(self) -> int:
        """Groups that have left the gateways: a trainer has them, or has acknowledged them; or there was nothing to
        offer."""
        return self.others + sum(one.taken for one in self.shelves.values())

    @property
    def _acked(self) -> int:
        return self.others + sum(max(0, one.settled - one.owed) for one in self.shelves.values())

    def looked(self, gateway: str, said: Shelf, settled: Settled) -> Pace:
        """A gateway said this, when so much had settled."""
        last = self.shelves.get(gateway)
        before = None if last is None else last.settled
        said = replace(said, settled=settled.at.get(gateway, 0), before=before)
        now = replace(self, shelves={**self.shelves, gateway: said}, others=settled.others)
        known = all(name in now.shelves for name in settled.ready)
        if now.done is None and known:
            now = replace(now, done=now._acked)
        told = [one.version for one in now.shelves.values() if one.version is not None]
        if not told:
            return now
        all_told = known and len(told) == len(now.shelves)
        return now._counted(max(told), settled, all_told=all_told, came=before is not None)

    def _counted(self, newest: int, settled: Settled, *, all_told: bool, came: bool) -> Pace:
        """`came`: who tells of it was looked at before."""
        if newest == self.version and self.told:
            return self
        if self.published is None:
            return replace(self, version=newest, published=newest, told=True)
        if not self.told:
            # The number says where an earlier training ended. That there was a version before it, of which a trainer
            # has learned, is said by what it has taken: at any gateway, so each must have spoken.
            first = newest > 0 and not (settled.open_only and self._untouched(settled))
            if not all_told:
                return replace(self, version=newest)
            return self._published(newest, int(first), None if came else settled.batch)
        if newest > self.version:
            return self._published(newest, newest - self.version, None if came else settled.batch)
        # A lower one: but a gateway that has not spoken yet may know better.
        return replace(self, version=newest) if all_told else self

    def _untouched(self, settled: Settled) -> bool:
        """All groups that have settled are on offer still."""
        offered = sum(one.owed - one.leased for one in self.shelves.values())
        return settled.others + sum(settled.at.values()) == offered

    def _published(self, version: int, more: int, batch: int | None) -> Pace:
        """`batch`: all that each is known to have consumed; None: they came just now."""
        done = self.done
        if more:
            most = self._acked if batch is None else min(self._acked, (done or 0) + more * batch)
            done = max(done or 0, most)
        return replace(self, version=version, published=(self.published or 0) + more, told=True, done=done)
