"""A turn's cost through the gateway; the whole table is `python -m tests.bench.run`."""

from __future__ import annotations

from tests.bench.model import folder
from tests.bench.run import cases, measure


def bench(smoke: bool) -> dict[str, float]:
    """JSON and SSE, one and 64 conversations at once."""
    model = folder()
    out: dict[str, float] = {}
    for case in cases(smoke):
        if smoke or (case.name.startswith("5k") and not case.name.endswith("x256")):
            row = measure(case, model)["gateway"]
            assert row["errors"] == 0, row["first_error"]
            name = case.name.replace(" ", "_").lower()
            out |= {
                f"{name}_{key}": row[key] for key in ("overhead_ms_p50", "overhead_ms_p99", "cpu_ms_per_turn")
            }
    return out
