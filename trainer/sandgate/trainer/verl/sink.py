"""`to_dataproto` as a RolloutSink: one DataProto of all rows of some groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.reasons import Truncated
from sandgate.trainer.credit.sink import SinkGroup, checked
from sandgate.trainer.verl.dataproto import LEFT_OUT, to_dataproto


@dataclass(frozen=True, slots=True)
class VerlSink:
    """A row for every row of the groups; `session_advantages` counts each session once."""

    lengths: Lengths
    pad_token_id: int = 0
    truncated: Truncated = "score"
    processor: Any = None

    def batch(self, groups: Sequence[SinkGroup], counters: RowCounters | None = None) -> Any:
        """See RolloutSink; None if there is no row at all, of which verl has no batch."""
        rows = [row for group in groups for row in checked(group, images=self.processor is not None)]
        if not rows:
            return None
        made = to_dataproto(
            rows, self.lengths, pad_token_id=self.pad_token_id, truncated=self.truncated,
            processor=self.processor,
        )  # fmt: skip
        if counters is not None:
            left = Counter(why for why in made.non_tensor_batch[LEFT_OUT] if why)
            counters.add(len(rows) - left.total(), left)
        return made
