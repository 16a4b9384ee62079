"""Decides what stands for a job, gateways and engine, and since when they have nothing to do. (pure)"""

from __future__ import annotations

from sandgate.contract.conditions import JobReason
from sandgate.contract.status import JobCondition, RolloutJobStatus
from sandgate.operator.plan.actions import JobObserved, JobWant, Provided, SampleState
from sandgate.operator.plan.conditions import find, is_true
from sandgate.operator.plan.ends import seconds

PATIENCE_S = 120.0
"""A job that its queue holds gives its gateways this long to seal what had begun. Then they go: others wait for the
quota, and what is open in a journal is sealed when the job goes on."""


def standing(want: JobWant, seen: JobObserved, now: float, *, over: bool) -> Provided | None:
    """What is to stand; None: nothing is to be touched, because nothing was ever made for a job that was created
    suspended. Engines are let go of as soon as nothing can run, gateways once they had nothing to do for
    `gateway.idleSeconds`."""
    if seen.provided is Provided.NOTHING and want.spec.suspend and not made(seen.status):
        return None
    if not over and not want.spec.suspend:
        return Provided.RUNNING
    if seen.provided is Provided.NOTHING and want.held is not None and _gave_back(seen):
        return Provided.IDLE  # an operator before this one saw the last pod go
    at = idle_at(want, seen, over=over)
    return Provided.IDLE if at is not None and now >= at else Provided.STOPPED


def idle_at(want: JobWant, seen: JobObserved, *, over: bool) -> float | None:
    """When gateways may go, if no trainer asks anything of them until then; None: they have something to do, or did not
    say yet whether a trainer lives."""
    held = want.held is not None
    kind = JobCondition.COLLECTED if over and not held else JobCondition.SUSPENDED
    since = _since(seen.status, kind)
    if since is None or not (over or want.spec.suspend):
        return None
    # What runs is not known before all gateways were asked.
    known = over or seen.owed is not None or seen.provided is Provided.IDLE
    if held:
        return since if known and not busy(seen) else since + PATIENCE_S
    if busy(seen) or not known:
        return None
    heard = 0.0 if seen.provided is Provided.IDLE else seen.trainer_at
    return None if heard is None else max(since, heard) + want.spec.gateway.idle_seconds


def _gave_back(seen: JobObserved) -> bool:
    """Its queue has its quota back."""
    found = None if seen.queue is None else seen.queue.workload
    return found is not None and not found.reserved


def is_idle(status: RolloutJobStatus | None) -> bool:
    """Its gateways were scaled to nothing, by this operator or one before it."""
    ready = find(status, JobCondition.READY)
    return ready is not None and ready.reason == JobReason.IDLE


def busy(seen: JobObserved) -> bool:
    """Sessions are not sealed."""
    samples = (sample for group in seen.groups.values() for sample in group.samples)
    return bool(seen.remote) or any(sample.state is SampleState.LIVE for sample in samples)


def made(status: RolloutJobStatus | None) -> bool:
    """Gateways stand, of an operator before this one."""
    ready = find(status, JobCondition.READY)
    return ready is not None and ready.reason not in (JobReason.IDLE, JobReason.NOTHING_MADE)


def _since(status: RolloutJobStatus | None, kind: JobCondition) -> float | None:
    """Since when a condition is True."""
    found = find(status, kind) if is_true(status, kind) else None
    return None if found is None else seconds(found.last_transition_time)
