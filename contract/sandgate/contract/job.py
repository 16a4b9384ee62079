"""RolloutJob and AgentSession (`sandgate.dev/v1alpha1`) as frozen dataclasses. (pure)

Fields are snake_case here and camelCase in manifests. Types, bounds, documentation, CEL rules and printer columns are
metadata on the fields (contract.rules); `contract.schema` decodes by them, and contract.crd makes the CRDs of them.
An absent block is None; everything else has the default that the API server fills in. What a job serves with stands in
contract.serving, what it does in contract.work; this is the door to all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from sandgate.contract.agent_session import AgentSession, AgentSessionSpec
from sandgate.contract.choices import (
    BackendKind,
    Beside,
    Completion,
    EngineKind,
    HistoryPolicy,
    Isolation,
    RewardSource,
    SpecialTokensInText,
    TaskDelivery,
)
from sandgate.contract.kinds import LabelMap, NonNegative, Positive, Seconds, Text
from sandgate.contract.names import (
    API_VERSION,
    GROUP,
    JOB_NAME_KEPT_MAX,
    JOB_NAME_MAX,
    LABEL_PATTERN,
    SAMPLES_MAX,
    VERSION,
)
from sandgate.contract.rules import Bounds, Cel, Doc, Mutable, OneOf, Pattern, PrinterColumn, Size, name_rules
from sandgate.contract.serving import (
    EngineSelector,
    EngineSpec,
    GatewaySpec,
    JournalSpec,
    ManagedEngineSpec,
    ModelSpec,
    PostgresJournal,
    SecretRef,
    SqliteJournal,
)
from sandgate.contract.status import RolloutJobStatus
from sandgate.contract.work import (
    AgentSpec,
    GroupSpec,
    LimitsSpec,
    RetrySpec,
    RewardSpec,
    SamplingSpec,
    Task,
    TaskConfigMap,
    TaskQueueSpec,
    TasksSpec,
    VerifierSpec,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "VERSION",
    "AgentSession",
    "AgentSessionSpec",
    "AgentSpec",
    "BackendKind",
    "Beside",
    "Completion",
    "EngineKind",
    "EngineSelector",
    "EngineSpec",
    "GatewaySpec",
    "GroupSpec",
    "HistoryPolicy",
    "Isolation",
    "JournalSpec",
    "LeaseOutput",
    "LimitsSpec",
    "ManagedEngineSpec",
    "Metadata",
    "ModelSpec",
    "OutputSpec",
    "ParquetOutput",
    "PostgresJournal",
    "RetrySpec",
    "RewardSource",
    "RewardSpec",
    "RolloutJob",
    "RolloutJobSpec",
    "SamplingSpec",
    "SecretRef",
    "SpecialTokensInText",
    "SqliteJournal",
    "Staleness",
    "Task",
    "TaskConfigMap",
    "TaskDelivery",
    "TaskQueueSpec",
    "TasksSpec",
    "TrainerSpec",
    "VerifierSpec",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The part of Kubernetes object metadata that Sandgate reads; the rest is ignored."""

    name: Annotated[
        str,
        Size(1, JOB_NAME_KEPT_MAX),
        Pattern(LABEL_PATTERN, "a DNS label (lower case letters, digits and dashes)"),
        Doc("Name of the object; part of the names of everything made for it."),
    ]
    namespace: Annotated[str, Doc("Namespace; empty where there is no cluster.")] = ""
    uid: Annotated[str, Doc("Set by the API server.")] = ""
    generation: Annotated[NonNegative, Doc("Set by the API server; changes with spec.")] = 0
    labels: Annotated[LabelMap, Doc("Labels.")] = field(default_factory=dict)
    annotations: Annotated[LabelMap, Doc("Annotations.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How far rollouts may lag behind the trainer's weights. `(maxVersionsBehind + 1) * batchSize` groups begin, and
    `batchSize` more for each version that the trainer publishes. Versions are counted from the first that the job was
    told, whatever its number. One that goes down counts nothing. None admits more groups than the trainer has taken.
    """

    max_versions_behind: Annotated[NonNegative, Doc("Policy versions.")] = 1
    batch_size: Annotated[
        Positive,
        Doc(
            "Groups that the trainer consumes per version: of one that publishes after every second step, those of"
            " two. With fewer the job may wait for a version, and the trainer for groups."
        ),
    ] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOutput:
    """A trainer pulls and acknowledges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOutput:
    """No trainer: each whole group becomes a file, and is then committed."""

    url: Annotated[
        Text,
        Size(1),
        Doc(
            "Folder: s3://bucket/folder, gs://..., what fsspec knows, or an absolute path in the gateways' pods. Of no"
            " effect locally: there --out is the folder."
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """Where trajectories go; exactly one of lease and parquet."""

    RULES: ClassVar = (OneOf(("lease", "parquet")),)

    lease: Annotated[LeaseOutput | None, Doc("A trainer pulls and acknowledges.")] = None
    parquet: Annotated[ParquetOutput | None, Doc("Files, without a trainer.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """The trainer's sign of life."""

    heartbeat_seconds: Annotated[Seconds, Doc("Nothing heard for that long: the job is suspended.")] = 300
    collect_seconds: Annotated[
        Seconds, Doc("Nothing heard for that long: the job fails, and is collected as a finished one.")
    ] = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJobSpec:
    """Tasks x samples to be rolled out with one agent, one model and one policy."""

    RULES: ClassVar = (
        Cel(
            "!has(self.group) || !has(self.group.quorum) || self.group.quorum <= self.groupSize",
            "quorum is more than groupSize",
            "group.quorum",
            lambda spec: spec.group.quorum is None or spec.group.quorum <= spec.group_size,
        ),
        Cel(
            "!has(self.reward) || !has(self.reward.source) || self.reward.source != 'exitCode'"
            " || !has(self.agent.completion) || self.agent.completion != 'Complete'",
            "Complete stops the agent at its /complete, and reward.source exitCode would never see an exit code: use"
            " Exit, or another source",
            "agent.completion",
            lambda spec: (
                spec.reward.source is not RewardSource.EXIT_CODE
                or spec.agent.completion is not Completion.COMPLETE
            ),
        ),
        Cel(
            "self.engine.kind != 'sglang' || !has(self.sampling) || !has(self.sampling.repetitionPenalty)"
            " || self.sampling.repetitionPenalty <= 2.0",
            "SGLang takes a repetitionPenalty of 2 at most",
            "sampling.repetitionPenalty",
            lambda spec: (
                spec.engine.kind is not EngineKind.SGLANG
                or spec.sampling.repetition_penalty is None
                or spec.sampling.repetition_penalty <= 2
            ),
        ),
    )

    model: Annotated[ModelSpec, Doc("The policy that is trained.")]
    engine: Annotated[EngineSpec, Doc("The inference servers.")]
    tasks: Annotated[TasksSpec, Doc("What is rolled out.")]
    agent: Annotated[AgentSpec, Doc("The program that talks to the model.")]
    gateway: Annotated[GatewaySpec, Doc("The trajectory gateways.")] = field(default_factory=GatewaySpec)
    group_size: Annotated[int, Bounds(1, SAMPLES_MAX), Doc("Sessions per task (n of GRPO).")] = 1
    parallelism: Annotated[int, Bounds(1, 1_000_000), Mutable(), Doc("Sessions running at once.")] = 8
    start_burst: Annotated[
        int | None, Bounds(1, 1_000_000), Mutable(), Doc("Sessions starting at once; default parallelism.")
    ] = None
    sampling: Annotated[SamplingSpec, Doc("How turns are sampled.")] = field(default_factory=SamplingSpec)
    limits: Annotated[LimitsSpec, Doc("On one session.")] = field(default_factory=LimitsSpec)
    reward: Annotated[RewardSpec, Doc("Where rewards come from.")] = field(default_factory=RewardSpec)
    group: Annotated[GroupSpec, Doc("The sessions of one task.")] = field(default_factory=GroupSpec)
    staleness: Annotated[Staleness | None, Mutable(), Doc("Absent: starts are not bound to weights.")] = None
    output: Annotated[OutputSpec, Doc("Where trajectories go.")] = field(
        default_factory=lambda: OutputSpec(lease=LeaseOutput())
    )
    trainer: Annotated[TrainerSpec | None, Mutable(), Doc("Absent: no trainer is waited for.")] = None
    suspend: Annotated[
        bool, Mutable(), Doc("Nothing runs while true; sessions begun are discarded (Kueue's contract).")
    ] = False
    active_deadline_seconds: Annotated[
        int | None, Bounds(1, 2**31 - 1), Mutable(), Doc("Of the whole job, from its start. Absent: none.")
    ] = None
    ttl_seconds_after_finished: Annotated[
        int | None, Bounds(0, 2**31 - 1), Mutable(), Doc("Then the object deletes itself; absent: never.")
    ] = None
    managed_by: Annotated[
        str,
        Size(0, 253),
        Pattern(r"^([a-z0-9.-]+/[A-Za-z0-9._-]+)?$", "a name with a domain, such as sandgate.dev/operator"),
        Doc(
            "Who runs the job in a cluster, as a Job's: sandgate.dev/operator, or empty, is Sandgate's operator. It "
            "leaves another's alone, status included. Not used locally."
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """Tasks x samples to be rolled out with one agent, one model and one policy."""

    KIND: ClassVar = "RolloutJob"
    PLURAL: ClassVar = "rolloutjobs"
    SHORT: ClassVar = ("rj",)
    COLUMNS: ClassVar = (
        PrinterColumn("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        PrinterColumn("Done", ".status.ended", "integer"),
        PrinterColumn("Of", ".status.sessions", "integer"),
        PrinterColumn("Running", ".status.running", "integer"),
        PrinterColumn("Failed", ".status.failed", "integer"),
        PrinterColumn("Complete", ".status.conditions[?(@.type=='Complete')].status"),
        PrinterColumn("Reason", ".status.reason"),
        PrinterColumn("Age", ".metadata.creationTimestamp", "date"),
        PrinterColumn("Model", ".spec.model.name", priority=1),
        PrinterColumn("Suspended", ".spec.suspend", "boolean", priority=1),
        PrinterColumn("Committed", ".status.committed", "integer", priority=1),
    )
    SELECTABLE: ClassVar = (".spec.suspend", ".spec.model.name")
    SCALE: ClassVar = {
        "specReplicasPath": ".spec.parallelism",
        "statusReplicasPath": ".status.running",
        "labelSelectorPath": ".status.selector",
    }
    RULES: ClassVar = name_rules(JOB_NAME_MAX, when_made=True)

    api_version: Annotated[str, Pattern(f"^{API_VERSION}$", API_VERSION), Doc("Version of this kind.")]
    kind: Annotated[str, Pattern("^RolloutJob$", "RolloutJob"), Doc("RolloutJob.")]
    metadata: Metadata
    spec: RolloutJobSpec
    status: RolloutJobStatus | None = None
