"""LeaseBook: leases of whole groups to trainers: ready -> leased -> acked, or expired -> ready again. (pure)

Delivery is at least once, by whole groups, idempotent by (session_id, trajectory_id). State is the fold of Opened,
Sealed, Leased, Acked, Nacked and GroupClosed records, live and in replay alike; a second Leased with a later end is a
renewal. `lease`, `renew`, `ack`, `nack` and `close` decide, and hold what they decided on, so that no other lease gets
it while the record is being made durable:

    record = book.lease(...)          # decided and held
    try:
        await store.append("", record)
    except BaseException:
        book.undo(record)             # as before
        raise
    book.fold("", record)             # durable, therefore so
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from sandgate.contract.errors import Conflict, NotFound, Overloaded
from sandgate.gateway.journal.records import Acked, GroupClosed, Leased, Nacked, Opened, Record, Sealed
from sandgate.gateway.trajectories.groups import GroupKey, GroupState, Member, Place, place_of
from sandgate.gateway.trajectories.offer_queue import OfferQueue

GROUP_SIZE_MAX = 65_536
"""A larger `group_size` is a mistake; the group would never be whole."""
KEPT_MAX = 3
"""Starts of a gateway behind which a lease has the time that it had, whatever the clock says."""


@dataclass(slots=True)
class HeldLease:
    """One lease. `until`: unix seconds; from then on its sessions may be offered again."""

    lease: str
    sessions: tuple[str, ...]
    until: float
    over: bool = False
    """The lease was given back."""
    kept: int = 0
    """Starts of the gateway that gave it the time that it had left, since it was made or renewed."""
    expired: bool = field(default=False, compare=False)
    """Its time was over when groups were last leased."""

    @property
    def live(self) -> bool:
        """It keeps its sessions from others."""
        return not self.over and not self.expired


@dataclass(slots=True)
class LeaseBook:
    """All sessions that were opened and not forgotten, their groups, and their leases."""

    members: dict[str, Member] = field(default_factory=dict)
    groups: dict[GroupKey, GroupState] = field(default_factory=dict)
    leases: dict[str, HeldLease] = field(default_factory=dict)
    whole: OfferQueue = field(default_factory=OfferQueue)
    """Whole groups with something to offer, in the order in which they became so; leased ones included."""
    partial: OfferQueue = field(default_factory=OfferQueue)
    """Groups, whole or not, with something to offer, in the order in which they came to have it."""
    holds: dict[str, Leased] = field(default_factory=dict)
    """Leases that are being made durable."""
    held: Counter[str] = field(default_factory=Counter)
    """Sessions of those leases."""
    acking: Counter[str] = field(default_factory=Counter)
    """Sessions whose acknowledgement is being made durable."""
    lost: set[GroupKey] = field(default_factory=set)
    """Groups that were closed with no session that counts."""
    ends: list[tuple[float, str]] = field(default_factory=list, compare=False)
    """A heap of (until, lease), one for each time a lease was made or renewed."""
    told_at: float = field(default=0.0, compare=False)
    """When the newest record of a lease was made, by the clock of leases."""

    def fold(self, session: str, record: Record) -> None:
        """Folds one record, in journal order. Records of forgotten sessions, and of other kinds, change nothing."""
        match record:
            case Opened():
                self._opened(session, record)
            case Sealed():
                if (member := self.members.get(session)) is not None:
                    member.seal(record)
                    self._refresh(member.key)
            case Leased():
                self._leased(record)
            case Acked():
                self._acked(record)
            case Nacked():
                self._nacked(record)
            case GroupClosed():
                group = self.groups.get(GroupKey(record.job, record.uid))
                if group is not None and group.closed is None:  # the first of two that were decided at once
                    group.closed = frozenset(record.sessions)
                    if group.lost():
                        self.lost.add(group.key)
                    self._refresh(group.key)

    def lease(
        self,
        lease: str,
        now: float,
        *,
        ttl_s: float,
        size: Callable[[str], int] = lambda session: 0,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        whole_groups: bool = True,
        at_least_one: bool = True,
    ) -> Leased | None:
        """Leases the oldest groups that are ready and on no live lease; None if there are none. `lease`: a new unique
        id.

        `size`: tokens of a session. The first group is leased even if it alone exceeds `max_tokens`: it would never be
        otherwise, unless `at_least_one` is False. `whole_groups` False: the sealed and good sessions of any group, the
        rest later. No two live leases share a group.
        """
        if lease in self.leases or lease in self.holds:
            raise Conflict(f"lease {lease} exists")
        self._expire(now)
        queue = self.whole if whole_groups else self.partial
        sessions: list[str] = []
        tokens = 0
        for number, key in enumerate(islice(queue.oldest(job), max_groups)):
            offer = [member.session for member in self.groups[key].offer(whole=whole_groups)]
            weight = 0 if max_tokens is None or self.groups[key].lost() else sum(map(size, offer))
            first = at_least_one and not number
            if max_tokens is not None and not first and tokens + weight > max_tokens:
                break
            sessions += offer
            tokens += weight
        if not sessions:
            return None
        record = Leased(at=now, lease=lease, sessions=tuple(sessions), until=now + ttl_s)
        self._hold(record)
        return record

    def ack(
        self,
        lease: str,
        now: float,
        sessions: Iterable[str] | None = None,
        *,
        left_out: Container[str] = (),
    ) -> Acked | None:
        """Acknowledges sessions of a lease (default: all); None if they are acknowledged already. `left_out`: sessions,
        of any lease, whose rows could not be given.

        An expired lease may be acknowledged while its sessions were not leased again. Raises NotFound (no such lease,
        or a session that is not of it), Conflict (given back, or leased again since then; names the sessions)."""
        held = self._lease(lease)
        wanted = held.sessions if sessions is None else tuple(dict.fromkeys(sessions))
        if foreign := set(wanted) - set(held.sessions):
            raise NotFound(f"lease {lease} has no session {min(foreign)!r}")
        members = self._members_of(wanted)
        if held.over and any(member.acked != lease for member in members):
            raise Conflict(f"lease {lease} was given back")
        self._refuse_lost(lease, members)
        fresh = tuple(member.session for member in members if not member.acked)
        if not fresh:
            return None
        self.acking.update(fresh)
        self._refresh_all(fresh)
        missing = tuple(session for session in fresh if session in left_out)
        return Acked(at=now, lease=lease, sessions=fresh, left_out=missing)

    def hand_over(
        self, lease: str, session: str, now: float, *, leased_at: float, left_out: Container[str] = ()
    ) -> tuple[Record, ...]:
        """Leases one session and acknowledges it, whoever had it before: to be made durable together. Nothing if it is
        acknowledged already. `lease`: a new unique id. `leased_at`: now, by the clock of leases. Two that are decided
        at once may both become durable. A lease of it that is being made durable comes first, and has lost it."""
        member = self.members.get(session)
        if member is None or member.acked:
            return ()
        self.acking[session] += 1
        self._refresh(member.key)
        missing = (session,) if session in left_out else ()
        return (
            Leased(at=leased_at, lease=lease, sessions=(session,), until=leased_at),
            Acked(at=now, lease=lease, sessions=(session,), left_out=missing),
        )

    def renew(self, lease: str, now: float, *, ttl_s: float) -> Leased | None:
        """Prolongs a lease to `ttl_s` from now, never to less than it had. None if it acknowledged all its sessions.
        An expired lease may be renewed while none of its sessions was leased again. Raises NotFound, Conflict (given
        back, or another lease has a session, or acknowledged it)."""
        held = self._lease(lease)
        members = self._members_of(held.sessions)
        if all(member.acked == lease for member in members):
            return None
        if held.over:
            raise Conflict(f"lease {lease} was given back")
        self._refuse_lost(lease, members)
        until = max(held.until, now + ttl_s)
        record = Leased(at=now, lease=lease, sessions=held.sessions, until=until)
        self._hold(record)
        return record

    def resumed(self, now: float, passed: float) -> list[Leased]:
        """Records for a process that goes on with this journal: leases that held when their clock was last told have as
        long from now as they had then, less the seconds that `passed` by the records behind that. What that clock says
        now is not known to be the same: it is set anew at each start, and a machine that slept, or whose clock was set,
        must not end what a trainer renewed a moment ago. KEPT_MAX times for each renewal, then by that clock: what a
        trainer that died has would never end. Those that were over are from now on, whatever the clock says."""
        renewed = []
        for one in self.leases.values():
            if not self._keeps(one):
                continue
            until = now + one.until - self.told_at - passed
            often = one.kept >= KEPT_MAX
            if often:
                until = min(until, one.until)
            if until <= now:
                one.expired = True
                self._refresh_all(one.sessions)
            elif until != one.until or not often:
                kept = one.kept + 1
                renewed.append(Leased(at=now, lease=one.lease, sessions=one.sessions, until=until, kept=kept))
        return renewed

    def _keeps(self, held: HeldLease) -> bool:
        """It was not given back, and has sessions that are neither acknowledged nor leased to others since."""
        mine = (one for one in self._members_of(held.sessions) if one.leased == held.lease)
        return held.live and not all(one.acked for one in mine)

    def again(self, lease: str, now: float) -> HeldLease | None:
        """The lease with this id, for a trainer that asks a second time because the answer was lost; None if there is
        no such lease yet. Raises Overloaded (it is being made durable), Conflict (it is over)."""
        if lease in self.holds:
            raise Overloaded(f"lease {lease} is being made", retry_after=1.0)
        held = self.leases.get(lease)
        if held is not None and (held.over or held.until <= now):
            raise Conflict(f"lease {lease} is over")
        return held

    def nack(self, lease: str, now: float) -> Nacked | None:
        """Gives back the sessions of a lease that were not acknowledged; they are offered again at once. None if that
        was done before. Raises NotFound, Overloaded (it is being made durable)."""
        if lease in self.holds and lease not in self.leases:
            raise Overloaded(f"lease {lease} is being made", retry_after=1.0)
        return None if self._lease(lease).over else Nacked(at=now, lease=lease)

    def close(self, job: str, uid: str, now: float) -> GroupClosed | None:
        """Closes a task's group: the driver says that no more sessions count for it. None if it is closed already.
        Raises NotFound."""
        group = self.groups.get(GroupKey(job, uid))
        if group is None:
            raise NotFound(f"no group {uid[:200]!r} of job {job[:200]!r}")
        if group.closed is not None:
            return None
        return GroupClosed(at=now, job=job, uid=uid, sessions=group.good_now())

    def undo(self, record: Record) -> None:
        """Undoes a decision whose record could not be made durable."""
        if isinstance(record, Leased):
            self._release(record.lease)
        elif isinstance(record, Acked):
            self._acknowledged(record.sessions)

    def holder(self, place: Place) -> str | None:
        """The session that stands for this: it runs, or ended so that it can count. None: another may."""
        group = self.groups.get(place.key)
        attempts = group.samples.get(place.sample, {}) if group is not None else {}
        there = (one for one in attempts.values() if one.attempt == place.attempt)
        return next((one.session for one in there if one.good or not one.sealed), None)

    def standing(self, now: float) -> tuple[int, int]:
        """Counts of whole groups: (those with sessions that are not acknowledged, those of them on a live lease).
        Without lost ones: nobody owes a trainer what there is not, and a job that failed has no trainer that asks."""
        self._expire(now)
        there = [key for key in self.lost if key in self.whole.places]
        free = sum(key in self.whole.free for key in there)
        owed = len(self.whole) - len(there)
        return owed, owed - (len(self.whole.free) - free)

    def owes(self, job: str, uid: str) -> bool:
        """Whether a trainer may still be given sessions of this task's group: not all that count are acknowledged."""
        group = self.groups.get(GroupKey(job, uid))
        return group is not None and bool(group.offer(whole=False))

    def tells(self, session: str) -> bool:
        """Whether its rows are a trainer's: those of a lost group's sessions are nobody's."""
        member = self.members.get(session)
        return member is None or member.key not in self.lost

    def jobs_of(self, lease: str) -> set[str]:
        """Whose sessions it holds, as far as they are not forgotten; nobody's, if there is none."""
        held = self.leases.get(lease)
        return set() if held is None else {member.key.job for member in self._members_of(held.sessions)}

    def outstanding(self, lease: str) -> bool:
        """Does it hold sessions that it has neither acknowledged nor given back?"""
        held = self.leases[lease]
        return not held.over and not all(member.acked for member in self._members_of(held.sessions))

    def disposable(self, before: float = inf) -> list[list[str]]:
        """Sessions whose records are needed no more since `before`, group by group: they go by whole groups, as the
        rest of one would never be whole after a restart. A group stays of which no trainer was given all rows."""
        finished = (group.members() for group in self.groups.values() if group.finished(before))
        return [
            [one.session for one in group] for group in finished if not any(one.left_out for one in group)
        ]

    def robbed(self, sessions: Iterable[str], now: float) -> list[Nacked]:
        """Ends of the leases of which others acknowledged some of these sessions, to be made durable before these are
        forgotten: then nothing else says any more that such a lease may be neither renewed nor acknowledged."""
        going = {name: one.acked for name in sessions if (one := self.members.get(name)) is not None}

        def ends(lease: HeldLease) -> bool:
            lost = any(going.get(name) not in (None, "", lease.lease) for name in lease.sessions)
            return lost and any(name in self.members and name not in going for name in lease.sessions)

        return [Nacked(at=now, lease=one.lease) for one in self.leases.values() if not one.over and ends(one)]

    def forget(self, sessions: Iterable[str]) -> None:
        """Forgets sessions that were retired from the journal."""
        for session in sessions:
            member = self.members.pop(session, None)
            if member is not None:
                group = self.groups[member.key]
                attempts = group.samples[member.sample]
                del attempts[session]
                if not attempts:
                    del group.samples[member.sample]
                if not group.samples:
                    del self.groups[member.key]
                    self.lost.discard(member.key)
                self._refresh(member.key)
        for lease in list(self.leases.values()):
            if not self._members_of(lease.sessions):
                del self.leases[lease.lease]

    def snapshot(self, now: float) -> list[Record]:
        """Records that fold to the same state, and so may replace all lease records in the journal. `now`: by the clock
        of leases."""
        out: list[Record] = []
        for lease in self.leases.values():
            remembered = tuple(member.session for member in self._members_of(lease.sessions))
            out.append(
                Leased(at=now, lease=lease.lease, sessions=remembered, until=lease.until, kept=lease.kept)
            )
            acked = dict[float, list[str]]()
            for session in remembered:
                if (member := self.members[session]).acked == lease.lease:
                    acked.setdefault(member.changed_at, []).append(session)
            for at, some in acked.items():
                missing = tuple(session for session in some if self.members[session].left_out)
                out.append(Acked(at=at, lease=lease.lease, sessions=tuple(some), left_out=missing))
            if lease.over:
                out.append(Nacked(at=now, lease=lease.lease))
        for key, group in self.groups.items():
            if group.closed is not None:
                fixed = tuple(sorted(group.closed & self.members.keys()))
                out.append(GroupClosed(at=now, job=key.job, uid=key.uid, sessions=fixed))
        return out

    def _opened(self, session: str, record: Opened) -> None:
        if session in self.members:
            return
        spec = record.spec
        key, sample, attempt = place_of(session, spec)
        member = self.members[session] = Member(session, key, sample, attempt)
        group = self.groups.setdefault(key, GroupState(key))
        if not key.session:
            group.size = min(GROUP_SIZE_MAX, max(group.size, int(spec.get("group_size") or 1)))
        group.samples.setdefault(sample, {})[session] = member
        self._refresh(key)

    def _leased(self, record: Leased) -> None:
        self.told_at = record.at
        if (renewed := self.leases.get(record.lease)) is not None:
            renewed.until, renewed.kept, renewed.expired = record.until, record.kept, False
        else:
            made = HeldLease(record.lease, record.sessions, record.until, kept=record.kept)
            for member in self._members_of(record.sessions):
                self.leases.setdefault(record.lease, made)
                member.leased = record.lease
        heapq.heappush(self.ends, (record.until, record.lease))
        self._release(record.lease)
        self._refresh_all(record.sessions)

    def _acked(self, record: Acked) -> None:
        self._acknowledged(record.sessions)
        for member in self._members_of(record.sessions):
            self.leases.setdefault(record.lease, HeldLease(record.lease, record.sessions, record.at))
            if not member.acked:
                member.acked, member.changed_at = record.lease, max(member.changed_at, record.at)
                member.left_out = member.session in record.left_out
        self._refresh_all(record.sessions)

    def _acknowledged(self, sessions: Sequence[str]) -> None:
        """The acknowledgement of these sessions is not being made durable any more."""
        for session in sessions:
            self.acking[session] -= 1
            if self.acking[session] <= 0:
                del self.acking[session]
        self._refresh_all(sessions)

    def _nacked(self, record: Nacked) -> None:
        if (lease := self.leases.get(record.lease)) is not None:
            lease.over = True
            for member in self._members_of(lease.sessions):
                if member.leased == record.lease and not member.acked:
                    member.leased = ""
            self._refresh_all(lease.sessions)

    def _hold(self, record: Leased) -> None:
        """The lease is being made durable. One that is under way twice, as a renewal sent again, is held once."""
        self._release(record.lease)
        self.holds[record.lease] = record
        self.held.update(record.sessions)
        self._refresh_all(record.sessions)

    def _release(self, lease: str) -> None:
        """The lease is not being made durable any more."""
        if (record := self.holds.pop(lease, None)) is not None:
            self.held.subtract(record.sessions)
            for session in record.sessions:
                if self.held[session] <= 0:
                    del self.held[session]
            self._refresh_all(record.sessions)

    def _expire(self, now: float) -> None:
        """Groups of leases whose time is over are free again. Each end is looked at once."""
        while self.ends and self.ends[0][0] <= now:
            lease = self.leases.get(heapq.heappop(self.ends)[1])
            if lease is not None and lease.until <= now and not lease.expired:
                lease.expired = True
                self._refresh_all(lease.sessions)

    def _refresh_all(self, sessions: Iterable[str]) -> None:
        for key in dict.fromkeys(member.key for member in self._members_of(sessions)):
            self._refresh(key)

    def _refresh(self, key: GroupKey) -> None:
        """Lists the group under `whole` and `partial` if it has sessions to offer; one that had some keeps its place,
        leased or not."""
        group = self.groups.get(key)
        taken = group is not None and any(map(self._taken, group.members()))
        for queue, whole in ((self.whole, True), (self.partial, False)):
            offers = group is not None and bool(group.offer(whole=whole))
            queue.settle(key, offers=offers, taken=taken)

    def _taken(self, member: Member) -> bool:
        """Must its group not be leased now?"""
        if member.session in self.held or member.session in self.acking:
            return True
        lease = self.leases.get(member.leased)
        return not member.acked and lease is not None and lease.live

    def _refuse_lost(self, lease: str, members: Iterable[Member]) -> None:
        """Raises Conflict if one of the members went to another lease since then, or is just going to one."""
        own = set(self.holds[lease].sessions) if lease in self.holds else set()
        lost = [
            member.session
            for member in members
            if (member.acked or member.leased) != lease
            or (not member.acked and self.held[member.session] > (member.session in own))
        ]
        if lost:
            raise Conflict(f"lease {lease} expired and was given to another: {', '.join(sorted(lost)[:8])}")

    def _lease(self, lease: str) -> HeldLease:
        held = self.leases.get(lease)
        if held is None:
            raise NotFound(f"no lease {lease[:200]!r}; or all that it held was acknowledged, and is retired")
        return held

    def _members_of(self, sessions: Iterable[str]) -> list[Member]:
        return [self.members[session] for session in sessions if session in self.members]
