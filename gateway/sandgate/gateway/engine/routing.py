"""Routing of generations to replicas: a group stays on one; a new group goes to the least busy that is up. (pure)"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, field

from sandgate.gateway.engine.api import EngineStatus

HOMES_MAX = 20_000
"""Limit of groups whose replica is remembered; the least recently used is forgotten, which costs its prefix cache."""

FAILURES_MAX = 2
"""Failed probes in a row until a replica is down: one may be a busy event loop in the engine's API server."""


@dataclass(slots=True)
class Replica:
    """One engine server, as this process sees it."""

    url: str
    healthy: bool = True
    """True until a probe fails; a replica that is not up yet costs one refused connection."""
    in_flight: int = 0
    homes: int = 0
    """Groups that go to this replica."""
    failures: int = 0
    """Failed probes in a row."""
    detail: str = ""
    doubt: str = ""
    """Why the version of its weights is unknown; it gets no new generation. Its health is another matter."""
    unmeasured: str = ""
    """Why its logprobs mode is not measured yet; new generations wait for that."""
    wrong: str = ""
    """Why its logprobs are of the wrong mode; it gets no new generation."""
    leaving: bool = False
    """Removed from the set: it gets no new generation, and is dropped with its last one."""


@dataclass(slots=True)
class ReplicaTable:
    """Replicas, and the replica of each group. Counts are reserved before the caller awaits anything."""

    replicas: dict[str, Replica]
    _homes: OrderedDict[str, str] = field(default_factory=OrderedDict)

    @staticmethod
    def of(urls: tuple[str, ...]) -> ReplicaTable:
        """All healthy, none in flight. Order decides ties."""
        return ReplicaTable({url: Replica(url) for url in urls})

    def reserve(self, affinity: str, avoid: Set[str] = frozenset()) -> str | None:
        """The URL of the replica that takes one more generation, counted as in flight; None if no replica outside of
        `avoid` is up.

        The caller must `release` it. A group whose replica is down or avoided moves to another, and stays there.
        """
        able = [
            r
            for r in self.replicas.values()
            if r.healthy and not (r.doubt or r.unmeasured or r.wrong or r.leaving) and r.url not in avoid
        ]
        if not able:
            return None
        home = self._homes.get(affinity) if affinity else None
        chosen = next((r for r in able if r.url == home), None)
        if chosen is None:
            chosen = min(able, key=lambda r: (r.in_flight, r.homes))
            if affinity:
                self._move(affinity, chosen)
        elif affinity:
            self._homes.move_to_end(affinity)
        chosen.in_flight += 1
        return chosen.url

    def _move(self, affinity: str, chosen: Replica) -> None:
        self._leave(self._homes.pop(affinity, None))
        self._homes[affinity] = chosen.url
        chosen.homes += 1
        if len(self._homes) > HOMES_MAX:
            self._leave(self._homes.popitem(last=False)[1])

    def _leave(self, url: str | None) -> None:
        if url is not None:
            self.replicas[url].homes -= 1

    def release(self, url: str) -> None:
        """A generation has ended: one less in flight."""
        replica = self.replicas[url]
        assert replica.in_flight > 0, f"{url} was released more often than reserved"
        replica.in_flight -= 1
        if replica.leaving and not replica.in_flight:
            del self.replicas[url]

    def join(self, url: str) -> bool:
        """Adds a replica to the set; a new one is down until a probe says otherwise. Returns whether it is new."""
        replica = self.replicas.get(url)
        if replica is not None:
            replica.leaving = False
            return False
        self.replicas[url] = Replica(url, healthy=False, detail="not asked yet", failures=FAILURES_MAX)
        return True

    def leave(self, url: str) -> None:
        """Removes a replica from the set: its groups move with their next turns, its running generations end there."""
        for affinity in [group for group, home in self._homes.items() if home == url]:
            self._leave(self._homes.pop(affinity))
        self.replicas[url].leaving = True
        if not self.replicas[url].in_flight:
            del self.replicas[url]

    def members(self) -> list[str]:
        """URLs of the set, those that are leaving left out."""
        return [replica.url for replica in self.replicas.values() if not replica.leaving]

    def doubt(self, url: str, why: str) -> bool:
        """Sets why the version of the replica's weights is unknown (empty: it is known). Returns whether that is
        news."""
        replica = self.replicas.get(url)
        if replica is None or replica.doubt == why:
            return False
        replica.doubt = why
        return True

    def measured(self, url: str, *, unmeasured: str = "", wrong: str = "") -> None:
        """Sets what is known of the replica's logprobs mode: it is right (both empty), not measured yet, or wrong."""
        replica = self.replicas.get(url)
        if replica is not None:
            replica.unmeasured, replica.wrong = unmeasured, wrong

    def unmeasured(self, avoid: Set[str] = frozenset()) -> list[str]:
        """URLs that may take a generation as soon as their logprobs are measured."""
        return [
            r.url
            for r in self.replicas.values()
            if r.healthy and r.unmeasured and not (r.doubt or r.leaving) and r.url not in avoid
        ]

    def probed(self, url: str, failure: str | None, *, dead: bool = False) -> bool:
        """Takes note of a health probe. `failure`: None = healthy; `dead`: nothing listens there, so that one probe is
        enough. Returns whether the replica just came up or went down."""
        replica = self.replicas.get(url)
        if replica is None:  # it left meanwhile
            return False
        before = replica.healthy
        if failure is None:
            replica.failures, replica.healthy, replica.detail = 0, True, ""
        else:
            replica.failures += FAILURES_MAX if dead else 1
            replica.detail = failure
            replica.healthy = before and replica.failures < FAILURES_MAX
        return replica.healthy != before

    def down(self, url: str, detail: str) -> None:
        """A connection was refused or reset: the replica gets no new generation until a probe says otherwise."""
        replica = self.replicas.get(url)
        if replica is not None:
            replica.healthy, replica.detail = False, detail
            replica.failures = max(replica.failures, FAILURES_MAX)

    def status(self) -> list[EngineStatus]:
        """One entry per replica of the set, in the order in which they joined. A replica that is being measured is
        healthy: turns wait for the measurement, as they would in its queue."""
        return [
            EngineStatus(
                r.url,
                r.healthy and not (r.doubt or r.wrong),
                r.in_flight,
                r.detail or r.wrong or r.doubt or r.unmeasured,
                bool(r.healthy and r.doubt),
            )
            for r in self.replicas.values()
            if not r.leaving
        ]
