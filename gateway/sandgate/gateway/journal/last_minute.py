"""LastMinute: which turns the end of a journal has, by the order of its records, however the wall clock was set. (pure)

A kill loses the note that a turn was sent only right behind that turn. Times alone do not say what is right behind it:
a clock that was ahead until NTP set it back leaves times that the records after it do not reach for hours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sandgate.gateway.journal.records import (
    Acked,
    GroupClosed,
    Leased,
    Nacked,
    Record,
    Retired,
    TurnCommitted,
)

UNSURE_S = 60.0
"""Seconds. A turn that was committed longer before the journal's last record, and delivered, has a Delivered record."""


@dataclass(slots=True)
class LastMinute:
    """Give it each record once, in the journal's order; then it has the turns of the last `UNSURE_S`."""

    spanned: float = 0.0
    """Seconds from the first record to the newest; a step back is none."""
    newest: float | None = None
    """The time that the clock had reached, since it was last set back."""
    behind_leases: float | None = None
    """Seconds from the first record behind the newest lease or renewal to the newest; None: there is none behind it.
    How long before that record the lease was made is not known, and may be no time at all: so no more than what
    passed, but for what two that were written at once are apart."""
    turns: deque[tuple[float, str, str]] = field(default_factory=deque)
    """(`spanned` as it was then, session, turn)."""

    def seen(self, session_id: str, record: Record) -> None:
        """The next record. Those of leases have times of another clock, or, as retired lines, of long ago."""
        if isinstance(record, Leased):
            self.behind_leases = None
        if isinstance(record, Leased | Acked | Nacked | GroupClosed | Retired):
            return
        before = self.spanned
        if self.newest is None or record.at < self.newest - UNSURE_S:
            self.newest = record.at  # less may be two that were written at once, in the other order
        elif record.at > self.newest:
            self.spanned += record.at - self.newest
            self.newest = record.at
        self.behind_leases = 0.0 if self.behind_leases is None else self.behind_leases + self.spanned - before
        if isinstance(record, TurnCommitted):
            self.turns.append((self.spanned, session_id, record.turn))
        while self.turns and self.turns[0][0] < self.spanned - UNSURE_S:
            self.turns.popleft()

    def by_session(self) -> dict[str, set[str]]:
        """Session -> its turns of the last minute."""
        found: dict[str, set[str]] = {}
        for _, session_id, turn in self.turns:
            found.setdefault(session_id, set()).add(turn)
        return found
