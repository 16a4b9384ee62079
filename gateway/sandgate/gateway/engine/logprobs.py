"""Logprobs mode of an engine (raw, processed, logits), judged by few sampled tokens whose answers show it. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from math import exp
from typing import Any, Literal

import orjson

from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.responses import SENTINEL, read
from sandgate.gateway.engine.wire import GenerateEndpoint, body_of
from sandgate.gateway.journal.top_logprobs import Top

ASKS = "sandgate-measures-"
"""Prefix of the request ids of measuring generations, by which an engine's log, or a scripted engine, knows them."""

ALTERNATIVES = 4
"""Top logprobs asked for beside the sampled token: five in all, which servers allow that allow any."""

TOLERANCE = 1e-2
"""Tolerance for a sum of probabilities over 1, and for a log-probability over 0."""

PROMPTS = ((5, 6, 7), (7, 5, 11, 6), (11, 3, 8, 5, 9))
"""Prompts of ids that every vocabulary has. The next one is tried where an answer is unclear."""

ALONE = (5, 6)
"""Tokens of which each in turn is the only one allowed, where an engine gives no alternatives."""

Kind = Literal["raw", "processed", "logits", "unclear"]

UNCLEAR = "its answers do not show in which --logprobs-mode it is"

BELIEVED = "it cannot be measured, and its own settings say the mode of its logprobs"
"""In the refusal of a server that stands before engines and knows their mode: it is used as the settings say."""

MODES: dict[str, Kind] = {"raw_logprobs": "raw", "processed_logprobs": "processed"}


def kind_of(listed: Top) -> Kind:
    """The kind of an engine's logprobs, by the five most likely tokens of one position that was sampled with `top_k` 1.

    processed: all but the best (and what ties with it) were filtered out, so they have no logprob; raw: the filter does
    not show; logits: no probabilities. Unlike a comparison of two temperatures this does not mistake the noise of a
    busy engine in bfloat16 (an eighth of a nat) for a difference, and there is none for it to hide.
    """
    real = [logprob for _, logprob in listed if logprob > SENTINEL]
    if len(listed) < 2 or not real:
        return "unclear"
    if max(real) > TOLERANCE or (mass := sum(map(exp, real))) > 1 + TOLERANCE:
        return "logits"
    if len(real) < len(listed):
        return "processed" if mass > 1 - TOLERANCE else "logits"
    return "unclear" if max(real) - min(real) == 0.0 else "raw"


def kind_of_alone(alone: Sequence[float], greedy: float) -> Kind:
    """The kind, by the logprobs of two tokens, each sampled where it was the only one allowed, and of the greedy one.

    processed: each was certain; raw: the restriction does not show, and two tokens cannot both be certain; logits: no
    probabilities. Logits that are all below zero, the best one's too, are taken for raw logprobs; a turn that has one
    above is refused.
    """
    if min(*alone, greedy) <= SENTINEL:
        return "unclear"
    if max(*alone, greedy) > TOLERANCE:
        return "logits"
    if min(alone) > -TOLERANCE:
        return "processed"
    return "logits" if sum(map(exp, alone)) > 1 + TOLERANCE else "raw"


def measuring(
    endpoint: GenerateEndpoint, model: str, prompts: Sequence[Sequence[int]] = PROMPTS
) -> Generator[bytes, bytes | None, Kind]:
    """The measurement: yields request bodies, is sent the engine's answers (None: refused), returns the kind. The
    prompts are tried in turn. An engine with a --max-logprobs below ALTERNATIVES + 1 refuses the first question.
    Raises EngineFailed for an answer that cannot be read."""
    for ids in prompts:
        answer = yield measuring_request(endpoint, model, ids)
        kind = "unclear" if answer is None else kind_of(alternatives_of(answer, endpoint))
        if kind == "unclear":
            kind = yield from _measuring_alone(endpoint, model, ids)
        if kind != "unclear":
            return kind
    return "unclear"


def _measuring_alone(
    endpoint: GenerateEndpoint, model: str, ids: Sequence[int]
) -> Generator[bytes, bytes | None, Kind]:
    told: list[float] = []
    for only in (*ALONE, None):
        answer = yield alone_request(endpoint, model, ids, only)
        step = None if answer is None else read(answer, endpoint, allow_positive=True)
        if step is None or len(step.logprobs) != 1 or only not in (None, step.ids[0]):
            return "unclear"
        told.append(step.logprobs[0])
    return kind_of_alone(told[:-1], told[-1])


def alone_request(endpoint: GenerateEndpoint, model: str, ids: Sequence[int], only: int | None) -> bytes:
    """Asks for one token without alternatives: `only` this one is allowed; None: any, greedily."""
    prompt = Prompt(
        request_id="",
        ids=array("i", ids),
        sampling=SamplingParams(temperature=0.0 if only is None else 1.0),
        max_tokens=1,
        model=model,
    )
    body: dict[str, Any] = orjson.loads(body_of(endpoint, prompt, prompt.ids, max_tokens=1))
    if only is not None:
        body.get("sampling_params", body)["allowed_token_ids"] = [only]
    return orjson.dumps(body)


def measuring_request(endpoint: GenerateEndpoint, model: str, ids: Sequence[int]) -> bytes:
    """The request whose answer `alternatives_of` reads."""
    prompt = Prompt(
        request_id="",
        ids=array("i", ids),
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=1, min_p=0.0),
        max_tokens=1,
        top_logprobs=ALTERNATIVES,
        model=model,
    )
    return body_of(endpoint, prompt, prompt.ids, max_tokens=1)


def alternatives_of(body: bytes, endpoint: GenerateEndpoint) -> Top:
    """The top logprobs that `kind_of` judges; empty if the engine gave none. Raises EngineFailed."""
    top = read(body, endpoint, top=ALTERNATIVES + 1, allow_positive=True).top
    return top[0] if top else ()


def against(kind: Kind, mode: str) -> str:
    """Why a replica with logprobs of this kind must not be used where the settings say `mode`; empty if it may be."""
    if MODES.get(mode, kind) == kind:
        return ""
    if kind == "unclear":
        return f"{UNCLEAR}, and a record would say {mode}"
    if kind == "logits":
        return "it reports logits, not log-probabilities: start it with --logprobs-mode processed_logprobs"
    fix = (
        "start it with --logprobs-mode processed_logprobs, or set engine.logprobsMode: raw_logprobs, which is right "
        "for training only at temperature 1 without top_p, top_k, min_p and penalties"
        if kind == "raw"
        else "set engine.logprobsMode: processed_logprobs, which it is"
    )
    return f"its logprobs are {kind}, but engine.logprobsMode is {mode}: every record would say so wrongly; {fix}"
