"""The status of a job whose manifest cannot run. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sandgate.contract.conditions import JobReason
from sandgate.contract.errors import SandgateError
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus
from sandgate.contract.transitions import REFUSED
from sandgate.operator.cluster.object_store import text_of
from sandgate.operator.plan.conditions import find, is_over
from sandgate.operator.plan.ends import stamp

HELD_BACK = JobReason.SPEC_REFUSED.value
"""Reason of a job that something was made of, and whose newest spec cannot run."""
MESSAGE_MAX = 2048
"""Characters; the API convention's bound is 32768, and this is for people."""


def has_begun(status: RolloutJobStatus | None) -> bool:
    """Was anything made of this job, or is it about to be? The selector is written before, and stays."""
    return status is not None and status.selector != ""


def verdict(text: str, generation: int, before: RolloutJobStatus | None, now: float) -> RolloutJobStatus:
    """What is to be told of a job that has no driver because of its spec. Only of one that nothing was made of is
    it BadManifest: the definition lets go of every field of those."""
    if (begun := mended(before)) is not None and has_begun(
        begun
    ):  # an older operator said BadManifest of any
        return held_back(text, begun, now)
    return refusal(text, generation, before, now)


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
            reason=REFUSED,
            message=text[:MESSAGE_MAX] if told else "",
            observed_generation=generation,
            last_transition_time=since,
        )

    conditions = tuple(fact(kind) for kind in JobCondition)
    return replace(
        old,
        reason=REFUSED,
        observed_generation=generation,
        conditions=conditions,
        completion_time=old.completion_time or stamp(now),
    )


def held_back(text: str, before: RolloutJobStatus, now: float) -> RolloutJobStatus:
    """Not Progressing, and why; all else is as it was. What ran under the spec before is not known to this operator: it
    does nothing until the spec is corrected."""
    last = find(before, JobCondition.PROGRESSING)
    same = last is not None and last.status is ConditionStatus.FALSE
    said = Condition(
        type=JobCondition.PROGRESSING.value,
        status=ConditionStatus.FALSE,
        reason=HELD_BACK,
        message=text[:MESSAGE_MAX],
        observed_generation=before.observed_generation,
        last_transition_time=last.last_transition_time if last is not None and same else stamp(now),
    )
    others = tuple(one for one in before.conditions if one.type != said.type)
    word = before.reason if is_over(before) else HELD_BACK
    return replace(before, reason=word, conditions=(*others, said))


def was_refused(status: RolloutJobStatus | None) -> bool:
    """Does it say so?"""
    return status is not None and (
        status.reason == REFUSED
        or any(one.type == JobCondition.FAILED and one.reason == REFUSED for one in status.conditions)
    )


def began(status: RolloutJobStatus | None) -> bool:
    """Was anything made of it?"""
    return status is not None and has_begun(mended(status) or status)


def mended(status: RolloutJobStatus | None) -> RolloutJobStatus | None:
    """The status that a job begins with, if a spec that could not run is all that it failed of."""
    if status is None or not was_refused(status):
        return status
    return replace(status, reason="", conditions=(), completion_time="")


def status_in(body: Mapping[str, Any]) -> RolloutJobStatus | None:
    """As an operator before us wrote it. Of one that cannot be read, only whether the job began; None if it did not."""
    try:
        return decode(RolloutJobStatus, body.get("status") or {}, ignore_unknown=True)
    except SandgateError:
        selector = text_of(body, "status", "selector")
        return RolloutJobStatus(selector=selector) if selector else None
