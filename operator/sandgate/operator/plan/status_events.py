"""Kubernetes Events: what people are told in them of a job's new status. (pure)"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sandgate.contract.conditions import JobReason
from sandgate.contract.job import RolloutJob, RolloutJobSpec
from sandgate.contract.names import API_VERSION
from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus
from sandgate.operator.plan.actions import GroupObserved
from sandgate.operator.plan.conditions import is_over
from sandgate.operator.plan.settling import good

MESSAGE_MAX = 1024
"""Characters that the API server takes."""
AGENT_CHANGED, TASKS_REPEATED = "AgentChanged", "TasksRepeated"
"""Reasons of an Event alone: they are no state of a job."""
UIDS_SAID = 8
"""Uids that a text names."""

WARNINGS = frozenset(
    (
        JobReason.NO_GATEWAY,
        JobReason.NO_ENGINE,
        JobReason.NAME_TAKEN,
        JobReason.NOT_PROVIDED,
        JobReason.TRAINER_SILENT,
        JobReason.KUEUE_MISSING,
        JobReason.SPEC_REFUSED,
        JobReason.NO_TASKS,
        JobReason.PODS_WAIT,
        JobReason.CLEANING_UP,
        JobReason.GROUPS_LOST,
    )
)
"""Reasons for which nothing goes on, or not as was asked, until somebody does something; and what was lost."""

Kind = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class News:
    """One Event."""

    kind: Kind
    condition: Condition
    alike: bool = False
    """All news of this reason are the same: neither words nor time tell them apart."""

    def event(self, namespace: str, name: str, uid: str, at: str) -> dict[str, Any]:
        """The object, for the job of this uid. `at`: RFC 3339. The same news have the same name, so that they are told
        once, whichever operator tells them."""
        one = self.condition
        own = ("", "") if self.alike else (one.message, one.last_transition_time)
        told = (uid, one.type, one.status.value, one.reason, *own)
        digest = hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{digest}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": RolloutJob.KIND,
                "namespace": namespace,
                "name": name,
                "uid": uid,
            },
            "type": self.kind,
            "reason": one.reason or one.type,
            "message": (one.message or f"{one.type} is {one.status.value}")[:MESSAGE_MAX],
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "source": {"component": "sandgate-operator"},
            "reportingComponent": "sandgate.dev/operator",
        }


def agent_changed(
    before: RolloutJobSpec, now: RolloutJobSpec, groups: Iterable[GroupObserved], at: str
) -> News | None:
    """That groups which are under way go on with another agent than some of their samples had: these stand beside each
    other, and it is for people to say whether that matters. `at`: RFC 3339. None: there are none."""
    if before.agent.template == now.agent.template:
        return None
    ended = [(sum(map(good, group.samples)), len(group.samples)) for group in groups]
    mixed = [some for some, size in ended if 0 < some < size]
    if not mixed:
        return None
    text = (
        f"agent.template is another now: groups that had begun go on with it ({len(mixed)}; {sum(mixed)} of their"
        " samples ended with the one before), and a trainer compares the samples of a group with each other"
    )
    return _warning(AGENT_CHANGED, text, at)


def repeated(uids: Sequence[str]) -> str:
    """That these tasks were pushed again when they had finished: whoever waits for new groups waits for ever."""
    named = ", ".join(uids[:UIDS_SAID]) + (", ..." if len(uids) > UIDS_SAID else "")
    return (
        f"{len(uids)} pushed tasks had finished before, and do not run anew ({named}): each group was given already, or"
        " is offered again if it was not acknowledged. A next epoch needs uids of its own"
    )


def tasks_repeated(uids: Sequence[str], at: str) -> News:
    """The same as an Event: one, whenever and whichever they are. `at`: RFC 3339."""
    return replace(_warning(TASKS_REPEATED, repeated(uids), at), alike=True)


def _warning(reason: str, text: str, at: str) -> News:
    told = Condition(
        type=reason, status=ConditionStatus.TRUE, reason=reason, message=text, last_transition_time=at
    )
    return News("Warning", told)


def news(before: RolloutJobStatus | None, after: RolloutJobStatus) -> Iterator[News]:
    """What `after` says that `before` did not. Of a job that is over, only how it ended."""
    known = {one.type: one for one in before.conditions} if before is not None else {}
    over = is_over(after)
    for one in after.conditions:
        if over and one.type not in (JobCondition.COMPLETE, JobCondition.FAILED):
            continue
        kind = _kind(one)
        if kind is not None and _differs(known.get(one.type), one, kind):
            yield News(kind, one)


def _kind(one: Condition) -> Kind | None:
    """None: it goes without saying."""
    true = one.status is ConditionStatus.TRUE
    if one.reason in WARNINGS or (true and one.type == JobCondition.FAILED):
        return "Warning"
    return "Normal" if true else None


def _differs(before: Condition | None, now: Condition, kind: Kind) -> bool:
    """A warning is told again in other words: the pod's reason comes after the fact. What is normal counts, and its
    words change all the time."""
    if before is None or before.status is not now.status:
        return True
    return kind == "Warning" and (before.reason, before.message) != (now.reason, now.message)
