"""Reads the conditions of a job's status. (pure)"""

from __future__ import annotations

from sandgate.contract.conditions import JobReason
from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus


def find(status: RolloutJobStatus | None, kind: JobCondition) -> Condition | None:
    """That condition; None while nobody has told it."""
    return next((one for one in status.conditions if one.type == kind), None) if status is not None else None


def is_true(status: RolloutJobStatus | None, kind: JobCondition) -> bool:
    """Is that condition True?"""
    found = find(status, kind)
    return found is not None and found.status is ConditionStatus.TRUE


def held_by_trainer(status: RolloutJobStatus | None) -> str:
    """What of a trainer nothing runs without, for people; empty: not for this."""
    if status is None or status.reason not in (JobReason.TRAINER_SILENT, JobReason.AWAITS_VERSION):
        return ""
    return next((one.message for one in status.conditions if one.reason == status.reason), "")


def is_over(status: RolloutJobStatus | None) -> bool:
    """Complete or Failed: nothing of the job will run again."""
    return is_true(status, JobCondition.COMPLETE) or is_true(status, JobCondition.FAILED)
