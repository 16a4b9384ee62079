"""Reads the conditions of a job's status. (pure)"""

from __future__ import annotations

from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus


def find(status: RolloutJobStatus | None, kind: JobCondition) -> Condition | None:
    """That condition; None while nobody has told it."""
    return next((one for one in status.conditions if one.type == kind), None) if status is not None else None


def is_true(status: RolloutJobStatus | None, kind: JobCondition) -> bool:
    """Is that condition True?"""
    found = find(status, kind)
    return found is not None and found.status is ConditionStatus.TRUE


def is_over(status: RolloutJobStatus | None) -> bool:
    """Complete or Failed: nothing of the job will run again."""
    return is_true(status, JobCondition.COMPLETE) or is_true(status, JobCondition.FAILED)
