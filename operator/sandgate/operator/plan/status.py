"""A job's status: counts and conditions. (pure)"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus
from sandgate.operator.plan.actions import GroupObserved, JobObserved, JobWant, SampleState
from sandgate.operator.plan.groups import good, retries, retryable, settled

Fact = tuple[bool, str, str]
"""(status, reason, message)."""


def stamp(now: float) -> str:
    """RFC 3339, whole seconds, as Kubernetes writes it."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_over(status: RolloutJobStatus | None, kind: JobCondition) -> bool:
    """Is that condition True?"""
    return status is not None and any(
        one.type == kind and one.status is ConditionStatus.TRUE for one in status.conditions
    )


def job_status(want: JobWant, seen: JobObserved, now: float, *, late: bool) -> RolloutJobStatus:
    """What is to be told of the job; equal to `seen.status` if nothing changed."""
    groups = seen.groups.values()
    samples = [sample for group in groups for sample in group.samples]
    running = sum(sample.state is SampleState.LIVE for sample in samples)
    idle = not running and all(settled(group) for group in groups)
    old = seen.status or RolloutJobStatus()
    # Past the deadline, groups settle because they are closed: that is no completion.
    complete = is_over(old, JobCondition.COMPLETE) or (idle and not seen.fresh and not late)
    failed = late and not complete and idle
    facts: dict[JobCondition, Fact] = {
        JobCondition.READY: _ready(seen),
        JobCondition.SUSPENDED: _suspended(want),
        JobCondition.PROGRESSING: _progressing(want, seen, over=complete or failed, running=running),
        JobCondition.COMPLETE: (complete, "AllEnded" if complete else "NotAllEnded", ""),
        JobCondition.FAILED: (failed, "DeadlineExceeded" if failed else "NotFailed", ""),
    }
    return replace(
        old,
        observed_generation=want.generation,
        conditions=tuple(_condition(old, kind, fact, want.generation, now) for kind, fact in facts.items()),
        sessions=seen.total,
        running=running,
        ended=seen.tally.ended + sum(_ended(group, want) for group in groups),
        failed=seen.tally.failed + sum(_failed(group, want) for group in groups),
        retries=seen.tally.retries + sum(retries(group) for group in groups),
        committed=seen.committed,
        start_time=old.start_time or ("" if want.spec.suspend else stamp(now)),
        completion_time=old.completion_time or (stamp(now) if complete or failed else ""),
    )


def _ready(seen: JobObserved) -> Fact:
    if seen.gateways:
        return True, "GatewaysReady", ""
    return False, "NoGateway", "no gateway takes sessions"


def _suspended(want: JobWant) -> Fact:
    return want.spec.suspend, "SpecSuspend" if want.spec.suspend else "NotSuspended", ""


def _progressing(want: JobWant, seen: JobObserved, *, over: bool, running: int) -> Fact:
    if over:
        return False, "Over", ""
    if want.spec.suspend:
        return False, "Suspended", ""
    if seen.draining:
        return running > 0, "Draining", ""
    return True, "Running" if running else "Waiting", ""


def _ended(group: GroupObserved, want: JobWant) -> int:
    if settled(group):
        return len(group.samples)
    return sum(
        sample.state is SampleState.ENDED and not retryable(sample, want.spec) for sample in group.samples
    )


def _failed(group: GroupObserved, want: JobWant) -> int:
    if settled(group):
        return sum(not good(sample) or sample.failure is not None for sample in group.samples)
    return sum(
        sample.state is SampleState.ENDED and sample.failure is not None and not retryable(sample, want.spec)
        for sample in group.samples
    )


def _condition(
    old: RolloutJobStatus, kind: JobCondition, fact: Fact, generation: int, now: float
) -> Condition:
    value, reason, message = fact
    status = ConditionStatus.TRUE if value else ConditionStatus.FALSE
    before = next((one for one in old.conditions if one.type == kind), None)
    since = before.last_transition_time if before is not None and before.status is status else stamp(now)
    return Condition(
        type=kind.value,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
