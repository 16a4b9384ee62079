"""Generation: one generation across retries and resumes: what is sampled so far, what is left to ask for. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.engine.api import Delta, Finish, GenerationResult, Prompt, VersionSpan
from sandgate.gateway.engine.labels import number_of
from sandgate.gateway.engine.responses import Step, Unlabelled, spans_of
from sandgate.gateway.engine.wire import NEUTRAL
from sandgate.gateway.journal.top_logprobs import packed

RESUMES_MAX = 16
"""Limit of resumes of one generation. A long one lives through a few weight updates; more is a loop."""


OVER_SAMPLED = ("presence_penalty", "frequency_penalty")
"""Penalties that vLLM counts over what is sampled since the request; `repetition_penalty` counts the prompt, too."""


CAPPED = (
    "it has a limit of its own, a max_new_tokens in its generation config; start vLLM with --enable-scale-out, or "
    "without max_new_tokens in --override-generation-config and in the folder of --generation-config"
)


@dataclass(slots=True)
class Generation:
    """One generation. Sampled tokens are kept exactly: a cut generation goes on after its last id, and nothing is
    sampled again.

    One exception: what an engine holds against the tokens since the request cannot be resumed in the middle: a grammar
    (`constraint`), and penalties that do not count the prompt. Such a generation starts again, or fails if parts of it
    were streamed already.
    """

    prompt: Prompt
    told: int
    """The version last told when the piece in the making was asked for: of its tokens where the engine reports none,
    until `tell`."""
    streams: bool
    """Steps are streamed as they arrive, so none can be taken back."""
    over_sampled: tuple[str, ...] = OVER_SAMPLED
    """Penalties that the engine counts over sampled tokens only."""
    adapter: str = ""
    """LoRA adapter that samples the next piece; `told` is its version, whatever the label of the weights below it."""
    numbered: bool = False
    """Labels must carry versions in the next piece (see engine.labels)."""
    weights: int | None = None
    """The version in the label of the replica that samples the next piece, as last seen. None: not known, and what was
    told counts."""
    newest: int | None = None
    """The highest number in a label of an answer."""
    label: str | int | None = None
    """The last label that the answer to the attempt came with."""
    ids: Ids = field(default_factory=lambda: array("i"))
    logprobs: Floats = field(default_factory=lambda: array("f"))
    top: list[bytes] = field(default_factory=list)
    """Packed (see journal.top_logprobs)."""
    spans: list[VersionSpan] = field(default_factory=list)
    finish: Finish | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    resumed: int = 0
    _piece: int = 0
    """Sampled tokens before the piece in the making."""
    _later: list[tuple[int, int]] = field(default_factory=list)
    """What was told while it was made: (tokens that had come, version)."""
    _caps: int = 0
    """Of `resumed`, those behind a limit of the engine's own."""
    _capped_at: int = -1
    """Tokens at the last of them."""
    _seen: int = -1
    """Of which piece the engine told the prompt that it made, if there are pictures."""

    def asks(self) -> tuple[Ids, int]:
        """What to ask for next: (ids to send, tokens still wanted)."""
        if not self.ids:
            return self.prompt.ids, self.prompt.max_tokens
        return self.prompt.ids + self.ids, self.prompt.max_tokens - len(self.ids)

    def ask(self, told: int, *, numbered: bool, adapter: str = "") -> None:
        """The next attempt begins; `told` is the version last told. What one before it left is a piece."""
        if self.begun:
            self._end_piece(None)
        self.told, self.numbered, self.adapter = told, numbered, adapter
        self.weights, self.label = None, None
        self._later.clear()

    def tell(self, version: int) -> None:
        """The version last told, or of the replica's label (`weights`), is this one: where the engine reports none,
        tokens that come from now on are of it. A whole answer comes at once, when it is over, and does not say when its
        tokens were sampled: it stays with the version that it was asked for under, the oldest that its tokens can
        have."""
        if version != self._version:
            self._later.append((len(self.ids), version))

    @property
    def _version(self) -> int:
        return self._later[-1][1] if self._later else self._first

    @property
    def _first(self) -> int:
        """Of the piece's first tokens."""
        return self.told if self.weights is None else self.weights

    @property
    def begun(self) -> bool:
        """The piece in the making has tokens: whatever ends it cuts the generation."""
        return len(self.ids) > self._piece

    def take(self, step: Step) -> Delta | None:
        """Adds a step. Returns what to stream; None for a step without tokens."""
        if self.prompt.pictures:
            self._same_prompt(step)
        if self.finish is not None and step.ids:
            raise EngineFailed("the engine sent tokens after the end of the generation")
        self.ids.extend(step.ids)
        self.logprobs.extend(step.logprobs)
        top = tuple(map(packed, step.top)) if step.top else ()
        self.top.extend(top)
        if len(self.ids) > self.prompt.max_tokens:
            raise EngineFailed(
                f"the engine sampled {len(self.ids)} tokens of {self.prompt.max_tokens} asked for"
            )
        version = self._version
        # A later piece finds the earlier ones in the cache: not what was asked.
        if step.cached_tokens and self.resumed == 0:
            self.cached_tokens = max(self.cached_tokens, step.cached_tokens)
        if step.finish is not None:
            self._end_piece(step.labels)
            self.finish, self.stop_reason = step.finish, step.stop_reason
        return Delta(step.ids, step.logprobs, top, version) if step.ids else None

    def _same_prompt(self, step: Step) -> None:
        """A prompt with pictures is what was meant only if the engine made the same ids of it: it runs a processor of
        its own. Raises EngineFailed before anything of the answer is taken."""
        if step.prompt is None and self._seen == self.resumed:
            return
        wanted = self.prompt.ids + self.ids[: self._piece]
        spans = tuple((span.start, span.length) for span in self.prompt.media)
        if step.prompt is None or step.prompt != wanted or not _cover(step.images, spans):
            told = "none" if step.prompt is None else f"{len(step.prompt)} ids with images at {step.images}"
            raise EngineFailed(
                f"the engine was to make {len(wanted)} prompt ids with images at {spans}, and made {told}; are its "
                "image processor's settings (--mm-processor-kwargs) those of spec.model.tokenizer?"
            )
        self._seen = self.resumed

    def _end_piece(self, labels: tuple[tuple[str | int, int, int], ...] | None) -> None:
        if self.adapter:
            labels = None
        count = len(self.ids) - self._piece
        spans = spans_of(labels, count, told=self.told, offset=self._piece, numbered=self.numbered)
        numbers = [number for label, _, _ in labels or () if (number := number_of(label)) is not None]
        if numbers:
            self.newest = max(numbers if self.newest is None else [self.newest, *numbers])
        if labels:
            self.label = labels[-1][0]
        # Labels without a number are nobody's; or the replica has lost the one that it was seen with.
        by_engine = numbers or (labels and self.weights is not None)
        self.spans.extend(spans if by_engine else self._as_told())
        self._piece = len(self.ids)
        self._later.clear()

    def _as_told(self) -> Iterator[VersionSpan]:
        """The piece, by what was known as its tokens came."""
        starts = [(self._piece, self._first), *self._later]
        ends = [at for at, _ in self._later] + [len(self.ids)]
        for (start, version), end in zip(starts, ends, strict=True):
            if start < end:
                yield VersionSpan(version, start, end)

    def cut(self, why: str, *, told: int) -> bool:
        """The attempt ended early (aborted, connection lost). Returns whether there is more to ask for.

        Raises EngineUnavailable if it cannot go on: it was cut too often, or it has a grammar or such a penalty and was
        streamed in part.
        """
        if self.finish is None:
            self._end_piece(None)  # the spans come with the end of an answer, and this one has none
        self.finish, self.stop_reason = None, None
        self.told = told
        if self.ids and self.ids[-1] in self.prompt.stop_ids:
            # vLLM looks for the end before it counts, too; only the event that says so was lost.
            self.finish, self.stop_reason = "stop", self.ids[-1]
            return False
        if len(self.ids) == self.prompt.max_tokens:
            self.finish = "length"
            return False
        if self.resumed - self._caps >= RESUMES_MAX:
            raise EngineUnavailable(f"cut {RESUMES_MAX} times before its end; at last: {why}")
        if self.ids and (whole := self._only_whole()):
            if self.streams:
                raise EngineUnavailable(f"{whole} cannot be taken up in the middle; {why}")
            self._restart()
        self.resumed += 1
        return True

    def is_short(self, window: int) -> bool:
        """It ended for its length, before what was asked for and before the engine's window (0: unknown) was full."""
        full = len(self.prompt.ids) + len(self.ids) >= window
        return self.finish == "length" and len(self.ids) < self.prompt.max_tokens and not full

    def capped(self, *, told: int) -> None:
        """The engine ended it at a limit of its own: it goes on as behind an abort, as long as that brings tokens.
        Where it cannot go on it has ended for its length, which is true; a failure would be the engine's, and so
        something that an agent or a long answer could choose."""
        if self._only_whole() or len(self.ids) == self._capped_at:
            return
        self._caps, self._capped_at = self._caps + 1, len(self.ids)
        self.cut(CAPPED, told=told)

    def _only_whole(self) -> str:
        """What makes the generation one that cannot go on behind a cut; empty if it can."""
        if self.prompt.constraint is not None:
            return "a grammar"
        off = (
            name
            for name in self.over_sampled
            if getattr(self.prompt.sampling, name) not in (None, NEUTRAL[name])
        )
        return next((f"{name}, which the engine counts from the request on," for name in off), "")

    def forget(self, error: Unlabelled) -> None:
        """Drops the piece in the making, because its weights are unknown. Raises `error` if parts of it were
        streamed."""
        if self.streams and self.begun:
            raise error
        del self.ids[self._piece :], self.logprobs[self._piece :], self.top[self._piece :]
        self._later.clear()

    def _restart(self) -> None:
        self.ids, self.logprobs, self._piece = array("i"), array("f"), 0
        self.top.clear()
        self.spans.clear()

    def sample(self, engine: str, build: str = "") -> GenerationResult:
        """The whole sample, once `finish` is known. `engine`, `build`: of the replica where it ended."""
        assert self.finish is not None, "asked for before the end"
        return GenerationResult(
            ids=self.ids,
            logprobs=self.logprobs,
            versions=_merged(self.spans),
            finish=self.finish,
            stop_reason=self.stop_reason,
            engine=engine,
            build=build,
            cached_tokens=self.cached_tokens,
            top=tuple(self.top),
            resumed=self.resumed,
        )


def _cover(told: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> bool:
    """Whether the engine has each picture where it is meant to be. It may count what stands around one to it: the new
    lines of Gemma 3."""
    return len(told) == len(spans) and all(
        at <= start and start + length <= at + size
        for (at, size), (start, length) in zip(told, spans, strict=True)
    )


def _merged(spans: list[VersionSpan]) -> tuple[VersionSpan, ...]:
    """The spans, neighbours of one version merged."""
    out: list[VersionSpan] = []
    for span in spans:
        if out and out[-1].version == span.version:
            out[-1] = VersionSpan(span.version, out[-1].start, span.end)
        else:
            out.append(span)
    return tuple(out)
