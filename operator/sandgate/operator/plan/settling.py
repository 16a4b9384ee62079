"""Decides when a sample or a group is settled: quorum, stragglers, how a sample ended. (pure)"""

from __future__ import annotations

from dataclasses import replace

from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.operator.plan.actions import (
    GroupObserved,
    Running,
    SampleObserved,
    SampleState,
    SampleTally,
    SessionObserved,
)
from sandgate.operator.plan.fruitless_samples import Cause, FruitlessSamples
from sandgate.operator.plan.retries import counts, retryable

JOURNAL_LOST = "its gateway lost the journal that it was in"
"""Detail of the failure of a session that had ended."""


def good(sample: SampleObserved) -> bool:
    """It ended and counts for its group."""
    return sample.state is SampleState.ENDED and sample.failure is not FailureClass.INFRA


def lives(group: GroupObserved) -> bool:
    """An attempt at one of its samples runs."""
    return any(sample.state is SampleState.LIVE for sample in group.samples)


def cut_at(group: GroupObserved, spec: RolloutJobSpec) -> float | None:
    """When stragglers are cut: `stragglerSeconds` after the quorum was there; None while it is not, or while a sample
    has not had its first attempt."""
    quorum = spec.group.quorum
    if quorum is None or quorum >= len(group.samples):
        return None
    ends = sorted(sample.ended_at for sample in group.samples if good(sample))
    waiting = any(sample.state is SampleState.WAITING for sample in group.samples)
    return None if waiting or len(ends) < quorum else ends[quorum - 1] + spec.group.straggler_seconds


def decided(group: GroupObserved, spec: RolloutJobSpec, now: float) -> bool:
    """No attempt runs, and none will."""
    if lives(group):
        return False
    cut = cut_at(group, spec)
    return (cut is not None and now >= cut) or not any(
        sample.state is SampleState.WAITING or retryable(sample, spec) for sample in group.samples
    )


def settled(group: GroupObserved) -> bool:
    """Nothing is left to be done for it: every sample counts, or the gateway knows that no more will."""
    if lives(group):
        return False
    return group.closed or all(good(sample) for sample in group.samples)


def fruitless(sample: SampleObserved) -> bool:
    """It ended, and nobody learns of it: the agent or the infrastructure failed. What the policy did is a lesson."""
    if sample.state is SampleState.WAITING:
        return True
    return sample.failure in (FailureClass.AGENT, FailureClass.INFRA)


def count(group: GroupObserved) -> SampleTally:
    """Of a settled group, every sample has ended, also one that was given up before it began."""
    return SampleTally(
        ended=len(group.samples),
        failed=sum(1 for one in group.samples if one.failure is not None or one.state is SampleState.WAITING),
        retries=retries(group),
        fruitless=FruitlessSamples.of(cause(one) for one in group.samples if fruitless(one)),
        unscored=sum(one.unscored for one in group.samples),
        rowless=sum(one.rowless for one in group.samples),
        lost=sum(
            one.reason is FailureReason.GATEWAY_LOST and one.detail == JOURNAL_LOST for one in group.samples
        ),
    )


def cause(sample: SampleObserved) -> Cause:
    """Of one that teaches nothing."""
    return ("NotBegun" if sample.reason is None else sample.reason.value, sample.detail)


def retries(group: GroupObserved) -> int:
    """Attempts beyond the first."""
    return sum(max(0, sample.attempt) for sample in group.samples)


def ended_as(said: SessionSummary, before: SampleObserved) -> SampleObserved:
    """The sample, once its newest attempt ended as the gateway tells. One that somebody aborted has no reason there."""
    reason = FailureReason.ABORTED if said.state is SessionState.ABORTED else None
    if said.failure_reason is not None:
        known = said.failure_reason in FailureReason.__members__.values()
        reason = FailureReason(said.failure_reason) if known else FailureReason.ABORTED
    ended = ended_with(reason, said.attempt, said.changed_at, before, told=said.failure_class)
    # Of a session that is retired nobody knows its reward any more.
    unscored = said.reward is None and not said.retired and not fruitless(ended)
    rowless = not said.turns and not said.retired and not fruitless(ended)
    return replace(ended, detail=said.failure_detail, unscored=unscored, rowless=rowless)


def ended_with(
    reason: FailureReason | None, attempt: int, at: float, before: SampleObserved, *, told: str | None = None
) -> SampleObserved:
    """The sample, once its newest attempt ended for this reason, or well. `told`: the class that its gateway counts it
    by, whatever it would be today."""
    failure = None if reason is None else FAILURE_CLASS[reason]
    if reason is not None and told is not None and told in FailureClass.__members__.values():
        failure = FailureClass(told)
    refused = before.refused + (reason is FailureReason.NODE_REFUSED)
    return SampleObserved(
        state=SampleState.ENDED,
        attempt=attempt,
        ended_at=at,
        reason=reason,
        failure=failure,
        spent=before.spent + counts(reason, failure, refused),
        refused=refused,
    )


def begun(seen: SessionObserved) -> bool:
    """Its agent started, or ended before."""
    return seen.sandbox is not None and (seen.sandbox.started_at is not None or seen.sandbox.exit is not None)


def never_started(agent: Running | None) -> bool:
    """It ended without: no image, a volume that is not there, a stop before its time."""
    return agent is not None and agent.exit is not None and agent.started_at is None
