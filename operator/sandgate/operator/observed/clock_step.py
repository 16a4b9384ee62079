"""Moves what was observed along with a clock that was stepped, or ran on while its machine slept. (pure)

A run without a cluster has all of its processes on one machine: after a step each new time is by the new clock, and
only what is remembered is by the old one. Moved by the step, it is as long ago as it was before: nobody's time is up
for seconds in which nothing ran.
"""

from __future__ import annotations

from dataclasses import replace

from sandgate.operator.observed import gateway_times
from sandgate.operator.observed.frozen_map import FrozenMap
from sandgate.operator.observed.gateway_times import ClockStep
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.plan.actions import GroupObserved, Outage, Running, SessionObserved

STEPS_KEPT = 64
"""Of the clock: what a gateway tells from before more of them is not moved."""


def moved(seen: Observed, by: float, at: float) -> Observed:
    """Everything in it happened `by` seconds later, by the clock that says `at` now; every key is to be planned again,
    as wake-ups were by the old clock."""
    return replace(
        seen,
        steps=(*seen.steps, ClockStep(at, by))[-STEPS_KEPT:],
        started_at=seen.started_at + by,
        heard_at=None if seen.heard_at is None else seen.heard_at + by,
        trainer_at=seen.trainer_at + by if seen.trainer_at else seen.trainer_at,
        since=seen.since + by,
        sessions=FrozenMap((name, _session(one, by)) for name, one in seen.sessions.entries()),
        groups=FrozenMap((uid, _group(one, by)) for uid, one in seen.groups.entries()),
        wake_at=None,
        changed=(*seen.changed, JOB_KEY, *seen.sessions),
    )


def _session(seen: SessionObserved, by: float) -> SessionObserved:
    return replace(
        seen,
        opened_at=seen.opened_at + by,
        summary=None if seen.summary is None else gateway_times.moved(seen.summary, by),
        looked_at=seen.looked_at + by if seen.looked_at else 0.0,
        sandbox=_running(seen.sandbox, by),
        verifier=_running(seen.verifier, by),
        stop_at=seen.stop_at + by,
        side_cars_stop_at=None if seen.side_cars_stop_at is None else seen.side_cars_stop_at + by,
        verifier_stop_at=None if seen.verifier_stop_at is None else seen.verifier_stop_at + by,
        outages=tuple(_outage(one, by) for one in seen.outages),
        wake_at=None,
    )


def _running(seen: Running | None, by: float) -> Running | None:
    if seen is None:
        return None
    return replace(
        seen,
        asked_at=seen.asked_at + by,
        started_at=None if seen.started_at is None else seen.started_at + by,
        placed_at=None if seen.placed_at is None else seen.placed_at + by,
        exit=None if seen.exit is None else replace(seen.exit, at=seen.exit.at + by),
    )


def _outage(seen: Outage, by: float) -> Outage:
    return replace(seen, since=seen.since + by, until=None if seen.until is None else seen.until + by)


def _group(seen: GroupObserved, by: float) -> GroupObserved:
    samples = tuple(replace(one, ended_at=one.ended_at + by) if one.ended_at else one for one in seen.samples)
    return replace(seen, samples=samples)
