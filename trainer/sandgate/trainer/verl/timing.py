"""How long sessions took, and which rows teach, under the names that verl's v0 trainer logs. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.verl.dataproto import count

PARTS = ("num_preempted", "generate_sequences", "tool_calls", "compute_score")
"""Of verl's AgentLoopMetrics; all but generate_sequences stay at their start values here."""


def timed(data: Any) -> Any:
    """The DataProto as verl's agent loop manager gives it to the trainer: `metrics` of the rows in meta_info are summed
    up as `timing`, which its fit() takes out."""
    metrics = data.meta_info.pop("metrics")
    data.meta_info["timing"] = timing(metrics) | _lengths(data, slowest(metrics)) | rows(data)
    return data


def rows(data: Any) -> dict[str, float]:
    """How many rows teach, and how many do not and why, of this batch; verl logs all that is in `timing`."""
    counted = RowCounters()
    count(data, counted)
    return {f"agent_loop/{name}": value for name, value in counted.metrics().items()}


def timing(metrics: Sequence[dict[str, float]]) -> dict[str, float]:
    """Least, most and mean of each part, and those of the row that took longest. Seconds, but for num_preempted."""
    found: dict[str, float] = {}
    for part in PARTS:
        each = [one[part] for one in metrics]
        name = f"agent_loop/{part}"
        found |= {f"{name}/min": min(each), f"{name}/max": max(each), f"{name}/mean": sum(each) / len(each)}
    last = metrics[slowest(metrics)]
    return found | {f"agent_loop/slowest/{part}": last[part] for part in PARTS}


def slowest(metrics: Sequence[dict[str, float]]) -> int:
    """Index of the row that took longest; of several, the first."""
    return max(range(len(metrics)), key=lambda at: sum(metrics[at][part] for part in PARTS[1:]))


def _lengths(data: Any, row: int) -> dict[str, int]:
    attention, prompt = data.batch["attention_mask"][row], data.batch["prompts"].shape[1]
    return {
        "agent_loop/slowest/prompt_length": int(attention[:prompt].sum()),
        "agent_loop/slowest/response_length": int(attention[prompt:].sum()),
    }
