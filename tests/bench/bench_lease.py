"""Trajectories to a trainer; the table is `python -m tests.bench.lease`."""

from __future__ import annotations

from tests.bench.lease import measure

UNITS = {
    "wall_mb_per_s": "mb_per_s",
    "trainer_cpu_mb_per_s": "mb_per_s_of_a_trainers_core",
    "gateway_cpu_mb_per_s": "mb_per_s_of_a_gateways_core",
    "peak_rss_mb": "peak_rss_mb",
}


def bench(smoke: bool) -> dict[str, float]:
    """One group at a time, and 32 at once."""
    names = ("groups", "leases_of_32")
    return {
        f"{name}_{unit}": row[key]
        for name, row in zip(names, measure(smoke), strict=True)
        for key, unit in UNITS.items()
    }
