"""What the probes say, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandgate.operator.cluster.health import (
    LEASE_AGE_S_MAX,
    LOOP_LAG_S_MAX,
    QUEUE_AGE_S_MAX,
    SWEEP_AGE_S_MAX,
    OperatorHealth,
    ReplicaPhase,
    Signs,
    verdict,
)

WELL = OperatorHealth(queue_length=3, queue_age_s=1.0, last_event_age_s=2.0, sweep_age_s=10.0, jobs=1)
LEADS = Signs(phase=ReplicaPhase.LEADING, phase_age_s=100.0, hub=WELL)
STANDS_BY = Signs(phase=ReplicaPhase.STANDBY, phase_age_s=1e6, lease_age_s=1.0)
STARTS = Signs(phase=ReplicaPhase.STARTING, phase_age_s=1.0, waits_for="the custom resource definitions")

CASES = {
    "a leader that keeps up is healthy and ready": (LEADS, "", ""),
    "a standby is ready: it stands by": (STANDS_BY, "", ""),
    "a standby that lost sight of the Lease is not": (
        replace(STANDS_BY, lease_age_s=LEASE_AGE_S_MAX + 1), "the Lease was last seen", "the Lease was last seen",
    ),
    "who waits for the CRDs is healthy, not ready, and says so": (STARTS, "", "waits for the custom resource"),
    "a queue whose head waits is unhealthy": (
        replace(LEADS, hub=replace(WELL, queue_age_s=QUEUE_AGE_S_MAX + 1)), "queue's head", "queue's head",
    ),
    "a long queue that moves is healthy": (replace(LEADS, hub=replace(WELL, queue_length=100_000)), "", ""),
    "a cluster without news is healthy": (replace(LEADS, hub=replace(WELL, last_event_age_s=1e6)), "", ""),
    "a loop that stood still is unhealthy": (
        replace(STANDS_BY, loop_lag_s=LOOP_LAG_S_MAX + 1), "event loop", "event loop",
    ),
    "without a sweep for long is unhealthy": (
        replace(LEADS, hub=replace(WELL, sweep_age_s=SWEEP_AGE_S_MAX + 1)), "no sweep", "no sweep",
    ),
    "without any sweep for long is unhealthy": (
        replace(LEADS, phase_age_s=SWEEP_AGE_S_MAX + 1, hub=replace(WELL, sweep_age_s=None)), "no sweep", "no sweep",
    ),
    "before the first sweep it is healthy, but not ready": (
        replace(LEADS, hub=replace(WELL, sweep_age_s=None)), "", "has not seen everything",
    ),
    "who drains is healthy, not ready, whatever waits": (
        replace(LEADS, phase=ReplicaPhase.DRAINING, hub=replace(WELL, queue_age_s=1e6)), "", "drains",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("signs", "unhealthy", "unready"), CASES.values(), ids=CASES)
def test_verdict(signs: Signs, unhealthy: str, unready: str) -> None:
    said = verdict(signs)
    for reasons, expected in ((said.unhealthy, unhealthy), (said.unready, unready)):
        assert bool(reasons) == bool(expected)
        assert expected in "; ".join(reasons)
