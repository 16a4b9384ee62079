"""The status of a job whose manifest cannot run. (pure)"""

from __future__ import annotations

from dataclasses import replace

from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus
from sandgate.operator.plan.conditions import find
from sandgate.operator.plan.ends import stamp

REASON = "BadManifest"
MESSAGE_MAX = 2048
"""Characters; the API convention's bound is 32768, and this is for people."""


def refusal(text: str, generation: int, before: RolloutJobStatus | None, now: float) -> RolloutJobStatus:
    """Failed, not Ready, and why."""
    old = before or RolloutJobStatus()

    def fact(kind: JobCondition) -> Condition:
        status = ConditionStatus.TRUE if kind is JobCondition.FAILED else ConditionStatus.FALSE
        last = find(old, kind)
        since = last.last_transition_time if last is not None and last.status is status else stamp(now)
        told = kind in (JobCondition.FAILED, JobCondition.READY)
        return Condition(
            type=kind.value,
            status=status,
            reason=REASON,
            message=text[:MESSAGE_MAX] if told else "",
            observed_generation=generation,
            last_transition_time=since,
        )

    conditions = tuple(fact(kind) for kind in JobCondition)
    return replace(
        old,
        reason=REASON,
        observed_generation=generation,
        conditions=conditions,
        completion_time=old.completion_time or stamp(now),
    )


def mended(status: RolloutJobStatus | None) -> RolloutJobStatus | None:
    """The status that a job begins with, if a spec that could not run is all that it failed of."""
    if status is None or not any(
        one.type == JobCondition.FAILED and one.reason == REASON for one in status.conditions
    ):
        return status
    return replace(status, conditions=(), completion_time="")
