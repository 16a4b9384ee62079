"""State of a gateway process beside its sessions: policy version, labels, pause, engine URLs, granted capacity. (pure)

The fold of its journal records, live and in replay alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandgate.gateway.journal.records import (
    CapacityChanged,
    EnginesLabelled,
    EnginesSet,
    PolicyVersion,
    Record,
    TurnsHeld,
)

ProcessRecord = PolicyVersion | EnginesLabelled | EnginesSet | TurnsHeld | CapacityChanged


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What the process was told, or found out."""

    version: int = 0
    """Policy version of the engines' weights, as the trainer said it."""
    labelled: bool = False
    """Labels of the engines' weights carry versions, and the journal says so."""
    paused: bool = False
    """A weight update holds new turns."""
    engines: tuple[str, ...] | None = None
    """URLs of the engines, if they were set after the start."""
    capacity: int = 0
    """Sessions that AReaL's trainer granted and nobody started yet."""

    def apply(self, record: ProcessRecord) -> ProcessState:
        """The state after this record."""
        match record:
            case PolicyVersion():
                return replace(self, version=record.version)
            case EnginesLabelled():
                return replace(self, labelled=record.labelled)
            case TurnsHeld():
                return replace(self, paused=record.paused)
            case EnginesSet():
                return replace(self, engines=record.urls)
            case CapacityChanged():
                return replace(self, capacity=self.capacity + record.by)

    def snapshot(self, now: float) -> list[Record]:
        """Records that fold to this state: what may replace the log in the journal."""
        records: list[Record] = [PolicyVersion(at=now, version=self.version)]
        if self.labelled:
            records.append(EnginesLabelled(at=now, labelled=True))
        if self.paused:
            records.append(TurnsHeld(at=now, paused=True))
        if self.engines is not None:
            records.append(EnginesSet(at=now, urls=self.engines))
        if self.capacity:
            records.append(CapacityChanged(at=now, by=self.capacity))
        return records
