"""RolloutJob and AgentSession (`sandgate.dev/v1alpha1`) as frozen dataclasses: api.md section 4. (pure)

Fields are snake_case here and camelCase in manifests. Types, bounds, documentation, CEL rules and printer columns are
metadata on the fields (contract.rules); `contract.schema` decodes by them, and the CRDs are generated from them.
An absent block is None; everything else has the default that the API server would fill in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from sandgate.contract.agent_session import AgentSession as AgentSession
from sandgate.contract.agent_session import AgentSessionSpec as AgentSessionSpec
from sandgate.contract.choices import (
    Backend as Backend,
)
from sandgate.contract.choices import (
    Beside as Beside,
)
from sandgate.contract.choices import (
    Completion as Completion,
)
from sandgate.contract.choices import (
    EngineKind as EngineKind,
)
from sandgate.contract.choices import (
    HistoryPolicy as HistoryPolicy,
)
from sandgate.contract.choices import (
    Isolation as Isolation,
)
from sandgate.contract.choices import (
    RewardSource as RewardSource,
)
from sandgate.contract.choices import (
    TaskDelivery as TaskDelivery,
)
from sandgate.contract.kinds import (
    HttpUrl,
    Json,
    JsonObject,
    LabelMap,
    LabelText,
    NonNegative,
    Parts,
    Positive,
    Quantity,
    Seconds,
    Text,
    Word,
    container,
    messages,
    pod_template,
)
from sandgate.contract.names import API_VERSION as API_VERSION
from sandgate.contract.names import GROUP as GROUP
from sandgate.contract.names import JOB_NAME_MAX, LABEL_PATTERN, SAMPLES_MAX, UID_CHARS_MAX
from sandgate.contract.names import VERSION as VERSION
from sandgate.contract.rules import Bounds, Cel, Check, Column, Doc, OneOf, Pattern, Size
from sandgate.contract.status import RolloutJobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The part of Kubernetes object metadata that Sandgate reads; the rest is ignored."""

    name: Annotated[
        str,
        Size(1, JOB_NAME_MAX),
        Pattern(LABEL_PATTERN, "a DNS label (lower case letters, digits and dashes)"),
        Doc("Name of the object; part of the names of everything made for it."),
    ]
    namespace: Annotated[str, Doc("Namespace; empty where there is no cluster.")] = ""
    uid: Annotated[str, Doc("Set by the API server.")] = ""
    generation: Annotated[NonNegative, Doc("Set by the API server; changes with spec.")] = 0
    labels: Annotated[LabelMap, Doc("Labels.")] = field(default_factory=dict)
    annotations: Annotated[LabelMap, Doc("Annotations.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The policy that is trained."""

    name: Annotated[Word, Doc("What agents call it, in SANDGATE_MODEL and request bodies.")]
    tokenizer: Annotated[
        Text,
        Size(1),
        Doc(
            "Directory with tokenizer.json and the chat template (a path in the gateways; locally relative to the "
            "manifest), which is the model's own directory as a rule."
        ),
    ]
    renderer: Annotated[Word, Doc("How messages become tokens: auto, template, or a family's name.")] = "auto"
    history_policy: Annotated[HistoryPolicy, Doc("What of a sampled turn stays in context.")] = (
        HistoryPolicy.SAMPLED
    )
    max_model_len: Annotated[NonNegative, Doc("Tokens of prompt and answer together; 0 asks the engine.")] = 0
    template_kwargs: Annotated[
        JsonObject, Doc("Further variables for the chat template, e.g. enable_thinking: false.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSelector:
    """Engine pods in the job's namespace."""

    match_labels: Annotated[LabelMap, Size(1), Doc("Labels that the pods have.")]
    port: Annotated[int, Bounds(1, 65535), Doc("Their HTTP port.")] = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedEngine:
    """An engine that is started for the job: pods in a cluster, one process locally."""

    image: Annotated[str, Doc("Container image; not used locally.")] = ""
    replicas: Annotated[int, Bounds(1, 1024), Doc("Pods; locally always one process.")] = 1
    gpus: Annotated[int, Bounds(0, 64), Doc("nvidia.com/gpu per pod; 0 is a CPU engine.")] = 1
    model: Annotated[str, Doc("Weights to serve: a path or hub name; default model.tokenizer.")] = ""
    command: Annotated[
        Parts,
        Doc(
            "Instead of the built-in command line. $(MODEL), $(MODEL_NAME), $(HOST), $(PORT) and $(MAX_MODEL_LEN) "
            "expand; the engine must answer /health on that port."
        ),
    ] = ()
    args: Annotated[Parts, Doc("Added to the command line.")] = ()
    env: Annotated[LabelMap, Doc("Added to the environment.")] = field(default_factory=dict)
    start_seconds: Annotated[Seconds, Doc("How long until /health must answer.")] = 600
    template: Annotated[
        JsonObject,
        Doc(
            "Part of a PodTemplateSpec, laid over ours: labels, nodeSelector, tolerations, volumes, and of the "
            "container named engine resources, env and volumeMounts. Not used locally."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The inference servers; exactly one of endpoints, selector and managed."""

    RULES: ClassVar = (OneOf(("endpoints", "selector", "managed")),)

    endpoints: Annotated[
        tuple[HttpUrl, ...] | None, Size(1, 1024), Doc("Base URLs of engines that run already.")
    ] = None
    selector: Annotated[EngineSelector | None, Doc("Pods that run already; gateways go beside them.")] = None
    managed: Annotated[ManagedEngine | None, Doc("Started and stopped with the job.")] = None
    kind: Annotated[EngineKind, Doc("Whose API it speaks.")] = EngineKind.VLLM
    model: Annotated[str, Doc("The engine's name of the model; default model.name.")] = ""
    logprobs_mode: Annotated[
        Word, Doc("The mode the engine was started in; recorded with every trajectory.")
    ] = "processed_logprobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteJournal:
    """Each gateway's own volume."""

    storage: Annotated[Quantity, Doc("Size of the volume.")] = "1Gi"
    storage_class: Annotated[str, Doc("StorageClass; empty is the cluster's default.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """A key of a Secret in the job's namespace."""

    name: Annotated[LabelText, Doc("Name of the Secret.")]
    key: Annotated[Word, Doc("Key in it.")] = "dsn"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresJournal:
    """One database for all gateways, for clusters where a volume cannot follow its pod."""

    secret_ref: Annotated[SecretRef, Doc("Where the connection string is.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Where turns are made durable; exactly one of sqlite and postgres."""

    RULES: ClassVar = (OneOf(("sqlite", "postgres")),)

    sqlite: Annotated[SqliteJournal | None, Doc("A SQLite file on each gateway's own volume.")] = None
    postgres: Annotated[PostgresJournal | None, Doc("A shared database.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The job's gateways: one process, one core each."""

    replicas: Annotated[int, Bounds(1, 100), Doc("How many; a session stays with one.")] = 1
    beside: Annotated[Beside, Doc("Placement on the engines' nodes.")] = Beside.PREFERRED
    journal: Annotated[Journal, Doc("Where turns are made durable.")] = field(
        default_factory=lambda: Journal(sqlite=SqliteJournal())
    )
    image: Annotated[str, Doc("Container image; default the operator's. Not used locally.")] = ""
    template: Annotated[
        JsonObject,
        Doc(
            "Part of a PodTemplateSpec, laid over ours: labels, nodeSelector, tolerations, volumes, and of the "
            "container named gateway resources, env and volumeMounts. Not used locally."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One dataset prompt."""

    uid: Annotated[str, Size(1, UID_CHARS_MAX), Doc("Its name, unique in the job.")]
    prompt: Annotated[Json, Check(messages), Doc("Text, or a list of chat messages.")] = ""
    data: Annotated[Json, Doc("Whatever agent and verifier need; opaque to Sandgate.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigMap:
    """Tasks as JSON lines in a ConfigMap."""

    name: Annotated[LabelText, Doc("Name of the ConfigMap.")]
    key: Annotated[Word, Doc("Key in it.")] = "tasks.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueue:
    """The trainer pushes tasks (POST /v1/tasks); the job ends when the trainer says so."""

    capacity: Annotated[Positive, Doc("Tasks waiting at once; beyond it pushes get 429.")] = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What is rolled out; exactly one of inline, configMap, file and queue."""

    RULES: ClassVar = (OneOf(("inline", "config_map", "file", "queue")),)

    inline: Annotated[tuple[Task, ...] | None, Size(1, 1000), Doc("Tasks in the manifest itself.")] = None
    config_map: Annotated[TaskConfigMap | None, Doc("Tasks in a ConfigMap.")] = None
    file: Annotated[
        str | None,
        Size(1),
        Doc("JSON lines: on a volume of the gateways; locally a path relative to the manifest."),
    ] = None
    queue: Annotated[TaskQueue | None, Doc("Tasks are pushed while the job runs.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How turns are sampled, in the engine's terms; absent fields are the agent's or the engine's choice."""

    temperature: Annotated[float | None, Bounds(0, 10), Doc("Softmax temperature.")] = None
    top_p: Annotated[float | None, Bounds(above=0, high=1), Doc("Nucleus mass.")] = None
    top_k: Annotated[int | None, Bounds(-1, 2**31 - 1), Doc("Candidates; -1 or 0 is all.")] = None
    min_p: Annotated[float | None, Bounds(0, 1), Doc("Least probability, relative to the best.")] = None
    presence_penalty: Annotated[float | None, Bounds(-2, 2), Doc("As in OpenAI's API.")] = None
    frequency_penalty: Annotated[float | None, Bounds(-2, 2), Doc("As in OpenAI's API.")] = None
    repetition_penalty: Annotated[float | None, Bounds(above=0, high=10), Doc("1 is none.")] = None
    seed: Annotated[int | None, Doc("Same seed, same sample; engines that batch may still differ.")] = None
    max_tokens: Annotated[int | None, Bounds(1, 2**31 - 1), Doc("Sampled tokens of one turn.")] = None
    override: Annotated[bool, Doc("These instead of the agent's own, not only where it says nothing.")] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """On one session; 0 is none where it is allowed."""

    turns: Annotated[NonNegative, Doc("Sampled turns.")] = 0
    total_tokens: Annotated[NonNegative, Doc("Unique tokens of the session's tree.")] = 0
    session_seconds: Annotated[Seconds, Doc("From the agent's start to its end.")] = 900
    start_seconds: Annotated[Seconds, Doc("From the decision to start to the agent's start.")] = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Warm sandboxes."""

    size: Annotated[NonNegative, Doc("How many wait.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The program that talks to the model; it knows nothing of Sandgate."""

    RULES: ClassVar = (
        Cel(
            "self.backend != 'Process' || has(self.template.spec.containers[0].command)",
            "backend Process runs containers[0].command, which is missing",
            "template.spec.containers[0].command",
            lambda agent: (
                agent.backend is not Backend.PROCESS
                or bool(agent.template["spec"]["containers"][0].get("command"))
            ),
        ),
    )

    template: Annotated[
        JsonObject, Check(pod_template), Doc("A PodTemplateSpec; its first container is the agent.")
    ]
    backend: Annotated[Backend, Doc("What runs it; `sandgate run` always uses processes.")] = Backend.POD
    pool: Annotated[Pool, Doc("Warm sandboxes.")] = field(default_factory=Pool)
    task_delivery: Annotated[TaskDelivery, Doc("How the task reaches the agent.")] = TaskDelivery.ENV
    completion: Annotated[Completion, Doc("What ends a session well.")] = Completion.EXIT
    isolation: Annotated[Isolation, Doc("What keeps a sandbox pod to its gateway; not used locally.")] = (
        Isolation.PROBED
    )
    egress: Annotated[
        tuple[JsonObject, ...],
        Size(0, 64),
        Doc("Further NetworkPolicyEgressRules: what an agent may reach beside its gateway and DNS."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Runs after the agent, apart from it, with SANDGATE_TASK_FILE and SANDGATE_RESULT_FILE."""

    container: Annotated[
        JsonObject,
        Check(container),
        Doc('A Container; its termination message is {"reward": number, "reward_info": object}.'),
    ]
    seconds: Annotated[Seconds, Doc("It is killed after this.")] = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """Where rewards come from."""

    RULES: ClassVar = (
        Cel(
            "(self.source == 'verifier') == has(self.verifier)",
            "source verifier needs the verifier block, and only that source may have it",
            "verifier",
            lambda reward: (reward.source is RewardSource.VERIFIER) == (reward.verifier is not None),
        ),
    )

    source: Annotated[RewardSource, Doc("Who gives the training reward.")] = RewardSource.TRAINER
    verifier: Annotated[Verifier | None, Doc("With source verifier.")] = None
    discount: Annotated[float, Bounds(0, 1), Doc("Per turn, backwards from the rewarded one.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Further attempts at one sample."""

    infra: Annotated[int, Bounds(0, 100), Doc("After failures that are not the policy's or the agent's.")] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The sessions of one task (a GRPO group)."""

    quorum: Annotated[
        int | None,
        Bounds(1, SAMPLES_MAX),
        Doc("Sessions that must end before stragglers may be cut; default groupSize."),
    ] = None
    straggler_seconds: Annotated[NonNegative, Doc("After the quorum, how long the others may still run.")] = (
        120
    )
    retry: Annotated[Retry, Doc("Further attempts.")] = field(default_factory=Retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How far rollouts may lag behind the trainer's weights."""

    max_versions_behind: Annotated[NonNegative, Doc("Policy versions.")] = 1
    batch_size: Annotated[Positive, Doc("Groups that the trainer consumes per version.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOutput:
    """A trainer pulls and acknowledges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOutput:
    """No trainer: files are written, then committed."""

    url: Annotated[Text, Size(1), Doc("Directory, as an fsspec URL or a path.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where trajectories go; exactly one of lease and parquet."""

    RULES: ClassVar = (OneOf(("lease", "parquet")),)

    lease: Annotated[LeaseOutput | None, Doc("A trainer pulls and acknowledges.")] = None
    parquet: Annotated[ParquetOutput | None, Doc("Files, without a trainer.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
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
    )

    model: Annotated[Model, Doc("The policy that is trained.")]
    engine: Annotated[Engine, Doc("The inference servers.")]
    tasks: Annotated[Tasks, Doc("What is rolled out.")]
    agent: Annotated[Agent, Doc("The program that talks to the model.")]
    gateway: Annotated[Gateway, Doc("The trajectory gateways.")] = field(default_factory=Gateway)
    group_size: Annotated[int, Bounds(1, SAMPLES_MAX), Doc("Sessions per task (n of GRPO).")] = 1
    parallelism: Annotated[int, Bounds(1, 1_000_000), Doc("Sessions running at once.")] = 8
    start_burst: Annotated[
        int | None, Bounds(1, 1_000_000), Doc("Sessions starting at once; default parallelism.")
    ] = None
    sampling: Annotated[Sampling, Doc("How turns are sampled.")] = field(default_factory=Sampling)
    limits: Annotated[Limits, Doc("On one session.")] = field(default_factory=Limits)
    reward: Annotated[Reward, Doc("Where rewards come from.")] = field(default_factory=Reward)
    group: Annotated[Group, Doc("The sessions of one task.")] = field(default_factory=Group)
    staleness: Annotated[Staleness | None, Doc("Absent: starts are not bound to weights.")] = None
    output: Annotated[Output, Doc("Where trajectories go.")] = field(
        default_factory=lambda: Output(lease=LeaseOutput())
    )
    trainer: Annotated[Trainer | None, Doc("Absent: no trainer is waited for.")] = None
    suspend: Annotated[
        bool, Doc("Nothing runs while true; sessions begun are discarded (Kueue's contract).")
    ] = False
    active_deadline_seconds: Annotated[int | None, Bounds(1, 2**31 - 1), Doc("Of the whole job.")] = None
    ttl_seconds_after_finished: Annotated[
        int | None, Bounds(0, 2**31 - 1), Doc("Then the object deletes itself; absent: never.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """Tasks x samples to be rolled out with one agent, one model and one policy."""

    KIND: ClassVar = "RolloutJob"
    PLURAL: ClassVar = "rolloutjobs"
    SHORT: ClassVar = ("rj",)
    COLUMNS: ClassVar = (
        Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        Column("Done", ".status.ended", "integer"),
        Column("Of", ".status.sessions", "integer"),
        Column("Running", ".status.running", "integer"),
        Column("Failed", ".status.failed", "integer"),
        Column("Complete", ".status.conditions[?(@.type=='Complete')].status"),
        Column("Age", ".metadata.creationTimestamp", "date"),
        Column("Model", ".spec.model.name", priority=1),
        Column("Suspended", ".spec.suspend", "boolean", priority=1),
        Column("Committed", ".status.committed", "integer", priority=1),
    )

    api_version: Annotated[str, Pattern(f"^{API_VERSION}$", API_VERSION), Doc("Version of this kind.")]
    kind: Annotated[str, Pattern("^RolloutJob$", "RolloutJob"), Doc("RolloutJob.")]
    metadata: Metadata
    spec: RolloutJobSpec
    status: RolloutJobStatus | None = None
