"""Trajectories are handed to trainers by lease: ready -> leased -> acked, or expired -> ready. (pure)

At least once, by whole groups, idempotent by (session_id, trajectory_id). State is the fold of Opened, Sealed, Leased,
Acked, Nacked and GroupClosed records, live and in replay alike; Leased again with a later end is a renewal. `lease`,
`renew`, `ack`, `nack` and `close` decide and hold what they decided on, so that nothing else gets it while the record
is being made durable:

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
    """`until`: unix seconds; from then on its sessions may be offered again."""

    lease: str
    sessions: tuple[str, ...]
    until: float
    over: bool = False
    """Given back."""
    done: bool = False
    """All of it is acknowledged: it holds nothing, and need not be looked at for each new lease."""


@dataclass(slots=True)
class LeaseBook:
    """Everything that was opened and not forgotten."""

    members: dict[str, Member] = field(default_factory=dict)
    groups: dict[GroupKey, GroupState] = field(default_factory=dict)
    leases: dict[str, HeldLease] = field(default_factory=dict)
    whole: dict[GroupKey, None] = field(default_factory=dict)
    """Whole groups with something to offer, in the order in which they became so; leased ones included."""
    partial: dict[GroupKey, None] = field(default_factory=dict)
    """The same, of any groups."""
    holds: dict[str, Leased] = field(default_factory=dict)
    """Leases that are being made durable."""
    acking: Counter[str] = field(default_factory=Counter)
    """Sessions whose acknowledgement is being made durable."""

    def fold(self, session: str, record: Record) -> None:
        """One record in journal order. Records of sessions that were forgotten, and other kinds, change nothing."""
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
        """The oldest groups that are ready and on no live lease; None if there is none. `lease`: a new unique id.

        `size`: tokens of a session. The first group is given even if it exceeds `max_tokens` alone: it would never go.
        `whole_groups` False: what is sealed and good of any group, the rest later. No two live leases share a group.
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
        """The trainer has these (default: all of the lease) for good; None if it already said so.

        Late is fine as long as nobody else was given them. Raises NotFound (no such lease, or a session that is not
        of it), Conflict (given back, or leased again to another since then; names the sessions).
        """
        found = self._lease(lease)
        wanted = found.sessions if sessions is None else tuple(dict.fromkeys(sessions))
        if foreign := set(wanted) - set(found.sessions):
            raise NotFound(f"lease {lease} has no session {min(foreign)!r}")
        members = self._known(wanted)
        if found.over and any(member.acked != lease for member in members):
            raise Conflict(f"lease {lease} was given back")
        self._refuse_lost(lease, members)
        fresh = tuple(member.session for member in members if not member.acked)
        if not fresh:
            return None
        self.acking.update(fresh)
        return Acked(at=now, lease=lease, sessions=fresh)

    def renew(self, lease: str, now: float, *, ttl_s: float) -> Leased | None:
        """The trainer still works on it: `ttl_s` from now on; never shorter than it was. None if all of it is
        acknowledged. Late is fine as long as nobody else was given any of it. Raises NotFound, Conflict."""
        found = self._lease(lease)
        members = [member for member in self._known(found.sessions) if not member.acked]
        if not members:
            return None
        if found.over:
            raise Conflict(f"lease {lease} was given back")
        self._refuse_lost(lease, members)
        until = max(found.until, now + ttl_s)
        record = self.holds[lease] = Leased(at=now, lease=lease, sessions=found.sessions, until=until)
        return record

    def again(self, lease: str, now: float) -> HeldLease | None:
        """The lease of this id, for a trainer that asks for it once more because the answer was lost; None if there is
        none yet. Raises Overloaded (it is just being made durable), Conflict (it is over)."""
        if lease in self.holds:
            raise Overloaded(f"lease {lease} is being made", retry_after=1.0)
        found = self.leases.get(lease)
        if found is not None and (found.over or found.until <= now):
            raise Conflict(f"lease {lease} is over")
        return found

    def nack(self, lease: str, now: float) -> Nacked | None:
        """Give back what was not acknowledged; it is offered again at once. None if already so. Raises NotFound."""
        return None if self._lease(lease).over else Nacked(at=now, lease=lease)

    def close(self, job: str, uid: str, now: float) -> GroupClosed | None:
        """The driver's word that no more sessions count for this task. None if already so. Raises NotFound."""
        group = self.groups.get(GroupKey(job, uid))
        if group is None:
            raise NotFound(f"no group {uid[:200]!r} of job {job[:200]!r}")
        if group.closed is not None:
            return None
        return GroupClosed(at=now, job=job, uid=uid, sessions=group.good_now())

    def undo(self, record: Record) -> None:
        """The record could not be made durable: as if it had not been decided."""
        if isinstance(record, Leased):
            self.holds.pop(record.lease, None)
        elif isinstance(record, Acked):
            self._acknowledged(record.sessions)

    def standing(self, now: float) -> tuple[int, int]:
        """(whole groups with something that is not acknowledged, how many of them are on a live lease)."""
        return len(self.whole), len(self._taken(now) & self.whole.keys())

    def disposable(self) -> list[str]:
        """Sessions whose records nobody will ask for again. By whole groups: a rest would never look whole after a
        restart."""
        finished = (group for group in self.groups.values() if group.finished())
        return [member.session for group in finished for member in group.members()]

    def forget(self, sessions: Iterable[str]) -> None:
        """They were retired from the journal."""
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
            if not self._known(lease.sessions):
                del self.leases[lease.lease]

    def snapshot(self, now: float) -> list[Record]:
        """Records that fold to the same state: what may replace all lease records in the journal."""
        out: list[Record] = []
        for lease in self.leases.values():
            known = tuple(member.session for member in self._known(lease.sessions))
            acked = tuple(session for session in known if self.members[session].acked == lease.lease)
            out.append(Leased(at=now, lease=lease.lease, sessions=known, until=lease.until))
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
        if (known := self.leases.get(record.lease)) is not None:  # renewed
            known.until = record.until
            return
        for member in self._known(record.sessions):
            self.leases.setdefault(record.lease, HeldLease(record.lease, record.sessions, record.until))
            member.leased = record.lease

    def _acked(self, record: Acked) -> None:
        self._acknowledged(record.sessions)
        for member in self._known(record.sessions):
            self.leases.setdefault(record.lease, HeldLease(record.lease, record.sessions, record.at))
            member.acked = member.acked or record.lease
            self._refresh(member.key)
        if (lease := self.leases.get(record.lease)) is not None:
            lease.done = all(member.acked for member in self._known(lease.sessions))

    def _acknowledged(self, sessions: Iterable[str]) -> None:
        """No longer under way."""
        for session in sessions:
            self.acking[session] -= 1
            if self.acking[session] <= 0:
                del self.acking[session]

    def _nacked(self, record: Nacked) -> None:
        if (lease := self.leases.get(record.lease)) is not None:
            lease.over = True
            for member in self._known(lease.sessions):
                if member.leased == record.lease and not member.acked:
                    member.leased = ""

    def _refresh(self, key: GroupKey) -> None:
        """Does the group have something to offer? It keeps its place if it had before."""
        group = self.groups.get(key)
        for index, whole in ((self.whole, True), (self.partial, False)):
            if group is not None and group.offer(whole=whole):
                index.setdefault(key)
            else:
                index.pop(key, None)

    def _taken(self, now: float) -> set[GroupKey]:
        """Groups that nobody may be given now."""
        taken = {member.key for held in self.holds.values() for member in self._known(held.sessions)}
        for lease in self.leases.values():
            if lease.until > now and not lease.over and not lease.done:
                mine = (member for member in self._known(lease.sessions) if member.leased == lease.lease)
                taken.update(member.key for member in mine if not member.acked)
        taken.update(member.key for member in self._known(self.acking))
        return taken

    def _refuse_lost(self, lease: str, members: Iterable[Member]) -> None:
        """Raises Conflict if one of them was given to another lease since then, or is just being given."""
        again = {one for name, held in self.holds.items() if name != lease for one in held.sessions}
        lost = [
            member.session
            for member in members
            if (member.acked or member.leased) != lease or (not member.acked and member.session in again)
        ]
        if lost:
            raise Conflict(f"lease {lease} expired and was given to another: {', '.join(sorted(lost)[:8])}")

    def _lease(self, lease: str) -> HeldLease:
        found = self.leases.get(lease)
        if found is None:
            raise NotFound(f"no lease {lease[:200]!r}")
        return found

    def _known(self, sessions: Iterable[str]) -> list[Member]:
        return [self.members[session] for session in sessions if session in self.members]
