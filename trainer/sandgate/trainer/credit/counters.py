"""Counters of rows: how many teach, how many do not, and why. No Prometheus library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandgate.trainer.credit.reasons import LeftOut
from sandgate.trainer.metrics_text import PREFIX, labels_of


@dataclass(slots=True)
class RowCounters:
    """Of a process. They only grow."""

    taught: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> rows; a session that failed before it had any is one row of reason `failure`."""

    def add(self, taught: int, left_out: Mapping[str, int]) -> None:
        """`left_out`: reason -> rows."""
        self.taught += taught
        self.left_out.update(left_out)

    def metrics(self) -> dict[str, float]:
        """Under the names that trainers log: `rows/taught`, and `rows/left_out/REASON` for every reason."""
        found: dict[str, float] = {"rows/taught": float(self.taught)}
        return found | {f"rows/left_out/{why.value}": float(self.left_out[why.value]) for why in LeftOut}

    def prometheus(self, **labels: str) -> str:
        """In the text format 0.0.4; `labels` go to every sample."""
        taught, out = f"{PREFIX}rows_taught_total", f"{PREFIX}rows_left_out_total"
        lines = [
            f"# TYPE {taught} counter",
            f"{taught}{labels_of(labels)} {self.taught}",
            f"# TYPE {out} counter",
        ]
        lines += [f"{out}{labels_of(labels | {'reason': why})} {self.left_out[why]}" for why in LeftOut]
        return "\n".join(lines) + "\n"
