"""Retries: which samples get another attempt after a failure of the infrastructure, and how long it waits. (pure)"""

from __future__ import annotations

from sandgate.contract.errors import FailureClass, FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import SampleObserved, SampleState

RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""Pause before the second attempt, doubled each time up to the second: what broke needs a moment to come back."""

FREE = frozenset({FailureReason.ABORTED, FailureReason.DRIVER_LOST})
"""Not the infrastructure's failures but our own doing (suspended, the driver restarted): tried again without limit."""


def retryable(sample: SampleObserved, spec: RolloutJobSpec) -> bool:
    """It failed on infrastructure and may be tried again."""
    if sample.state is not SampleState.ENDED or sample.failure is not FailureClass.INFRA:
        return False
    return sample.reason is not FailureReason.STRAGGLER and (  # as older records class it
        sample.reason in FREE or sample.spent <= spec.group.retry.infra
    )


def retry_at(sample: SampleObserved) -> float:
    """When the next attempt may begin."""
    if sample.reason in FREE:
        return sample.ended_at
    return sample.ended_at + min(RETRY_S * (1 << max(0, sample.spent - 1)), RETRY_S_MAX)
