"""Status of RolloutJob and AgentSession: conditions, not phases. (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeAlias

from sandgate.contract.conditions import (
    ConditionStatus,
    JobCondition,
    JobReason,
    SessionCondition,
    SessionReason,
)
from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.kinds import Text
from sandgate.contract.rules import Bounds, Cel, Doc, Name, OpenEnum, Pattern, Size, Unique
from sandgate.contract.session import DETAIL_CHARS_MAX

__all__ = [
    "AgentEnd",
    "AgentSessionStatus",
    "Condition",
    "ConditionStatus",
    "JobCondition",
    "JobReason",
    "RolloutJobStatus",
    "SessionCondition",
    "SessionReason",
]

Count: TypeAlias = Annotated[int, Bounds(0, 2**53)]
Reason: TypeAlias = Annotated[
    str, Size(0, 1024), Pattern(r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$", "a CamelCase word")
]
Time: TypeAlias = Annotated[str, Size(0, 64)]
"""RFC 3339; empty: not yet."""
ObjectName: TypeAlias = Annotated[str, Size(0, 253)]
CONDITIONS_MAX = 16
"""Of an object; there are five types."""
MESSAGE_CHARS_MAX = 32_768
"""Of a termination message of 4096 bytes, each of which JSON may spell with six."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One fact about an object; `reason` is API, `message` is for people."""

    type: Annotated[str, Size(1, 316), Doc("Which fact.")]
    status: Annotated[ConditionStatus, Doc("True, False or Unknown.")]
    reason: Annotated[
        Reason, Doc("Why, in one CamelCase word. It is API: docs/reference lists them all.")
    ] = ""
    message: Annotated[str, Size(0, 32_768), Doc("Why, for people; may change.")] = ""
    observed_generation: Annotated[Count, Doc("Of the spec that this was decided on.")] = 0
    last_transition_time: Annotated[Time, Doc("RFC 3339: since when the status is what it is.")] = ""


def _final(kind: str, message: str, *, unless: str = "") -> Cel:
    """A condition that was once True stays. `unless`: the reason of one that may pass."""
    some = f"c.type == '{kind}' && c.status == 'True'"
    other = f" && !(has(c.reason) && c.reason == '{unless}')" if unless else ""
    was = f"has(oldSelf.conditions) && oldSelf.conditions.exists(c, {some}{other})"
    now = f"has(self.conditions) && self.conditions.exists(c, {some})"
    return Cel(f"!({was}) || ({now})", message, "conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJobStatus:
    """What was seen of a job."""

    RULES: ClassVar = (
        _final("Complete", "a complete job stays complete"),
        # What nothing was made of may be mended, or be understood by a newer operator.
        _final("Failed", "a failed job stays failed", unless=JobReason.BAD_MANIFEST),
    )

    observed_generation: Annotated[Count, Doc("Of the spec that this status is about.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Size(0, CONDITIONS_MAX),
        Unique("type"),
        OpenEnum(JobCondition),
        OpenEnum(JobReason, explained=False),
        Doc("What holds of the job, by type:"),
    ] = ()
    reason: Annotated[
        Reason, Doc("Where it stands, in a word: the reason of the condition that matters most.")
    ] = ""
    sessions: Annotated[Count, Doc("Samples that the job asks for: tasks x groupSize.")] = 0
    running: Annotated[Count, Doc("Attempts whose agent runs now.")] = 0
    ended: Annotated[Count, Doc("Samples that ended, well or not.")] = 0
    failed: Annotated[Count, Doc("Of them, those with a failure class.")] = 0
    retries: Annotated[Count, Doc("Attempts beyond the first.")] = 0
    committed: Annotated[Count, Doc("Samples whose trajectories are with the trainer for good.")] = 0
    gateways: Annotated[Count, Doc("Gateways that take sessions.")] = 0
    engines: Annotated[Count, Doc("Engines that answer.")] = 0
    policy_version: Annotated[int, Bounds(-1, 2**53), Doc("Of the weights, as the trainer last told.")] = 0
    published_versions: Annotated[
        Count | None,
        Doc("Policy versions that the trainer published since the job began, as spec.staleness counts them."),
    ] = None
    acknowledged_at_version: Annotated[
        Count | None,
        Doc(
            "Groups that the trainer had acknowledged when it last published a policy version, as spec.staleness "
            "counts them; those that it acknowledged since are not in it."
        ),
    ] = None
    selector: Annotated[Text, Doc("Label selector of the agents' pods, for the scale subresource.")] = ""
    start_time: Annotated[
        Time, Doc("RFC 3339: when it began, or went on after it was suspended; empty while it is suspended.")
    ] = ""
    completion_time: Annotated[Time, Doc("RFC 3339: when it became Complete or Failed.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """How an agent ended whose session is not sealed yet: its pod may go before that."""

    started_at: Annotated[Time, Doc("RFC 3339: when it started; empty if it never did.")] = ""
    ended_at: Annotated[Time, Doc("RFC 3339.")] = ""
    exit_code: Annotated[
        int | None, Bounds(-(2**31), 2**31 - 1), Doc("Absent if it was killed, or never ran.")
    ] = None
    signal: Annotated[int | None, Bounds(1, 64), Doc("What it was killed by.")] = None
    reason: Annotated[Reason, Doc("What ended it, if that was not itself: OOMKilled and the like.")] = ""
    detail: Annotated[
        str, Size(0, DETAIL_CHARS_MAX), Doc("What that means here; without a reason, its last line.")
    ] = ""
    message: Annotated[
        str, Size(0, MESSAGE_CHARS_MAX), Doc("Its termination message, or other JSON of the same value.")
    ] = ""
    traceback: Annotated[bool, Doc("The last that it wrote is a Python traceback.")] = False
    stopped: Annotated[bool, Doc("It had been told to end.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSessionStatus:
    """What was seen of a session."""

    RULES: ClassVar = (_final("TrajectoryCommitted", "what was committed stays committed"),)

    base_url: Annotated[str, Size(0, 2048), Name("baseURL"), Doc("What the agent reaches the model by.")] = ""
    pod_name: Annotated[ObjectName, Doc("Its sandbox.")] = ""
    node: Annotated[ObjectName, Doc("Where the sandbox runs.")] = ""
    agent_end: Annotated[
        AgentEnd | None,
        Doc(
            "How its agent ended, while side-cars of its pod are ended and until it is sealed. Of a pod of one "
            "container the pod says it."
        ),
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        Size(0, CONDITIONS_MAX),
        Unique("type"),
        OpenEnum(SessionCondition),
        OpenEnum(SessionReason, explained=False),
        Doc("What holds of the session, by type; one that is absent is not reached yet:"),
    ] = field(default=())
    turns: Annotated[Count, Doc("Sampled turns.")] = 0
    tokens: Annotated[Count, Doc("Unique tokens of its tree.")] = 0
    reward: Annotated[float | None, Doc("Final reward, once there is one.")] = None
    failure_class: Annotated[
        str | None,
        Size(1, 64),
        Pattern("^(policy|agent|infra)$", "policy, agent or infra"),
        OpenEnum(FailureClass),
        Doc("Who is to blame; absent if it ended well."),
    ] = None
    failure_reason: Annotated[
        Reason | None,
        OpenEnum(FailureReason, explained=False),
        Doc("Why; absent if it ended well. See docs/reference/reasons.md."),
    ] = None
