"""RolloutSink: what an adapter of a trainer is; docs/trainers/sinks.md says what it must do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.samples import refuse_unfit

Batch_co = TypeVar("Batch_co", covariant=True)


@dataclass(frozen=True, slots=True)
class SinkGroup:
    """What a sink is given of one task."""

    uid: str
    rows: Sequence[Trajectory]
    """All rows of all its sessions, in any order, of failed ones, too; none if no session left any."""
    samples: int
    """How many sessions the trainer asked for: their `sample_index` is 0 to `samples` - 1."""


def checked(group: SinkGroup, *, images: bool = False) -> Sequence[Trajectory]:
    """Its rows. Raises InvalidBody for rows of more than one task, and for what `refuse_unfit` refuses."""
    for row in group.rows:
        refuse_unfit(row, images=images)
    if len(tasks := {row.uid for row in group.rows}) > 1:
        raise InvalidBody(f"rows of {len(tasks)} tasks; a group is of one", field="uid")
    return group.rows


class RolloutSink(Protocol[Batch_co]):
    """Makes a framework's own batch of whole groups. Settings (lengths, padding, what becomes of truncated episodes)
    are its fields; it holds no state, so one may be used by several threads."""

    def batch(self, groups: Sequence[SinkGroup], counters: RowCounters | None = None) -> Batch_co:
        """The rows that teach, and where the framework's groups have a size, others under mask 0 in place of those
        that do not. `counters` counts both, these by reason. Raises InvalidBody or Conflict for what is no group of
        the trainer's; never because sessions failed."""
        ...
