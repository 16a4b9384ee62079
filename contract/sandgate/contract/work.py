"""Manifest fields about a job's work: spec.tasks, sampling, limits, agent, reward and groups. (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from sandgate.contract.choices import BackendKind, Completion, CutTurns, Isolation, RewardSource, TaskDelivery
from sandgate.contract.embedded import AGENT_TEMPLATE, CONTAINER, MESSAGES
from sandgate.contract.kinds import Json, JsonObject, LabelText, NonNegative, Positive, Seconds, Word
from sandgate.contract.names import SAMPLES_MAX, UID_CHARS_MAX
from sandgate.contract.rules import Bounds, Cel, Doc, Mutable, OneOf, Size, Unique, WhileSuspended

UNSET = " Absent: as the agent or the engine has it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One dataset prompt."""

    uid: Annotated[str, Size(1, UID_CHARS_MAX), Doc("Its name, unique in the job.")]
    prompt: Annotated[Json, MESSAGES, Doc("Text, or a list of chat messages.")] = ""
    data: Annotated[
        Json,
        Doc("For verifier and trainer; an agent sees of it what is under `public`."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigMap:
    """Tasks as JSON lines in a ConfigMap."""

    name: Annotated[LabelText, Doc("Name of the ConfigMap.")]
    key: Annotated[Word, Doc("Key in it.")] = "tasks.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueSpec:
    """The trainer pushes tasks (POST /v1/tasks); the job ends when the trainer says so."""

    capacity: Annotated[Positive, Doc("Tasks waiting at once at each gateway; beyond it pushes get 429.")] = (
        10_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksSpec:
    """What is rolled out; exactly one of inline, configMap, file and queue."""

    RULES: ClassVar = (OneOf(("inline", "config_map", "file", "queue")),)

    inline: Annotated[tuple[Task, ...] | None, Size(1, 1000), Unique("uid"), Doc("Tasks, right here.")] = None
    config_map: Annotated[TaskConfigMap | None, Doc("Tasks in a ConfigMap.")] = None
    file: Annotated[
        str | None,
        Size(1, 4096),
        Doc(
            "Locally only: JSON lines, a path relative to the manifest. In a cluster use configMap or queue."
        ),
    ] = None
    queue: Annotated[TaskQueueSpec | None, Doc("Tasks are pushed while the job runs.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """How turns are sampled, in the engine's terms; absent fields are the agent's or the engine's choice."""

    temperature: Annotated[float | None, Bounds(0, 2), Doc("Softmax temperature." + UNSET)] = None
    top_p: Annotated[float | None, Bounds(1e-6, 1), Doc("Nucleus mass." + UNSET)] = None
    top_k: Annotated[int | None, Bounds(-1, 2**31 - 1), Doc("Candidates; -1 or 0 is all." + UNSET)] = None
    min_p: Annotated[float | None, Bounds(0, 1), Doc("Least probability, relative to the best." + UNSET)] = (
        None
    )
    presence_penalty: Annotated[float | None, Bounds(-2, 2), Doc("As in OpenAI's API." + UNSET)] = None
    frequency_penalty: Annotated[float | None, Bounds(-2, 2), Doc("As in OpenAI's API." + UNSET)] = None
    repetition_penalty: Annotated[
        float | None, Bounds(0.01, 10), Doc("1 is none; SGLang takes 2 at most." + UNSET)
    ] = None
    seed: Annotated[
        int | None,
        Doc(
            "Every task (by its uid), sample, turn and choice gets a seed of its own, made from this one: the same job "
            "draws the same, and so does another attempt at a sample; engines that batch may still differ."
            + UNSET
        ),
    ] = None
    max_tokens: Annotated[int | None, Bounds(1, 2**31 - 1), Doc("Sampled tokens of one turn." + UNSET)] = None
    override: Annotated[bool, Doc("These instead of the agent's own, not only where it says nothing.")] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSpec:
    """On one session; 0 is none where it is allowed."""

    turns: Annotated[NonNegative, Doc("Sampled turns.")] = 1_000
    total_tokens: Annotated[NonNegative, Doc("Unique tokens of the session's tree.")] = 10_000_000
    prompt_tokens: Annotated[
        NonNegative,
        Doc(
            "Of a conversation's first prompt: what the trainer takes. More is refused before anything is sampled."
        ),
    ] = 0
    response_tokens: Annotated[
        NonNegative,
        Doc(
            "Of all that follows it in one conversation, sampled or not: what the trainer takes. Answers end there, "
            "and a longer history is refused before anything is sampled."
        ),
    ] = 0
    session_seconds: Annotated[Seconds, Doc("From the agent's start to its end.")] = 900
    start_seconds: Annotated[
        Seconds,
        Doc(
            "From its pod's place on a node to the agent's start; four times as long while its image is being pulled."
        ),
    ] = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """The program that talks to the model; it knows nothing of Sandgate."""

    RULES: ClassVar = (
        Cel(
            "self.backend != 'Process' || has(self.template.spec.containers[0].command)",
            "backend Process runs containers[0].command, which is missing",
            "template.spec.containers[0].command",
            lambda agent: (
                agent.backend is not BackendKind.PROCESS
                or bool(agent.template["spec"]["containers"][0].get("command"))
            ),
        ),
    )

    template: Annotated[
        JsonObject,
        AGENT_TEMPLATE,
        WhileSuspended(),
        Doc("A PodTemplateSpec; its first container is the agent."),
    ]
    backend: Annotated[BackendKind, Doc("What runs it; `sandgate run` always uses processes.")] = (
        BackendKind.POD
    )
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
class VerifierSpec:
    """Runs after the agent, apart from it, with SANDGATE_TASK_FILE and SANDGATE_RESULT_FILE."""

    container: Annotated[
        JsonObject,
        CONTAINER,
        Doc('A Container; its termination message is {"reward": number, "reward_info": object}.'),
    ]
    seconds: Annotated[Seconds, Doc("It is killed after this.")] = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    """Where rewards come from."""

    RULES: ClassVar = (
        Cel(
            "(has(self.source) && self.source == 'verifier') == has(self.verifier)",
            "source verifier needs the verifier block, and only that source may have it",
            "verifier",
            lambda reward: (reward.source is RewardSource.VERIFIER) == (reward.verifier is not None),
        ),
    )

    source: Annotated[RewardSource, Doc("Who gives the training reward.")] = RewardSource.TRAINER
    verifier: Annotated[VerifierSpec | None, Doc("With source verifier.")] = None
    discount: Annotated[float, Bounds(0, 1), Doc("Per turn, backwards from the rewarded one.")] = 1.0
    cut_turns: Annotated[CutTurns, Doc("Whether turns are trained whose stream the agent cut.")] = (
        CutTurns.TRAIN
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySpec:
    """Further attempts at one sample."""

    infra: Annotated[int, Bounds(0, 100), Doc("After failures that are not the policy's or the agent's.")] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """The sessions of one task (a GRPO group)."""

    quorum: Annotated[
        int | None,
        Bounds(1, SAMPLES_MAX),
        Doc("Sessions that must end before stragglers may be cut; default groupSize."),
    ] = None
    straggler_seconds: Annotated[NonNegative, Doc("After the quorum, how long the others may still run.")] = (
        120
    )
    retry: Annotated[RetrySpec, Mutable(), Doc("Further attempts.")] = field(default_factory=RetrySpec)
