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

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandgate.contract.errors import Conflict, NotFound, Overloaded
from sandgate.gateway.journal.records import Acked, GroupClosed, Leased, Nacked, Opened, Record, Sealed
from sandgate.gateway.trajectories.groups import GroupKey, GroupState, Member, group_key

GROUP_SIZE_MAX = 65_536
"""A larger `group_size` is a mistake; the group would never be whole."""


@dataclass(slots=True)
class HeldLease:
    """One lease. `until`: unix seconds; from then on its sessions may be offered again."""

    lease: str
    sessions: tuple[str, ...]
    until: float
    over: bool = False
    """The lease was given back."""
    done: bool = False
    """All its sessions are acknowledged: it holds none, and need not be checked for each new lease."""


@dataclass(slots=True)
class LeaseBook:
    """All sessions that were opened and not forgotten, their groups, and their leases."""

    members: dict[str, Member] = field(default_factory=dict)
    groups: dict[GroupKey, GroupState] = field(default_factory=dict)
    leases: dict[str, HeldLease] = field(default_factory=dict)
    whole: dict[GroupKey, None] = field(default_factory=dict)
    """Whole groups with something to offer, in the order in which they became so; leased ones included."""
    partial: dict[GroupKey, None] = field(default_factory=dict)
    """Groups, whole or not, with something to offer, in the order in which they came to have it."""
    holds: dict[str, Leased] = field(default_factory=dict)
    """Leases that are being made durable."""
    acking: Counter[str] = field(default_factory=Counter)
    """Sessions whose acknowledgement is being made durable."""

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
                if (group := self.groups.get(GroupKey(record.job, record.uid))) is not None:
                    group.closed = frozenset(record.sessions)
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
    ) -> Leased | None:
        """Leases the oldest groups that are ready and on no live lease; None if there are none. `lease`: a new unique
        id.

        `size`: tokens of a session. The first group is leased even if it alone exceeds `max_tokens`: it would never be
        otherwise. `whole_groups` False: the sealed and good sessions of any group, the rest later. No two live leases
        share a group.
        """
        if lease in self.leases or lease in self.holds:
            raise Conflict(f"lease {lease} exists")
        taken = self._taken(now)
        sessions: list[str] = []
        groups = tokens = 0
        for key in self.whole if whole_groups else self.partial:
            if groups >= max_groups:
                break
            if key in taken or (job is not None and key.job != job):
                continue
            offer = [member.session for member in self.groups[key].offer(whole=whole_groups)]
            weight = sum(map(size, offer))
            if max_tokens is not None and groups and tokens + weight > max_tokens:
                break
            sessions += offer
            groups, tokens = groups + 1, tokens + weight
        if not sessions:
            return None
        record = Leased(at=now, lease=lease, sessions=tuple(sessions), until=now + ttl_s)
        self.holds[lease] = record
        return record

    def ack(self, lease: str, now: float, sessions: Iterable[str] | None = None) -> Acked | None:
        """Acknowledges sessions of a lease (default: all); None if they are acknowledged already.

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
        return Acked(at=now, lease=lease, sessions=fresh)

    def renew(self, lease: str, now: float, *, ttl_s: float) -> Leased | None:
        """Prolongs a lease to `ttl_s` from now, never to less than it had. None if all its sessions are acknowledged.
        An expired lease may be renewed while none of its sessions was leased again. Raises NotFound,
        Conflict."""
        held = self._lease(lease)
        members = [member for member in self._members_of(held.sessions) if not member.acked]
        if not members:
            return None
        if held.over:
            raise Conflict(f"lease {lease} was given back")
        self._refuse_lost(lease, members)
        until = max(held.until, now + ttl_s)
        record = self.holds[lease] = Leased(at=now, lease=lease, sessions=held.sessions, until=until)
        return record

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
        was done before. Raises NotFound."""
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
            self.holds.pop(record.lease, None)
        elif isinstance(record, Acked):
            self._acknowledged(record.sessions)

    def standing(self, now: float) -> tuple[int, int]:
        """Counts of whole groups: (those with sessions that are not acknowledged, those of them on a live lease)."""
        return len(self.whole), len(self._taken(now) & self.whole.keys())

    def disposable(self) -> list[str]:
        """Sessions whose records are needed no more. They go by whole groups: the rest of one would never be whole
        after a restart."""
        finished = (group for group in self.groups.values() if group.finished())
        return [member.session for group in finished for member in group.members()]

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
                self._refresh(member.key)
        for lease in list(self.leases.values()):
            if not self._members_of(lease.sessions):
                del self.leases[lease.lease]

    def snapshot(self, now: float) -> list[Record]:
        """Records that fold to the same state, and so may replace all lease records in the journal."""
        out: list[Record] = []
        for lease in self.leases.values():
            remembered = tuple(member.session for member in self._members_of(lease.sessions))
            acked = tuple(session for session in remembered if self.members[session].acked == lease.lease)
            out.append(Leased(at=now, lease=lease.lease, sessions=remembered, until=lease.until))
            if acked:
                out.append(Acked(at=now, lease=lease.lease, sessions=acked))
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
        spec, key = record.spec, group_key(session, record.spec)
        sample, attempt = int(spec.get("sample_index") or 0), int(spec.get("attempt") or 0)
        member = self.members[session] = Member(session, key, sample, attempt)
        group = self.groups.setdefault(key, GroupState(key))
        if not key.session:
            group.size = min(GROUP_SIZE_MAX, max(group.size, int(spec.get("group_size") or 1)))
        group.samples.setdefault(sample, {})[session] = member
        self._refresh(key)

    def _leased(self, record: Leased) -> None:
        self.holds.pop(record.lease, None)
        if (renewed := self.leases.get(record.lease)) is not None:  # renewed
            renewed.until = record.until
            return
        for member in self._members_of(record.sessions):
            self.leases.setdefault(record.lease, HeldLease(record.lease, record.sessions, record.until))
            member.leased = record.lease

    def _acked(self, record: Acked) -> None:
        self._acknowledged(record.sessions)
        for member in self._members_of(record.sessions):
            self.leases.setdefault(record.lease, HeldLease(record.lease, record.sessions, record.at))
            member.acked = member.acked or record.lease
            self._refresh(member.key)
        if (lease := self.leases.get(record.lease)) is not None:
            lease.done = all(member.acked for member in self._members_of(lease.sessions))

    def _acknowledged(self, sessions: Iterable[str]) -> None:
        """The acknowledgement of these sessions is not being made durable any more."""
        for session in sessions:
            self.acking[session] -= 1
            if self.acking[session] <= 0:
                del self.acking[session]

    def _nacked(self, record: Nacked) -> None:
        if (lease := self.leases.get(record.lease)) is not None:
            lease.over = True
            for member in self._members_of(lease.sessions):
                if member.leased == record.lease and not member.acked:
                    member.leased = ""

    def _refresh(self, key: GroupKey) -> None:
        """Lists the group under `whole` and `partial` if it has sessions to offer; one that had some keeps its
        place."""
        group = self.groups.get(key)
        for index, whole in ((self.whole, True), (self.partial, False)):
            if group is not None and group.offer(whole=whole):
                index.setdefault(key)
            else:
                index.pop(key, None)

    def _taken(self, now: float) -> set[GroupKey]:
        """Groups that must not be leased now."""
        taken = {member.key for record in self.holds.values() for member in self._members_of(record.sessions)}
        for lease in self.leases.values():
            if lease.until > now and not lease.over and not lease.done:
                mine = (member for member in self._members_of(lease.sessions) if member.leased == lease.lease)
                taken.update(member.key for member in mine if not member.acked)
        taken.update(member.key for member in self._members_of(self.acking))
        return taken

    def _refuse_lost(self, lease: str, members: Iterable[Member]) -> None:
        """Raises Conflict if one of the members went to another lease since then, or is just going to one."""
        again = {
            session for name, record in self.holds.items() if name != lease for session in record.sessions
        }
        lost = [
            member.session
            for member in members
            if (member.acked or member.leased) != lease or (not member.acked and member.session in again)
        ]
        if lost:
            raise Conflict(f"lease {lease} expired and was given to another: {', '.join(sorted(lost)[:8])}")

    def _lease(self, lease: str) -> HeldLease:
        held = self.leases.get(lease)
        if held is None:
            raise NotFound(f"no lease {lease[:200]!r}")
        return held

    def _members_of(self, sessions: Iterable[str]) -> list[Member]:
        return [self.members[session] for session in sessions if session in self.members]
