"""A turn's CPU in each protocol, and its ratio to chat; the table is `python -m tests.bench.protocols`."""

from __future__ import annotations

import statistics

from tests.bench.protocols import measure, ratio


def bench(smoke: bool) -> dict[str, float]:
    """JSON and SSE."""
    costs = measure(rounds=1, turns=2, sessions=1) if smoke else measure(rounds=5, turns=10, sessions=4)
    out: dict[str, float] = {}
    for name, found in costs.items():
        key = name.replace(",", "").replace(" ", "_").lower()
        out[f"{key}_cpu_ms_per_turn"] = statistics.median(found)
        out[f"{key}_to_chat"] = ratio(costs, name, f"chat {name.rpartition(' ')[2]}")
    return out
