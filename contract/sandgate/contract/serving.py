"""Manifest fields about serving a job: spec.model, spec.engine, spec.gateway and its journal. (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from sandgate.contract.choices import (
    Beside,
    EngineKind,
    HistoryPolicy,
    LogprobsMode,
    SpecialTokensInText,
    TurnRole,
)
from sandgate.contract.kinds import (
    EnvMap,
    HttpUrl,
    Image,
    JsonObject,
    LabelText,
    NonNegative,
    Parts,
    Quantity,
    Seconds,
    SelectorLabels,
    Text,
    Word,
)
from sandgate.contract.media_hosts import PATTERN, SAYS, first_wrong
from sandgate.contract.rules import (
    Bounds,
    Cel,
    Check,
    Doc,
    Grows,
    Mutable,
    OneOf,
    Pattern,
    Size,
    WhileSuspended,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
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
    special_tokens_in_text: Annotated[
        SpecialTokensInText, Doc("What becomes of a control token that a client's text spells.")
    ] = SpecialTokensInText.TEXT
    max_model_len: Annotated[NonNegative, Doc("Tokens of prompt and answer together; 0 asks the engine.")] = 0
    template_kwargs: Annotated[
        JsonObject, Doc("Further variables for the chat template, e.g. enable_thinking: false.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSelector:
    """Engine pods in the job's namespace."""

    match_labels: Annotated[SelectorLabels, Doc("Labels that the pods have.")]
    port: Annotated[int, Bounds(1, 65535), Doc("Their HTTP port.")] = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedEngineSpec:
    """An engine that is started for the job: pods in a cluster, one process locally."""

    image: Annotated[Image, WhileSuspended(), Doc("Container image; not used locally.")] = ""
    replicas: Annotated[int, Bounds(1, 1024), Mutable(), Doc("Pods; locally always one process.")] = 1
    gpus: Annotated[int, Bounds(0, 64), Doc("GPUs per pod; 0 is a CPU engine.")] = 1
    gpu_resource: Annotated[
        str,
        Size(0, 253),
        Pattern(r"^([a-z0-9.-]+/[A-Za-z0-9._-]+)?$", "a resource's name with a domain, such as amd.com/gpu"),
        Doc(
            "What a node calls its GPUs, and the taint that keeps others away from them: amd.com/gpu, "
            "nvidia.com/mig-3g.40gb. Empty: the template asks for them itself, as by resourceClaims. Not used locally."
        ),
    ] = "nvidia.com/gpu"
    model: Annotated[Text, Doc("Weights to serve: a path or hub name; default model.tokenizer.")] = ""
    command: Annotated[
        Parts,
        Doc(
            "Instead of the built-in command line. $(MODEL), $(MODEL_NAME), $(HOST), $(PORT) and $(MAX_MODEL_LEN) "
            "expand; the engine must answer /health on that port."
        ),
    ] = ()
    args: Annotated[Parts, Doc("Added to the command line.")] = ()
    env: Annotated[EnvMap, Doc("Added to the environment.")] = field(default_factory=dict)
    start_seconds: Annotated[Seconds, Doc("How long until /health must answer.")] = 600
    template: Annotated[
        JsonObject,
        WhileSuspended(),
        Doc(
            "Part of a PodTemplateSpec, laid over ours: labels, nodeSelector, tolerations, volumes, and of the "
            "container named engine resources, env and volumeMounts. Not used locally."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The inference servers; exactly one of endpoints, selector and managed."""

    RULES: ClassVar = (
        OneOf(("endpoints", "selector", "managed")),
        Cel(
            "self.kind != 'sglang' || !has(self.managed)",
            "a managed engine is vLLM: start SGLang yourself, and name it in endpoints or selector",
            "kind",
            lambda engine: engine.kind is not EngineKind.SGLANG or engine.managed is None,
        ),
    )

    endpoints: Annotated[
        tuple[HttpUrl, ...] | None, Size(1, 1024), Mutable(), Doc("Base URLs of engines that run already.")
    ] = None
    selector: Annotated[EngineSelector | None, Doc("Pods that run already; gateways go beside them.")] = None
    managed: Annotated[ManagedEngineSpec | None, Doc("Started and stopped with the job.")] = None
    kind: Annotated[EngineKind, Doc("Whose API it speaks.")] = EngineKind.VLLM
    model: Annotated[Text, Doc("The engine's name of the model; default model.name.")] = ""
    logprobs_mode: Annotated[
        LogprobsMode,
        Doc(
            "The mode the engine was started in, recorded with every trajectory; one in another is not used."
        ),
    ] = LogprobsMode.PROCESSED


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteJournal:
    """Each gateway's own volume."""

    storage: Annotated[Quantity, Doc("Size of the volume.")] = "1Gi"
    storage_class: Annotated[LabelText, Doc("StorageClass; empty is the cluster's default.")] = ""


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
class JournalSpec:
    """Where turns are made durable; exactly one of sqlite and postgres."""

    RULES: ClassVar = (OneOf(("sqlite", "postgres")),)

    sqlite: Annotated[SqliteJournal | None, Doc("A SQLite file on each gateway's own volume.")] = None
    postgres: Annotated[PostgresJournal | None, Doc("A shared database.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRule:
    """Whose calls have a role. All that it names must be so; texts are found whatever their case, in the first and last
    4,096 characters."""

    RULES: ClassVar = (
        Cel(
            "size(self.header) + size(self.systemContains) + size(self.lastMessageContains) > 0",
            "name a header, or what the system prompt or the last message contains: this would be every call",
            "",
            lambda rule: bool(rule.header or rule.system_contains or rule.last_message_contains),
        ),
        Cel(
            "size(self.headerValue) == 0 || size(self.header) > 0",
            "headerValue is of a header: name it",
            "header",
            lambda rule: bool(rule.header) or not rule.header_value,
        ),
    )

    role: Annotated[TurnRole, Doc("What such calls are.")]
    header: Annotated[str, Size(0, 128), Doc("Name of a request header that is there.")] = ""
    header_value: Annotated[str, Size(0, 1024), Doc("What that header says, in full; empty: anything.")] = ""
    system_contains: Annotated[Text, Doc("Text in the system prompt.")] = ""
    last_message_contains: Annotated[
        Text,
        Doc(
            "Text in the last message, unless that is the assistant's. System messages behind a user's are passed over."
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpec:
    """Whence images may come, beyond the request itself."""

    allowed_hosts: Annotated[
        tuple[Annotated[str, Size(1, 300), Pattern(PATTERN, SAYS)], ...],
        Size(0, 64),
        Check(first_wrong),
        Doc(
            "Hosts from which gateways fetch images that agents name by address, each exactly as it is written: "
            "images.example.com (https, port 443), images.example.com:8443, http://10.0.0.7:9000. International names "
            "as xn--... Empty: none are fetched."
        ),
    ] = ()
    private_addresses: Annotated[
        bool,
        Doc(
            "Whether names among them may lead to private addresses, such as Services of the cluster. Never to "
            "loopback, link-local or a cloud's metadata."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySpec:
    """The job's gateways: one process, one core each."""

    replicas: Annotated[
        int,
        Bounds(1, 100),
        Grows("sessions live on their gateway"),
        Doc("How many; a session stays with one."),
    ] = 1
    beside: Annotated[Beside, Doc("Placement on the engines' nodes.")] = Beside.PREFERRED
    journal: Annotated[JournalSpec, Doc("Where turns are made durable.")] = field(
        default_factory=lambda: JournalSpec(sqlite=SqliteJournal())
    )
    image: Annotated[
        Image, WhileSuspended(), Doc("Container image; default the operator's. Not used locally.")
    ] = ""
    template: Annotated[
        JsonObject,
        WhileSuspended(),
        Doc(
            "Part of a PodTemplateSpec, laid over ours: labels, nodeSelector, tolerations, volumes, and of the "
            "container named gateway resources, env and volumeMounts. Not used locally."
        ),
    ] = field(default_factory=dict)
    roles: Annotated[
        tuple[RoleRule, ...],
        Size(0, 64),
        Doc(
            "Which calls are side calls or a sub-agent's, beyond what gateways know; the first rule that fits counts."
        ),
    ] = ()
    idle_seconds: Annotated[
        int,
        Bounds(0, 2**31 - 1),
        Mutable(),
        Doc(
            "Gateways with nothing to do for so long go to 0 pods, and their journals stay: of a job that is Collected,"
            " or suspended with nothing running, and of which no trainer asks anything. A larger number brings them"
            " back. Not used locally."
        ),
    ] = 600
    media: Annotated[MediaSpec, Doc("Images that agents name by address.")] = field(default_factory=MediaSpec)
