"""What the core asks of a journal. One conformance suite runs on every implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sandgate.gateway.journal.records import Record


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
        """All of them or none. With `sync` it returns when they are durable (one fsync serves many callers);
        without, at once: they become durable with the next group, in order, or never if the process dies first.

        Raises JournalUnavailable: then nothing of it was made durable, and nothing that was durable is lost.
        """
        ...

    def scan(self, session: str | None = None) -> Iterator[tuple[int, str, Record]]:
        """(sequence, session, record) in order; of one session or of all. Raises CorruptRecord, NewerRecord."""
        ...

    async def retire(self, sessions: list[str]) -> None:
        """Forget these sessions' records (acked and past their time)."""
        ...

    async def replace(self, session: str, *records: Record) -> None:
        """Forget the session's records and append these instead, all in one: how a long log is compacted."""
        ...

    def status(self) -> StoreStatus: ...

    async def aclose(self) -> None:
        """Everything appended is durable when this returns."""
        ...
