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
    """Groups as they come, and 32 in one lease."""
    names = ("groups", "groups_acked_one_by_one", "leases_of_32")
    rows = measure(smoke)
    found = {
        f"{name}_{unit}": row[key]
        for name, row in zip(names, rows, strict=True)
        for key, unit in UNITS.items()
    }
    ratio = rows[0]["trainer_cpu_mb_per_s"] / rows[-1]["trainer_cpu_mb_per_s"]
    return found | {"groups_to_leases_of_32_ratio": ratio}
