"""The engine interface: Prompt, Delta, GenerationResult, Engine. Token ids in, sampled ids and logprobs out. (pure)"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.labels import Labels
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.spans import Spans

Finish = Literal["stop", "length", "abort"]


class ServedAdapter(NamedTuple):
    """A policy version as a LoRA adapter, beside the weights that engines were started with."""

    name: str
    """By which engines serve it. No two adapters ever have the same."""
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One generation to make."""

    request_id: str
    """Unique per attempt at a generation; names it in the engine's logs and aborts."""
    ids: Ids
    """The whole prompt."""
    sampling: SamplingParams
    max_tokens: int
    """Already clamped to the window; >= 1."""
    stop_ids: tuple[int, ...] = ()
    """Generation ends with any of these; the id is part of the sample."""
    constraint: dict[str, Any] | None = None
    """In vLLM's `structured_outputs` form: {"json": ...}, {"regex": ...} or {"structural_tag": ...}."""
    top_logprobs: int = 0
    """Logprobs of so many likely tokens are asked for; 0 = of the sampled token only."""
    affinity: str = ""
    """Requests of one group have the same value, because they share a prefix; they go to one replica as far as load
    allows."""
    session: str = ""
    """Requests of one session have the same value: each goes on from the last, and goes to its replica."""
    model: str = ""
    version: int = 0
    """The policy version last set by the trainer; used where the engine reports none."""
    media: Spans = ()
    """Where `ids` have placeholders of pictures."""
    pictures: tuple[Picture, ...] = ()
    """The pictures, in the same order. Prompts with the same ids and other pictures are other prompts."""
    told: Ids | None = None
    """With pictures: what an engine is sent that puts their placeholders in itself, and then comes to `ids`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The tokens that arrived in one step, at least one: aligned ids and logprobs."""

    ids: Ids
    logprobs: Floats
    top: tuple[bytes, ...] = ()
    """Aligned top logprobs, if they were asked for; packed (see journal.top_logprobs)."""
    version: int = 0
    """The policy version when the tokens were asked for; the engine's own report comes with the sample."""

    @staticmethod
    def joined(deltas: Sequence[Delta]) -> Delta:
        """Deltas of one version that arrived at once, at least one."""
        first, *others = deltas
        if not others:
            return first
        ids, logprobs, top = first.ids[:], first.logprobs[:], list(first.top)
        for delta in others:
            ids.extend(delta.ids)
            logprobs.extend(delta.logprobs)
            top.extend(delta.top)
        return Delta(ids, logprobs, tuple(top), first.version)


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens [start, end) of the sample were sampled by `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A finished generation. `ids` and `logprobs` are aligned and exactly what the engine reported;
    sentinels, NaN and positive logprobs were refused (EngineFailed)."""

    ids: Ids
    logprobs: Floats
    versions: tuple[VersionSpan, ...]
    """Cover [0, len(ids)) without gaps."""
    finish: Finish
    stop_reason: str | int | None = None
    """The stop string or id that ended it, if not the model's own end."""
    engine: str = ""
    """URL of the replica."""
    build: str = ""
    """Name and version of that replica's software; empty if it is not known."""
    cached_tokens: int = 0
    top: tuple[bytes, ...] = ()
    """The top logprobs of each token, packed (see journal.top_logprobs), if they were asked for."""
    resumed: int = 0
    """How often the generation was resumed after an abort."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Health of one replica, as last seen."""

    url: str
    healthy: bool
    in_flight: int
    detail: str = ""
    unlabelled: bool = False
    """Not used, because its weights' label has no version and should have one (see engine.labels), or because it does
    not have the adapter that was told."""


class Engine(Protocol):
    """A pool of replicas. The same conformance suite runs on every implementation."""

    async def generate(
        self, prompt: Prompt, on_delta: Callable[[Delta], None] | None = None
    ) -> GenerationResult:
        """Samples once. `on_delta` is called synchronously for each step as it arrives; the steps together are the
        sample. Cancelling the task aborts the generation in the engine.

        Raises EngineUnavailable (no replica took it; nothing was sampled), EngineFailed (bad answer),
        PromptTooLong, Overloaded. A generation that the engine aborts (weight update) is resumed with prompt + partial
        ids, bounded, each token with its own version.
        """
        ...

    def status(self) -> list[EngineStatus]:
        """One entry per replica."""
        ...

    async def aclose(self) -> None:
        """Closes connections; running generations are aborted."""
        ...


@runtime_checkable
class Replaceable(Protocol):
    """An engine whose replicas may change while it runs."""

    async def set_urls(self, urls: Sequence[str], here: Collection[str] = ()) -> None:
        """Replaces the replicas. `here`: those on this gateway's machine, which are preferred. Returns when the new
        ones were asked what they are; one that did not answer is down until it does. Running generations end on the
        replica where they are."""
        ...


@runtime_checkable
class Holdable(Protocol):
    """An engine that asks before it begins, or takes up again, a generation: it may have waited for something since the
    call came, and a weight update waits for what is in flight only."""

    hold: Callable[[], Awaitable[None]]
    """Returns when it may. Raises SandgateError."""


@runtime_checkable
class Labelled(Protocol):
    """An engine that reports versions as labels of its weights."""

    labels: Labels

    async def version_told(self) -> None:
        """Reads every replica's label again, because the trainer set a version, or whether labels carry versions. A
        replica whose label needs a number and has none is not used until it has one."""
        ...


@runtime_checkable
class ServesAdapters(Protocol):
    """An engine that may sample by LoRA adapters which its replicas were given while they ran."""

    @property
    def serves_adapters(self) -> bool:
        """Its kind can do so."""
        ...

    def adapters_in_use(self) -> frozenset[str]:
        """Of generations in flight. An adapter that another was told instead of, and that is not among these, is asked
        for no more."""
        ...


@runtime_checkable
class KeepsSessions(Protocol):
    """An engine that remembers on which replica a session's history is."""

    def ended(self, session: str) -> None:
        """The session samples no more."""
        ...


@dataclass(slots=True)
class EngineFacts:
    """What an engine reported about itself at start-up; goes into every record."""

    name: str = "vllm"
    version: str = ""
    logprobs_mode: str = "unknown"
    max_model_len: int = 0
    room: int = 0
    """Tokens of a prompt and its answer together, where that is not `max_model_len`: SGLang reserves some for drafts,
    and its cache may hold fewer."""
    models: list[str] = field(default_factory=list)

    @property
    def window(self) -> int:
        """Tokens that a prompt and its answer may fill; 0: not known."""
        return self.room or self.max_model_len

    @property
    def build(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}".strip()
