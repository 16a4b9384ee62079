"""Retries: which samples get another attempt after a failure of the infrastructure, and how long it waits. (pure)"""

from __future__ import annotations

from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import SampleObserved, SampleState

RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""Pause before the second attempt, doubled each time up to the second: what broke needs a moment to come back."""

FREE = frozenset({FailureReason.ABORTED, FailureReason.DRIVER_LOST})
"""Not the infrastructure's failures but our own doing (suspended, the driver restarted): tried again without limit."""

REFUSALS = 8
"""Attempts of a sample that nodes may refuse before a refusal counts, the agent's pod or the verifier's. Nothing of
that pod ran, and the scheduler may send each to the same node (kubernetes#106419). Their pauses double from RETRY_S as
well: a device plugin or a kubelet that starts again has 3 min, and 6 with the default of `group.retry.infra`."""


def counts(reason: FailureReason | None, failure: FailureClass | None, refused: int) -> bool:
    """An attempt that ended so counts against `group.retry.infra`. `refused`: attempts of its sample that a node did
    not take, with this one."""
    if failure is not FailureClass.INFRA or reason in FREE:
        return False
    return reason is not FailureReason.NODE_REFUSED or refused > REFUSALS


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
    before = sample.refused if sample.reason is FailureReason.NODE_REFUSED else sample.spent
    return sample.ended_at + min(RETRY_S * (1 << max(0, before - 1)), RETRY_S_MAX)
