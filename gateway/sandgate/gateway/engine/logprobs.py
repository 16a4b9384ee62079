"""Logprobs mode of an engine (raw, processed, logits), judged by one sampled token whose answer shows it. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import exp
from typing import Literal

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

Kind = Literal["raw", "processed", "logits", "unclear"]

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
    if kind == "unclear" or MODES.get(mode, kind) == kind:
        return ""
    if kind == "logits":
        return "it reports logits, not log-probabilities: start it with --logprobs-mode processed_logprobs"
    fix = (
        "start it with --logprobs-mode processed_logprobs, or set engine.logprobsMode: raw_logprobs, which is right "
        "for training only at temperature 1 without top_p, top_k, min_p and penalties"
        if kind == "raw"
        else "set engine.logprobsMode: processed_logprobs, which it is"
    )
    return f"its logprobs are {kind}, but engine.logprobsMode is {mode}: every record would say so wrongly; {fix}"
