"""A turn's CPU beside a relay and the least that owns tokens; the whole table is `python -m tests.bench.turns`."""

from __future__ import annotations

import statistics

from tests.bench.turns import CASES, Case, measure, ratio


def bench(smoke: bool) -> dict[str, float]:
    """Milliseconds of each case, and its ratios."""
    cases = (
        (Case("5k, later turns", 9_000, 2, 1), Case("stream at once", 9_000, 2, 1, stream=True))
        if smoke
        else CASES
    )
    out: dict[str, float] = {}
    for case in cases:
        costs = measure(case, 1 if smoke else 5)
        name = case.name.replace(", ", "_").replace(" ", "_")
        out |= {f"{name}_{who}_cpu_ms": statistics.median(found) for who, found in costs.items()}
        out |= {f"{name}_to_{who}": ratio(costs, who) for who in costs if who != "gateway"}
    return out
