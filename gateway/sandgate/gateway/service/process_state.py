"""State of a gateway process beside its sessions: policy version, labels, pause, update, engine URLs, capacity. (pure)

The fold of its journal records, live and in replay alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandgate.contract.errors import Conflict
from sandgate.gateway.engine.api import ServedAdapter
from sandgate.gateway.journal.records import (
    AdapterServed,
    CapacityChanged,
    EnginesLabelled,
    EnginesSet,
    PolicyVersion,
    Record,
    TurnsHeld,
)

ProcessRecord = PolicyVersion | AdapterServed | EnginesLabelled | EnginesSet | TurnsHeld | CapacityChanged


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What the process was told, or found out."""

    version: int = 0
    """Policy version of the engines' weights, as the trainer said it."""
    version_told: bool = False
    """Somebody said it, ever. A gateway that lost its journal was told nothing."""
    adapter: ServedAdapter | None = None
    """What the engines serve that version as, beside the weights that they were started with. Changes with it, in one
    step."""
    labelled: bool = False
    """Labels of the engines' weights carry versions, and the journal says so."""
    paused: bool = False
    """A weight update holds new turns."""
    update: str = ""
    """The weight update that began last, of those that named themselves: its name is the greatest."""
    engines: tuple[str, ...] | None = None
    """URLs of the engines, if they were set after the start."""
    capacity: int = 0
    """Sessions that AReaL's trainer granted and nobody started yet."""

    def apply(self, record: ProcessRecord) -> ProcessState:
        """The state after this record."""
        match record:
            case PolicyVersion():
                return replace(self, version=record.version, version_told=True, adapter=None)
            case AdapterServed():
                served = ServedAdapter(record.name, record.version)
                return replace(self, version=record.version, version_told=True, adapter=served)
            case EnginesLabelled():
                return replace(self, labelled=record.labelled)
            case TurnsHeld():
                return replace(self, paused=record.paused, update=max(self.update, record.update))
            case EnginesSet():
                return replace(self, engines=record.urls)
            case CapacityChanged():
                return replace(self, capacity=self.capacity + record.by)

    def refuse_older(self, update: str) -> None:
        """Raises Conflict for a weight update that another one began after."""
        if update and update < self.update:
            raise Conflict(
                "another weight update began after this one, and has the gateway now: one trainer updates at a time",
                field="update",
            )

    def snapshot(self, now: float) -> list[Record]:
        """Records that fold to this state: what may replace the log in the journal."""
        records: list[Record] = []
        if self.version_told:
            records.append(_version(now, self.version, self.adapter))
        if self.labelled:
            records.append(EnginesLabelled(at=now, labelled=True))
        if self.paused or self.update:
            records.append(TurnsHeld(at=now, paused=self.paused, update=self.update))
        if self.engines is not None:
            records.append(EnginesSet(at=now, urls=self.engines))
        if self.capacity:
            records.append(CapacityChanged(at=now, by=self.capacity))
        return records


def _version(now: float, version: int, adapter: ServedAdapter | None) -> Record:
    if adapter is None:
        return PolicyVersion(at=now, version=version)
    return AdapterServed(at=now, version=version, name=adapter.name)
