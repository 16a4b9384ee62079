"""`group_rows` and `rollout` as a RolloutSink: what a `rollout_func` of TRL returns for some groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.reasons import CreditRules
from sandgate.trainer.credit.sink import SinkGroup, checked
from sandgate.trainer.trl.rows import Pick, final, group_rows, rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlSink:
    """One row a sample, in order. `rules_of` makes `rules` of a GRPOConfig."""

    pad_token_id: int = 0
    rules: CreditRules | None = None
    pick: Pick = final

    def batch(self, groups: Sequence[SinkGroup], counters: RowCounters | None = None) -> dict[str, list[Any]]:
        """See RolloutSink."""
        rows = [
            row
            for group in groups
            for row in group_rows(checked(group), group.samples, self.pick, self.rules)
        ]
        if counters is not None:
            left = Counter(row.why.value for row in rows if row.why is not None)
            counters.add(len(rows) - left.total(), left)
        return rollout(rows, self.pad_token_id)
