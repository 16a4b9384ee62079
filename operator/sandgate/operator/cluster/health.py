"""Health of an operator: whether it makes progress, and whether a restart would help. (pure)

Liveness is for what a restart mends: a stuck queue, a stuck loop, a client that lost its way. Readiness says whether
this replica does its part; one that waits for the Lease does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SWEEP_S = 300.0
"""Between two sweeps: how late a deletion is noticed that every other way missed."""
SWEEP_AGE_S_MAX = 3 * SWEEP_S
"""Without a sweep that succeeded: more than an API server's upgrade takes."""
QUEUE_AGE_S_MAX = 180.0
"""Of the key at the queue's head. Backing off is not waiting in the queue, so a healthy one is worked off in seconds;
a call to the API server takes 30 s at most, and every worker would have to be in several."""
LOOP_LAG_S_MAX = 5.0
"""Longest stall of the event loop lately. The Lease is lost at 10 s."""
LEASE_AGE_S_MAX = 60.0
"""Since a standby last saw the Lease: later, it would not notice that its turn has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorHealth:
    """What the job controller says about itself. Ages are seconds; None: there was none yet."""

    queue_length: int = 0
    """Keys that wait to be planned."""
    queue_age_s: float = 0.0
    """How long the first of them has waited; 0 when there is none."""
    last_event_age_s: float | None = None
    """Of the last change that came by a watch. Only told: a cluster may have nothing to say for hours."""
    sweep_age_s: float | None = None
    """Of the last sweep that succeeded."""
    jobs: int = 0
    unready: Mapping[str, int] = field(default_factory=dict)
    """Reason of the condition Ready -> how many jobs that should run do not, as no gateway or no engine is ready."""
    sessions: Mapping[str, int] = field(default_factory=dict)
    """State (a word of a small, fixed set) -> how many sessions are in it."""


class ReplicaPhase(StrEnum):
    """What a replica is doing."""

    STARTING = "starting"
    """Looks for the API server and the kinds it serves."""
    STANDBY = "standby"
    """Waits for the Lease."""
    LEADING = "leading"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """All that a verdict needs."""

    phase: ReplicaPhase
    phase_age_s: float
    """How long it has been in this phase."""
    loop_lag_s: float = 0.0
    lease_age_s: float = 0.0
    """Since the Lease was last seen or renewed; 0 without a Lease."""
    waits_for: str = ""
    """STARTING: what it waits for."""
    hub: OperatorHealth | None = None
    """LEADING and DRAINING only."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reasons; none means yes."""

    unhealthy: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()


def verdict(signs: Signs) -> Verdict:
    """What the probes say now."""
    ill = tuple(_complaints(signs))
    return Verdict(ill, ill + tuple(_not_yet(signs)))


def _complaints(signs: Signs) -> list[str]:
    found = []
    if signs.loop_lag_s > LOOP_LAG_S_MAX:
        found.append(f"the event loop stood still for {signs.loop_lag_s:.1f} s")
    if signs.phase is ReplicaPhase.STANDBY and signs.lease_age_s > LEASE_AGE_S_MAX:
        found.append(f"the Lease was last seen {signs.lease_age_s:.0f} s ago")
    if signs.phase is ReplicaPhase.LEADING and signs.hub is not None:
        found += _stuck(signs.hub, signs.phase_age_s)
    return found


def _stuck(hub: OperatorHealth, led_s: float) -> list[str]:
    found = []
    if hub.queue_age_s > QUEUE_AGE_S_MAX:
        found.append(f"the queue's head has waited for {hub.queue_age_s:.0f} s")
    age = led_s if hub.sweep_age_s is None else hub.sweep_age_s
    if age > SWEEP_AGE_S_MAX:
        found.append(f"no sweep succeeded for {age:.0f} s")
    return found


def _not_yet(signs: Signs) -> list[str]:
    match signs.phase:
        case ReplicaPhase.STARTING:
            return [f"waits for {signs.waits_for or 'the API server'}"]
        case ReplicaPhase.DRAINING:
            return ["drains"]
        case ReplicaPhase.LEADING if signs.hub is None or signs.hub.sweep_age_s is None:
            return ["leads, but has not seen everything yet"]
        case _:
            return []
