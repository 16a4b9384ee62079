"""Says in a job's status that sessions cannot be opened, in the API server's words. (pure)"""

from __future__ import annotations

from dataclasses import replace

from sandgate.contract.conditions import JobReason
from sandgate.contract.status import JobCondition, RolloutJobStatus
from sandgate.operator.plan.conditions import find

USUAL = frozenset((JobReason.RUNNING, JobReason.WAITING))
"""Reasons of condition Progressing that, without a message, say nothing is in the way."""


def with_words(status: RolloutJobStatus, why: str) -> RolloutJobStatus:
    """The status, with `why` where it says of nothing else that it is in the way."""
    found = find(status, JobCondition.PROGRESSING)
    if not why or found is None or found.reason not in USUAL or found.message:
        return status
    told = replace(found, reason=JobReason.PODS_WAIT.value, message=why)
    return replace(
        status,
        conditions=tuple(told if one is found else one for one in status.conditions),
        reason=told.reason if status.reason == found.reason else status.reason,
    )
