"""Sessions a second of one operator in a played cluster; thousands of them: `python -m tests.bench.cluster`."""

from __future__ import annotations

import asyncio
import sys

from tests.bench.cluster import run
from tests.cluster.scale.hosts import why_no_hosts
from tests.cluster.scale.plane import why_no_plane
from tests.cluster.scale.world import Shape


def bench(smoke: bool) -> dict[str, float]:
    """A thousand sessions."""
    if why := why_no_plane() or why_no_hosts():
        print(f"not measured: {why}", file=sys.stderr)
        return {}
    (row,) = asyncio.run(run([Shape("job", 40 if smoke else 1000, 40 if smoke else 200)]))
    names = "sessions_per_s", "steady_per_s", "pod_s_p50", "pod_s_p99", "writes_per_session"
    return {name: row[name] for name in names} | {
        "operator_cpu_ms_per_session": row["cpu_ms_per_session"]["operator"],
        "operator_peak_mib": row["peak_mib"]["operator"],
    }
