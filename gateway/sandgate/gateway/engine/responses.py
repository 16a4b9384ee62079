"""Decodes answers of vLLM, JSON or SSE events, into packed arrays; refuses values that cannot be trusted. (pure)

Both logprob shapes are read: integer `token_id` (0.32 and later) and `token: "token_id:N"` (up to 0.31).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import cast

import msgspec

from sandgate.contract.errors import EngineFailed, TokenizerMismatch
from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.engine.api import Finish, VersionSpan
from sandgate.gateway.engine.labels import VERSION_MAX, number_of, shown
from sandgate.gateway.engine.wire import GenerateEndpoint
from sandgate.gateway.journal.top_logprobs import Top

SENTINEL = -9999.0
"""vLLM's stand-in for a missing, NaN or -inf logprob."""

POSITIVE_MAX = 1e-6
"""A log-probability is <= 0; float32 log-softmax may round a certain token to a hair above."""


class _Span(msgspec.Struct, gc=False):
    version: str | int
    start: int
    end: int


class _Alternative(msgspec.Struct, gc=False):
    logprob: float
    token_id: int = -1
    token: str = ""


class _Entry(msgspec.Struct, gc=False):
    logprob: float | None = None
    token_id: int = -1
    token: str = ""


class _EntryTop(_Entry):
    top_logprobs: list[_Alternative] = []


class _Content(msgspec.Struct, gc=False):
    content: list[_Entry] | None = None


class _ContentTop(msgspec.Struct, gc=False):
    content: list[_EntryTop] | None = None


class _Columns(msgspec.Struct):
    """Logprobs as /v1/completions has them."""

    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Content | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    weight_versions: list[_Span] | None = None


class _ChoiceTop(_Choice, gc=False):
    logprobs: _ContentTop | None = None  # type: ignore[assignment]


class _ChoiceColumns(_Choice):
    logprobs: _Columns | None = None  # type: ignore[assignment]


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Range(msgspec.Struct, gc=False):
    offset: int
    length: int


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None
    prompt_token_ids: list[int] | None = None
    mm_placeholders: dict[str, list[_Range]] | None = None


class _AnswerTop(_Answer, gc=False):
    choices: list[_ChoiceTop] = []  # type: ignore[assignment]


class _AnswerColumns(_Answer):
    choices: list[_ChoiceColumns] = []  # type: ignore[assignment]


_PLAIN = msgspec.json.Decoder(_Answer)
_TOP = msgspec.json.Decoder(_AnswerTop)
_COLUMNS = msgspec.json.Decoder(_AnswerColumns)
_PLAIN_EVENTS = msgspec.json.Decoder(list[_Answer])
_TOP_EVENTS = msgspec.json.Decoder(list[_AnswerTop])


@dataclass(slots=True)
class Step:
    """One answer, or one event of a stream: aligned ids and logprobs (maybe none), and what ended it."""

    ids: Ids = field(default_factory=lambda: array("i"))
    logprobs: Floats = field(default_factory=lambda: array("f"))
    top: tuple[Top, ...] = ()
    finish: Finish | None = None
    stop_reason: str | int | None = None
    labels: tuple[tuple[str | int, int, int], ...] | None = None
    """(weight version label, start, end), as reported; None if the engine does not report them."""
    cached_tokens: int = 0
    prompt: Ids | None = None
    """The prompt as the engine made it of the placeholders and the pictures, in the first step of an answer."""
    images: tuple[tuple[int, int], ...] = ()
    """(offset, length) of each picture in it."""

    def check(self, vocab_size: int = 0) -> None:
        """Raises EngineFailed for sentinels, NaN, positive or missing logprobs, and ids that do not exist."""
        check_values(self.ids, self.logprobs, vocab_size)


class ErrorInAnswer(Exception):
    """An error that stands in an answer of status 200: vLLM begins a stream before it looks at all of the request."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.words, self.status = words, status

    def failure(self) -> EngineFailed:
        """What it means where it cannot be a refusal: the engine was at work."""
        return EngineFailed(f"the engine failed: {self.words[:500]}")


def _said(error: _Error | str) -> ErrorInAnswer:
    if isinstance(error, str):
        return ErrorInAnswer(error, 500)
    return ErrorInAnswer(error.message, error.code if isinstance(error.code, int) else 500)


def read(
    body: bytes | memoryview,
    endpoint: GenerateEndpoint,
    *,
    top: int = 0,
    vocab_size: int = 0,
    allow_positive: bool = False,
    telling: bool = False,
) -> Step:
    """Decodes an answer and checks it. `vocab_size` 0 = unknown; `allow_positive` is for recognising logits modes.

    Raises EngineFailed, which names what is wrong; for an error that stands in the answer, if `telling`, ErrorInAnswer.

    256 tokens (35 kB of JSON) take 0.08 ms, most of it skipping fields that nobody asked for.
    """
    decoder = _COLUMNS if endpoint is GenerateEndpoint.COMPLETIONS else _TOP if top else _PLAIN
    try:
        answer = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineFailed(f"the engine's answer cannot be read: {error}") from error
    if answer.error is not None:
        said = _said(answer.error)
        raise said if telling else said.failure()
    vocabulary = None if allow_positive else vocab_size
    step = _step(answer.choices[0], top, vocabulary) if answer.choices else Step()
    if answer.usage is not None and answer.usage.prompt_tokens_details is not None:
        step.cached_tokens = answer.usage.prompt_tokens_details.cached_tokens or 0
    if answer.prompt_token_ids is not None:
        step.prompt = array("i", answer.prompt_token_ids)
        told = answer.mm_placeholders or {}
        at = [*told.get("image", ()), *told.get("video", ())]
        step.images = tuple(sorted((one.offset, one.length) for one in at))
    return step


def read_together(
    payloads: Sequence[bytes], endpoint: GenerateEndpoint, *, top: int = 0, vocab_size: int = 0
) -> Iterator[Step]:
    """As `read(telling=True)` of each of these events, which came at once; the first ones that say nothing but tokens
    are one step.

    What is wrong is raised behind the events before it.
    """
    count = 0
    several = endpoint is GenerateEndpoint.GENERATE and len(payloads) > 1
    joined = _joined(payloads, top) if several else None
    if joined is not None:
        choice, count = joined
        try:
            step = _step(choice, top, vocab_size)
        except EngineFailed:
            count = 0  # one by one: what came before the culprit is good
        else:
            yield step
    for payload in payloads[count:]:
        yield read(payload, endpoint, top=top, vocab_size=vocab_size, telling=True)


def _joined(payloads: Sequence[bytes], top: int) -> tuple[_Choice, int] | None:
    """One choice with the tokens of the first events, and how many these are; None where that is not worth it."""
    ids: list[int] = []
    entries: list[_Entry] = []
    count = 0
    for answer in _decoded(payloads, top):
        if (content := _only_tokens(answer)) is None:
            break
        ids += answer.choices[0].token_ids or ()
        entries += content
        count += 1
    return (_Choice(ids, _Content(entries)), count) if count > 1 else None


def _decoded(payloads: Sequence[bytes], top: int) -> Iterable[_Answer]:
    """The events before the first that cannot be read (`read` says why). As one array, most often: it takes half."""
    try:
        answers: Sequence[_Answer] = (_TOP_EVENTS if top else _PLAIN_EVENTS).decode(
            b"[%b]" % b",".join(payloads)
        )
        if len(answers) == len(payloads):
            return answers
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return _one_by_one(payloads, top)


def _one_by_one(payloads: Sequence[bytes], top: int) -> Iterator[_Answer]:
    for payload in payloads:
        try:
            yield (_TOP if top else _PLAIN).decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return


def _only_tokens(answer: _Answer) -> list[_Entry] | None:
    """The logprobs of an event that says nothing but tokens, as many as it has ids."""
    if (
        len(answer.choices) != 1
        or answer.usage
        or answer.error is not None
        or answer.prompt_token_ids is not None
    ):
        return None
    choice = answer.choices[0]
    if choice.finish_reason is not None or choice.weight_versions is not None or choice.logprobs is None:
        return None
    content = choice.logprobs.content or []
    return content if len(content) == len(choice.token_ids or ()) else None


def _step(choice: _Choice, top: int, vocabulary: int | None) -> Step:
    logprobs = choice.logprobs
    ids = choice.token_ids or []
    alternatives: tuple[Top, ...] = ()
    if logprobs is None:
        numbers: Sequence[float | None] = ()
    elif isinstance(logprobs, _Columns):
        numbers = logprobs.token_logprobs
        if top and logprobs.top_logprobs:
            alternatives = tuple(_best_of(row or {}, top) for row in logprobs.top_logprobs)
    else:
        content: Sequence[_Entry] = logprobs.content or ()
        numbers = [entry.logprob for entry in content]
        _same_ids(ids, content)
        if top:
            alternatives = tuple(_best(cast(_EntryTop, entry).top_logprobs, top) for entry in content)
    if vocabulary is not None:
        check_values(ids, numbers, vocabulary)  # before packing: an array would box every number anew
    try:
        packed_ids, packed = array("i", ids), array("f", cast(Sequence[float], numbers))
    except (OverflowError, TypeError):
        raise EngineFailed(_culprit(ids, numbers)) from None
    spans = choice.weight_versions
    return Step(
        ids=packed_ids,
        logprobs=packed,
        top=alternatives,
        finish=_finish(choice.finish_reason),
        stop_reason=choice.stop_reason,
        labels=None if spans is None else tuple((span.version, span.start, span.end) for span in spans),
    )


def _same_ids(ids: Sequence[int], content: Sequence[_Entry]) -> None:
    named = [entry.token_id for entry in content]
    if named == ids:
        return
    if content and content[0].token_id < 0:
        named = [_id_of(entry.token) for entry in content]
    if len(named) != len(ids):
        return  # the caller refuses it, and names the counts
    for position, (mine, theirs) in enumerate(zip(ids, named, strict=True)):
        if mine != theirs:
            raise EngineFailed(f"token {position}: the id is {mine}, but its logprob is of id {theirs}")


def _id_of(token: str) -> int:
    """The id of `token_id:N`, the shape up to 0.31; -1 for a decoded token, which does not name one."""
    kind, _, number = token.partition(":")
    return int(number) if kind == "token_id" and number.isdigit() else -1


def _best(alternatives: Sequence[_Alternative], top: int) -> Top:
    named = [(a.token_id if a.token_id >= 0 else _id_of(a.token), a.logprob) for a in alternatives]
    return tuple(sorted(named, key=lambda pair: -pair[1])[:top])


def _best_of(row: dict[str, float], top: int) -> Top:
    return tuple(sorted(((_id_of(t), p) for t, p in row.items()), key=lambda pair: -pair[1])[:top])


FINISHES: dict[str | None, Finish | None] = {None: None, "stop": "stop", "length": "length", "abort": "abort"}


def _finish(reason: str | None) -> Finish | None:
    if reason not in FINISHES:
        raise EngineFailed(f"the engine ended with {reason!r}, which is none of stop, length, abort")
    return FINISHES[reason]


def check_values(ids: Sequence[int], numbers: Sequence[float | None], vocab_size: int) -> None:
    """Raises EngineFailed for sentinels, NaN, infinities, positive or missing logprobs, and ids that do not exist."""
    if len(numbers) != len(ids):
        raise EngineFailed(f"the engine answered {len(ids)} ids and {len(numbers)} logprobs")
    if not ids:
        return
    logprobs = cast(Sequence[float], numbers)
    try:
        # A sum is NaN as soon as one of its terms is: passes in C instead of one in Python.
        good = isfinite(sum(logprobs)) and min(logprobs) > SENTINEL and max(logprobs) <= POSITIVE_MAX
    except TypeError:  # None among them
        good = False
    if not good or min(ids) < 0 or max(ids) > VERSION_MAX or (vocab_size and max(ids) >= vocab_size):
        foreign = good and min(ids) >= 0 and max(ids) <= VERSION_MAX  # ids that another vocabulary has
        raise (TokenizerMismatch if foreign else EngineFailed)(_culprit(ids, numbers, vocab_size))


def _culprit(ids: Sequence[int], logprobs: Sequence[float | None], vocab_size: int = 0) -> str:
    """Which token cannot be trusted, and why. There are as many ids as logprobs."""
    for index, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        if logprob is None or not isfinite(logprob):
            return f"token {index} (id {token}): its logprob is {logprob}"
        if logprob <= SENTINEL:
            return f"token {index} (id {token}): logprob {logprob:g} is the engine's mark for a missing or NaN logprob"
        if logprob > POSITIVE_MAX:
            return f"token {index} (id {token}): logprob {logprob:g} is positive; is --logprobs-mode a logits mode?"
        if not 0 <= token < (vocab_size or VERSION_MAX):
            return f"token {index}: id {token} is outside the vocabulary [0, {vocab_size or VERSION_MAX})"
    return "ids or logprobs are out of range"


class Unlabelled(EngineFailed):
    """Tokens were sampled under a label without a number, by an engine whose label should have one: their version is
    unknown. (reason EngineFailed)"""


def version_of(label: str | int, told: int) -> int:
    """The version in a label; for a label without a number, the version that the trainer set (`told`)."""
    number = number_of(label)
    version = told if number is None else number
    if not 0 <= version <= VERSION_MAX:
        raise EngineFailed(f"weight version {label!r} does not fit a non-negative int32")
    return version


def spans_of(
    labels: Sequence[tuple[str | int, int, int]] | None,
    count: int,
    *,
    told: int,
    offset: int = 0,
    numbered: bool = False,
) -> tuple[VersionSpan, ...]:
    """Spans that cover [offset, offset + count): as the engine reported them for `count` tokens, else one span of the
    version `told`.

    `numbered`: labels had to carry versions when this was asked for. Neighbours of one version are merged. Raises
    EngineFailed for spans with gaps or overlaps; Unlabelled for a label without a number if `numbered`, or behind a
    label with a number. In front of the first numbered label it is from before the first weight update.
    """
    if count == 0:
        return ()
    if not labels:
        return (VersionSpan(told, offset, offset + count),)
    spans: list[VersionSpan] = []
    covered, previous = 0, labels[0][0]
    for label, start, end in labels:
        end = min(end, count)
        if start >= end:
            continue
        if start != covered:
            raise EngineFailed(
                f"weight_versions: a span starts at token {start}, the one before ends at {covered}"
            )
        if number_of(label) is None and (numbered or (spans and number_of(previous) is not None)):
            raise Unlabelled(
                f"tokens {offset + start}:{offset + end} were sampled by weights labelled {shown(label)}, which is no "
                f"version, but version {told} was told and labels carry versions"
            )
        version, covered, previous = version_of(label, told), end, label
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].start, offset + end)
        else:
            spans.append(VersionSpan(version, offset + start, offset + end))
    if covered != count:
        raise EngineFailed(f"weight_versions cover {covered} of {count} tokens")
    return tuple(spans)
