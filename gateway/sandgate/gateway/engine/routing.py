"""Routing of generations to replicas: a session stays on one, its group near it, as far as load allows. (pure)

A replica keeps the prefixes that it has computed, so turns go where their session's history is, and a new session
goes where its group's task is, or to a replica on this gateway's machine. All are preferences with a bound: what is
above the bound goes to the replica with least to do. Several gateways share the replicas. Each reads how much a
replica has to do in all (`reported`), and expects that the others place as much as it does itself until the next
report; where that leaves a tie, each begins at another place of the list, so that they do not all take the first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from sandgate.gateway.engine.api import EngineStatus

HOMES_MAX = 20_000
"""Limit of sessions, and of groups, whose replica is remembered; the least recently used is forgotten, which costs its
prefix cache."""

SHARE, SHARE_MIN = 1.75, 2
"""A new session joins its group on a replica that has less to do than so many times the mean, or than so many
generations."""

NEAR, NEAR_MIN = 1.2, 1
"""A new session goes to a replica on this machine that has at most so many times the mean to do, or so many
generations."""

STAY, STAY_MIN, LEAVE_FOR = 1.6, 4, 0.75
"""A session leaves a replica that has more to do: moving costs the whole history again, and turns come and go."""

GROWN = 0.75
"""A replica that came up takes sessions from those above the mean until it has so much of it."""

ALIKE = 0.5
"""How many of the other gateways are expected to place a session where this one did."""

SMOOTHING = 0.2
"""Weight of the latest report: with one every two seconds it is a mean over some six."""

FAILURES_MAX = 2
"""Failed probes in a row until a replica is down: one may be a busy event loop in the engine's API server."""


@dataclass(slots=True)
class Replica:
    """One engine server, as this process sees it."""

    url: str
    position: int = 0
    """In the list of replicas."""
    healthy: bool = True
    """True until a probe fails; a replica that is not up yet costs one refused connection."""
    in_flight: int = 0
    """Of this process."""
    sessions: int = 0
    """Sessions of this process whose turns go to this replica."""
    others: float = 0.0
    """What other processes have in flight and waiting there: smoothed over reports, as turns come and go."""
    reported: bool = False
    """A report has come."""
    placed: int = 0
    """Sessions that this process has sent here since the last report."""
    ever: int = 0
    """Sessions that this process has ever sent there: of two that have as much to do, the one with fewer is next, so
    that sessions one after the other fill the caches of all."""
    young: bool = False
    """It came up while sessions had their replicas, and has not had its share of them yet. Where all begin together
    none is: new sessions share them out, and one that moved would compute its history again for nothing."""
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
    """Replicas, and where sessions and groups have their prefixes. Counts are reserved before the caller awaits
    anything."""

    replicas: dict[str, Replica]
    peers: int = 1
    """Gateways that share the replicas, this one included."""
    index: int = 0
    """Of this gateway among its peers."""
    here: frozenset[str] = frozenset()
    """URLs on this gateway's machine, as far as that is known."""
    _sessions: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _groups: OrderedDict[str, str] = field(default_factory=OrderedDict)

    @staticmethod
    def of(urls: tuple[str, ...], *, peers: int = 1, index: int = 0) -> ReplicaTable:
        """All healthy, none in flight."""
        return ReplicaTable({url: Replica(url, at) for at, url in enumerate(urls)}, peers, index)

    def reserve(self, group: str, avoid: Set[str] = frozenset(), *, session: str = "") -> str | None:
        """The URL of the replica that takes one more generation, counted as in flight; None if no replica outside of
        `avoid` is up.

        The caller must `release` it. A session whose replica is down or avoided moves to another, and stays there.
        """
        able = [
            r
            for r in self.replicas.values()
            if r.healthy and not (r.doubt or r.unmeasured or r.wrong or r.leaving) and r.url not in avoid
        ]
        if not able:
            return None
        chosen = self._choose(able, group, session)
        if group:
            self._groups.setdefault(group, chosen.url)
            self._groups.move_to_end(group)
            if len(self._groups) > HOMES_MAX:
                self._groups.popitem(last=False)
        if session:
            self._settle(session, chosen)
        chosen.in_flight += 1
        return chosen.url

    def _choose(self, able: Sequence[Replica], group: str, session: str) -> Replica:
        sessions = self._sessions_each(able)
        mean = max(sum(sessions.values()), self.peers * sum(r.sessions for r in able)) / len(able)
        fewest = min(able, key=self._rank(sessions))
        home = self._sessions.get(session)
        if home in sessions:
            young = self._youngest_starved(able, sessions, mean)
            if young is not None and sessions[home] >= max(mean, sessions[young.url] + 2):
                return young
            return self._stay_or_leave(able, home)
        near = self._groups.get(group)
        if near in sessions and sessions[near] < max(SHARE_MIN, SHARE * mean):
            return self.replicas[near]
        return self._nearest(able, sessions, mean) or fewest

    def _nearest(self, able: Sequence[Replica], sessions: dict[str, float], mean: float) -> Replica | None:
        """Of those on this machine the one with least to do, if it has not much more than others."""
        here = [r for r in able if r.url in self.here]
        least = min(here, key=self._rank(sessions), default=None)
        if least is None or sessions[least.url] + self._expected(least) > max(NEAR_MIN, NEAR * mean):
            return None
        return least

    def _youngest_starved(
        self, able: Sequence[Replica], sessions: dict[str, float], mean: float
    ) -> Replica | None:
        """A replica that came up, and has not had its share yet. What others are expected to have placed there only
        waits for the next report: half of them may have had nothing to give."""
        for replica in able:
            if replica.young and (replica.reported or self.peers == 1):
                replica.young = sessions[replica.url] < GROWN * mean
                if sessions[replica.url] + self._expected(replica) < GROWN * mean:
                    return replica
        return None

    def _stay_or_leave(self, able: Sequence[Replica], home: str) -> Replica:
        """By what is in flight just now: a session that rests is no burden."""
        load = {r.url: r.in_flight + r.others for r in able}
        mean = sum(load.values()) / len(able)
        least = min(able, key=lambda r: (load[r.url], self._order(r)))
        leave = load[home] > max(STAY_MIN, STAY * mean) and load[least.url] <= LEAVE_FOR * mean
        return least if leave else self.replicas[home]

    def _sessions_each(self, able: Sequence[Replica]) -> dict[str, float]:
        """Estimated sessions of all gateways per replica: others' rest as often as ours."""
        in_flight = sum(r.in_flight for r in able)
        rest = max(1.0, sum(r.sessions for r in able) / in_flight) if in_flight else 1.0
        return {r.url: max(r.sessions, r.in_flight) + r.others * rest for r in able}

    def _expected(self, replica: Replica) -> float:
        """What the other gateways have placed there since the last report, if they choose as this one does. Those on
        other machines do not, of a replica on this one."""
        share = len(self.here) / len(self.replicas) if replica.url in self.here else 1.0
        return ALIKE * max(0.0, self.peers * share - 1) * replica.placed

    def _rank(self, sessions: dict[str, float]) -> Callable[[Replica], tuple[float, int, int, int]]:
        """Of replicas: the least takes a new session."""
        return lambda r: (sessions[r.url] + self._expected(r), r.in_flight, r.ever, self._order(r))

    def _order(self, replica: Replica) -> int:
        """Where ties begin: gateways share the list of replicas out among them."""
        count = len(self.replicas)
        return (replica.position - self.index * count // self.peers) % count

    def _number(self) -> None:
        for position, replica in enumerate(self.replicas.values()):
            replica.position = position

    def _settle(self, session: str, chosen: Replica) -> None:
        home = self._sessions.pop(session, None)
        self._sessions[session] = chosen.url
        if home == chosen.url:
            return
        self._leave(home)
        chosen.sessions += 1
        chosen.placed += 1
        chosen.ever += 1
        if len(self._sessions) > HOMES_MAX:
            self._leave(self._sessions.popitem(last=False)[1])

    def _leave(self, url: str | None) -> None:
        if url in self.replicas:
            self.replicas[url].sessions -= 1

    def ended(self, session: str) -> None:
        """The session makes no further turns."""
        self._leave(self._sessions.pop(session, None))

    def reported(self, url: str, load: float) -> None:
        """A replica said how many generations it has in all, running and waiting."""
        replica = self.replicas.get(url)
        if replica is None:
            return
        others = max(0.0, load - replica.in_flight)
        weight = SMOOTHING if replica.reported else 1.0
        replica.others += weight * (others - replica.others)
        replica.reported, replica.placed = True, 0

    def release(self, url: str) -> None:
        """A generation has ended: one less in flight."""
        replica = self.replicas[url]
        assert replica.in_flight > 0, f"{url} was released more often than reserved"
        replica.in_flight -= 1
        if replica.leaving and not replica.in_flight:
            del self.replicas[url]
            self._number()

    def join(self, url: str) -> bool:
        """Adds a replica to the set; a new one is down until a probe says otherwise. Returns whether it is new."""
        replica = self.replicas.get(url)
        if replica is not None:
            replica.leaving = False
            return False
        self.replicas[url] = Replica(
            url, len(self.replicas), healthy=False, detail="not asked yet", failures=FAILURES_MAX
        )
        return True

    def leave(self, url: str) -> None:
        """Removes a replica from the set: its groups move with their next turns, its running generations end there."""
        for homes in (self._sessions, self._groups):
            for name in [name for name, home in homes.items() if home == url]:
                del homes[name]
        self.replicas[url].sessions = 0
        self.replicas[url].leaving = True
        if not self.replicas[url].in_flight:
            del self.replicas[url]
            self._number()

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
            replica.young = replica.young or (not before and bool(self._sessions))
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
