"""`to_dataproto` as a RolloutSink: one DataProto of all rows of some groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.batches import no_row
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.reasons import Truncated
from sandgate.trainer.credit.sink import SinkGroup, checked
from sandgate.trainer.verl.dataproto import count, named, to_dataproto


@dataclass(frozen=True, slots=True)
class VerlSink:
    """A row for every row of the groups; `session_advantages` counts each session once. Where only one session of
    several left rows, a masked one stands beside it for the others: of a group of one verl takes the bare score."""

    lengths: Lengths
    pad_token_id: int = 0
    truncated: Truncated = "score"
    processor: Any = None

    def batch(self, groups: Sequence[SinkGroup], counters: RowCounters | None = None) -> Any:
        """See RolloutSink; None if there is no row at all, of which verl has no batch."""
        rows = [row for group in groups for row in self._whole(group)]
        if not rows:
            return None
        made = to_dataproto(
            rows, self.lengths, pad_token_id=self.pad_token_id, truncated=self.truncated,
            processor=self.processor,
        )  # fmt: skip
        if counters is not None:
            count(made, counters)
        return made

    def _whole(self, group: SinkGroup) -> list[Trajectory]:
        rows = [named(row, group.uid) for row in checked(group, images=self.processor is not None)]
        if len({row.session_id for row in rows}) != 1 or group.samples == 1:
            return rows
        free = next(at for at in range(group.samples) if at != rows[0].sample_index)
        return [*rows, no_row(rows[0].uid, free, self.pad_token_id)]
