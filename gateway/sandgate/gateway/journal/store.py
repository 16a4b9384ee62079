"""Store: the interface of a journal: append, scan, retire, replace. One conformance suite runs on every journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from sandgate.gateway.journal.records import Record
from sandgate.gateway.journal.space import Space

NO_LINES: Mapping[str, Record] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """`healthy` False: appends are refused (JournalUnavailable) until a probe write succeeds again."""

    healthy: bool
    detail: str = ""
    records: int = 0
    cut: int = 0
    """Records dropped from a torn tail at start."""


class Store(Protocol):
    """An append-only log of (session, record), in one total order."""

    async def append(self, session: str, *records: Record, sync: bool = True) -> None:
        """Appends all records or none. With `sync` it returns when they are durable (one fsync serves many callers).
        Without, it returns at once: they become durable with the next group, in order, or never if the process dies
        first.

        Raises JournalUnavailable: then none of them was made durable, and nothing durable is lost.
        """
        ...

    def scan(self, session: str | None = None) -> Iterator[tuple[int, str, Record]]:
        """Yields (sequence, session, record) in order, of one session or of all. Raises CorruptRecord, NewerRecord."""
        ...

    def scan_named(self, beginning: str, after: str = "") -> Iterator[tuple[int, str, Record]]:
        """The same for sessions whose names begin like that and go on with more than `after`, by name, in the order of
        Unicode's code points."""
        ...

    async def retire(self, sessions: Sequence[str], lines: Mapping[str, Record] = NO_LINES) -> None:
        """Forgets the records of these sessions (acknowledged long enough ago) and appends `lines` (session -> record)
        in their place: all of it in one transaction, or nothing. Nothing may be appended to them from this call on."""
        ...

    async def replace(self, session: str, *records: Record) -> None:
        """Replaces the session's records, all at once: how a long log is compacted."""
        ...

    def status(self) -> StoreStatus: ...

    @property
    def space(self) -> Space:
        """What the journal's volume has left, as of the last commit; asks no disk. UNKNOWN for a database."""
        ...

    async def aclose(self) -> None:
        """Closes the journal; everything appended is durable when this returns."""
        ...
