"""Eight gateways over engines that they share: how evenly these are used; at length: `python -m tests.bench.fleet`."""

from __future__ import annotations

import uvloop

from tests.bench.fleet import run
from tests.gateway.engine.fleet_simulation import Shape


def bench(smoke: bool) -> dict[str, float]:
    """64 engines, one of which is lost and another added in the end."""
    shape = Shape(
        gateways=2 if smoke else 8,
        engines=4 if smoke else 64,
        sessions=32 if smoke else 512,
        turns=4 if smoke else 6,
        generate_s=1.0 if smoke else 6.0,
        tools_s=0.2 if smoke else 3.0,
        stagger_s=1.0 if smoke else 10.0,
        nodes=2 if smoke else 8,
    )
    warm_s, seconds, changed_s = (1.0, 2.0, 1.0) if smoke else (20.0, 90.0, 30.0)
    found = uvloop.run(run(shape, slots=12, warm_s=warm_s, seconds=seconds, changed_s=changed_s))
    return {
        "busiest_of_mean": found.whole.busiest,
        "idle_share": found.whole.idle,
        "hits_of_sticky_sessions": found.whole.hits / found.whole.by_session,
        "hits_of_sticky_groups": found.whole.hits / found.whole.by_group,
        "on_their_node_share": found.whole.here,
        "busiest_of_mean_after_a_change": found.changed.busiest,
        "new_engine_of_mean": found.new,
        "failures": len(found.failures),
    }
