"""The trainer's note: groups that were trained on and are not acknowledged yet.

It belongs into the trainer's own checkpoint, so that a crash between the checkpoint and the acknowledgement trains
nothing twice, and one before the checkpoint loses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from sandgate.contract.errors import Conflict, CorruptRecord, NewerRecord
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.lease_renewal import RenewedLease

FORMAT = 1
"""Version of the note's format."""

Note: TypeAlias = dict[str, Json]
"""JSON: {"format", "version", "trained": [{"gateway", "lease", "sessions"}]}. Its size is that of the groups trained on
since the last checkpoint: about 40 bytes a session."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A group that was trained on."""

    gateway: str
    lease: str
    sessions: tuple[str, ...]


@dataclass(slots=True)
class TrainedGroups:
    """Grows with each group that is trained on, shrinks with each that is acknowledged."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """The groups that were trained on, by lease id."""
    holds: dict[str, RenewedLease] = field(default_factory=dict)
    """Kept so that they are renewed until they are acknowledged."""
    noted: set[str] = field(default_factory=set)
    """Leases that a note has: from then on nothing can be taken back."""
    durable: set[str] = field(default_factory=set)
    """Leases of groups that a checkpoint has, as it was said to be on disk."""
    moved: dict[str, str] = field(default_factory=dict)
    """Leases that a note has -> those under which their groups came again."""
    sessions: Counter[str] = field(init=False)
    """Of the entries. Each group that is handed out asks for its own, whatever else is not acknowledged."""

    def __post_init__(self) -> None:
        self.sessions = Counter(session for one in self.entries.values() for session in one.sessions)

    def add(self, group: Group, gateway: str) -> None:
        """One that is this trainer's (`check`)."""
        self.put(Entry(gateway, group.lease.lease_id, group.lease.sessions))
        self.holds[group.lease.lease_id] = group.hold

    @staticmethod
    def check(group: Group) -> None:
        """Raises Conflict for a group whose lease was lost: another trainer may train on it, too."""
        if group.lost:
            raise Conflict(f"group {group.uid}: its lease ended, and another trainer may have it")

    def put(self, entry: Entry) -> None:
        """A group that was trained on, as a note says."""
        self._take(entry.lease)
        self.entries[entry.lease] = entry
        self.sessions.update(entry.sessions)

    def _take(self, lease: str) -> None:
        if (entry := self.entries.pop(lease, None)) is None:
            return
        for session in entry.sessions:
            self.sessions[session] -= 1
            if not self.sessions[session]:
                del self.sessions[session]

    def drop(self, lease: str) -> None:
        """Drop a group that was acknowledged or given back."""
        self._take(lease)
        self.noted.discard(lease)
        self.durable.discard(lease)
        self.moved = {old: new for old, new in self.moved.items() if new != lease}
        if (hold := self.holds.pop(lease, None)) is not None:
            hold.over = True

    def forget(self, sessions: Iterable[str]) -> None:
        """These were acknowledged under another lease."""
        gone = set(sessions)
        for entry in [one for one in self.entries.values() if gone.issuperset(one.sessions)]:
            self.drop(entry.lease)

    def move(self, group: Group, gateway: str) -> list[str]:
        """Hold a group that was trained on, and came again, under its new lease; the leases that it had before. Nothing
        if a checkpoint on disk has it: then it is to be acknowledged."""
        mine = set(group.lease.sessions)
        before = [one.lease for one in self.entries.values() if not mine.isdisjoint(one.sessions)]
        if self.durable.issuperset(before):
            return []
        now, noted = group.lease.lease_id, self.noted.intersection(before)
        named = noted | {old for old, new in self.moved.items() if new in noted}
        for lease in before:
            self.drop(lease)
        self.put(Entry(gateway, now, group.lease.sessions))
        self.holds[now] = group.hold
        if noted:  # its commit is still to come, and names the old one
            self.noted.add(now)
            self.moved |= dict.fromkeys(named, now)
        return before

    def current(self, lease: str) -> str:
        """The lease under which the group of a note's lease is held now."""
        return self.moved.get(lease, lease)

    def fresh(self, rows: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
        """Those that were not trained on yet, by id."""
        return tuple(row for row in rows if row.session_id not in self.sessions)

    @property
    def kept(self) -> set[str]:
        """Leases of groups that a checkpoint may have."""
        return self.noted | self.durable

    def unnoted(self) -> list[RenewedLease]:
        """Of groups that are in no note yet."""
        return [hold for lease, hold in self.holds.items() if lease not in self.noted]

    def note(self, version: int) -> Note:
        """As of now."""
        self.noted |= self.entries.keys()
        rows = [
            {"gateway": one.gateway, "lease": one.lease, "sessions": list(one.sessions)}
            for one in self.entries.values()
        ]
        return {"format": FORMAT, "version": version, "trained": rows}


def entries(note: Note) -> list[Entry]:
    """What a note holds. Raises NewerRecord, CorruptRecord."""
    try:
        if (seen := int(note["format"])) > FORMAT:
            raise NewerRecord(seen=seen, known=FORMAT)
        return [
            Entry(str(one["gateway"]), str(one["lease"]), tuple(map(str, one["sessions"])))
            for one in note["trained"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"not a note of what was trained on: {error!r}") from error
