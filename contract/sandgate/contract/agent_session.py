"""AgentSession (`sandgate.dev/v1alpha1`): one agent episode as an object. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sandgate.contract.kinds import JsonObject, LabelText
from sandgate.contract.names import (
    API_VERSION,
    JOB_NAME_KEPT_MAX,
    LABEL_MAX,
    LABEL_PATTERN,
    SAMPLES_MAX,
    UID_CHARS_MAX,
)
from sandgate.contract.rules import Bounds, Doc, Pattern, PrinterColumn, Size, name_rules
from sandgate.contract.status import AgentSessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSessionSpec:
    """Which attempt at which sample of which task this is."""

    job_name: Annotated[
        str,
        Size(1, JOB_NAME_KEPT_MAX),
        Pattern(LABEL_PATTERN, "a DNS label"),
        Doc("The RolloutJob, in the same namespace."),
    ]
    task_uid: Annotated[str, Size(1, UID_CHARS_MAX), Doc("The task.")]
    sample_index: Annotated[int, Bounds(0, SAMPLES_MAX - 1), Doc("Index in the group.")] = 0
    attempt: Annotated[int, Bounds(0, 9_999), Doc("From 0.")] = 0
    gateway: Annotated[
        LabelText,
        Doc("Name of the gateway pod that holds it. Of a remote one: may be left out; status.baseURL tells."),
    ] = ""
    remote: Annotated[
        bool,
        Doc(
            "The agent runs elsewhere and calls /complete; no sandbox is made. Anybody may apply such a session, under "
            "any name, for a task that the job does not run itself. It is open once Scheduled is True; the Secret "
            "<name>.keys then has the agent's environment (OPENAI_BASE_URL, OPENAI_API_KEY, SANDGATE_COMPLETE_URL and "
            "the rest). /complete ends it, with {reward_info: {reward: 1.0}} where reward.source is agent; so do "
            "limits.sessionSeconds and its deletion. Not for a job with reward.source exitCode: nobody sees its exit "
            "code. A name is used once."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSession:
    """One agent episode: one attempt at one sample of a RolloutJob."""

    KIND: ClassVar = "AgentSession"
    PLURAL: ClassVar = "agentsessions"
    SHORT: ClassVar = ("ags",)
    COLUMNS: ClassVar = (
        PrinterColumn("Job", ".spec.jobName"),
        PrinterColumn("Task", ".spec.taskUid"),
        PrinterColumn("Sample", ".spec.sampleIndex", "integer"),
        PrinterColumn("Attempt", ".spec.attempt", "integer"),
        PrinterColumn("Running", ".status.conditions[?(@.type=='Running')].status"),
        PrinterColumn("Committed", ".status.conditions[?(@.type=='TrajectoryCommitted')].status"),
        PrinterColumn("Reward", ".status.reward", "number"),
        PrinterColumn("Failure", ".status.failureReason"),
        PrinterColumn("Turns", ".status.turns", "integer", priority=1),
        PrinterColumn("Node", ".status.node", priority=1),
        PrinterColumn("Age", ".metadata.creationTimestamp", "date"),
    )

    SELECTABLE: ClassVar = (".spec.jobName", ".spec.taskUid", ".spec.gateway", ".spec.remote")
    RULES: ClassVar = name_rules(LABEL_MAX)

    api_version: Annotated[str, Pattern(f"^{API_VERSION}$", API_VERSION), Doc("Version of this kind.")]
    kind: Annotated[str, Pattern("^AgentSession$", "AgentSession"), Doc("AgentSession.")]
    metadata: Annotated[JsonObject, Doc("Object metadata.")]
    spec: AgentSessionSpec
    status: AgentSessionStatus | None = None
