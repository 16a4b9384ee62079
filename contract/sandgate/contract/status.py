"""Status of RolloutJob and AgentSession: conditions, not phases. (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from sandgate.contract.rules import Doc, Name


class ConditionStatus(StrEnum):
    """As in Kubernetes."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One fact about an object; `reason` is API, `message` is for people."""

    type: Annotated[str, Doc("Which fact.")]
    status: Annotated[ConditionStatus, Doc("True, False or Unknown.")]
    reason: Annotated[str, Doc("Why, in one CamelCase word.")] = ""
    message: Annotated[str, Doc("Why, for people.")] = ""
    observed_generation: Annotated[int, Doc("Of the spec that this was decided on.")] = 0
    last_transition_time: Annotated[str, Doc("RFC 3339: since when the status is what it is.")] = ""


class JobCondition(StrEnum):
    """Condition types of a RolloutJob."""

    READY = "Ready"
    """Gateways and engine answer; sessions can run."""
    SUSPENDED = "Suspended"
    """Nothing runs, because spec.suspend is true or the trainer is gone."""
    PROGRESSING = "Progressing"
    """Sessions run or are about to."""
    COMPLETE = "Complete"
    """Every sample ended; nothing will run again."""
    FAILED = "Failed"
    """The job gave up (deadline, engine); nothing will run again."""


class SessionCondition(StrEnum):
    """Condition types of an AgentSession."""

    SCHEDULED = "Scheduled"
    """It is open at its gateway and its sandbox was asked for."""
    RUNNING = "Running"
    """Its agent has started and not ended."""
    FINISHED = "Finished"
    """Its agent ended, well or not; see failureClass."""
    FINALIZED = "Finalized"
    """Its tree is sealed at the gateway; its reward is final."""
    TRAJECTORY_COMMITTED = "TrajectoryCommitted"
    """Every trajectory of it was acknowledged by the trainer, or is durable in the Parquet output. Only then may what
    is left of it be collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJobStatus:
    """What was seen of a job."""

    observed_generation: Annotated[int, Doc("Of the spec that this status is about.")] = 0
    conditions: Annotated[tuple[Condition, ...], Doc("Ready, Suspended, Progressing, Complete, Failed.")] = ()
    sessions: Annotated[int, Doc("Samples that the job asks for: tasks x groupSize.")] = 0
    running: Annotated[int, Doc("Attempts that run now.")] = 0
    ended: Annotated[int, Doc("Samples that ended, well or not.")] = 0
    failed: Annotated[int, Doc("Of them, those with a failure class.")] = 0
    retries: Annotated[int, Doc("Attempts beyond the first.")] = 0
    committed: Annotated[int, Doc("Samples whose trajectories are with the trainer for good.")] = 0
    gateways: Annotated[int, Doc("Gateways that take sessions.")] = 0
    engines: Annotated[int, Doc("Engines that answer.")] = 0
    policy_version: Annotated[int, Doc("Of the weights, as the trainer last told.")] = 0
    selector: Annotated[str, Doc("Label selector of the agents' pods, for the scale subresource.")] = ""
    start_time: Annotated[str, Doc("RFC 3339: when it was first not suspended.")] = ""
    completion_time: Annotated[str, Doc("RFC 3339: when it became Complete or Failed.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSessionStatus:
    """What was seen of a session."""

    base_url: Annotated[str, Name("baseURL"), Doc("What the agent reaches the model by.")] = ""
    pod_name: Annotated[str, Doc("Its sandbox.")] = ""
    node: Annotated[str, Doc("Where the sandbox runs.")] = ""
    conditions: Annotated[
        tuple[Condition, ...], Doc("Scheduled, Running, Finished, Finalized, TrajectoryCommitted.")
    ] = field(default=())
    turns: Annotated[int, Doc("Sampled turns.")] = 0
    tokens: Annotated[int, Doc("Unique tokens of its tree.")] = 0
    reward: Annotated[float | None, Doc("Final reward, once there is one.")] = None
    failure_class: Annotated[str | None, Doc("policy, agent or infra; absent if it ended well.")] = None
    failure_reason: Annotated[str | None, Doc("See docs/reference/reasons.md.")] = None
