"""Logprobs of an SGLang server: after the temperature, or the model's own; judged by two temperatures. (pure)

SGLang reports log_softmax(logits / temperature), before top_k, top_p and min_p; with SGLANG_RETURN_ORIGINAL_LOGPROB=1
log_softmax(logits). Penalties and grammars are in both (layers/sampler.py, 0.5.23).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import exp

import orjson

from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.logprobs import ALTERNATIVES, MODES, TOLERANCE, Kind
from sandgate.gateway.engine.responses import SENTINEL
from sandgate.gateway.engine.sglang.wire import SglangWay
from sandgate.gateway.journal.top_logprobs import Top

TEMPERATURES = (1.0, 0.5)

SPREAD = 1.0
"""Nats between the most and the least likely of the listed tokens, below which the noise of a busy engine in bfloat16
(an eighth of a nat) could be taken for a difference."""

RATIO = 1.5
"""Between the spreads at both temperatures: 1 if the temperature does not show, 2 if it does."""


def measuring_request(
    way: SglangWay, ids: Sequence[int], temperature: float, *, model: str, request_id: str
) -> bytes:
    """One token at this temperature, with the most likely ones beside it."""
    prompt = Prompt(
        request_id=request_id,
        ids=array("i", ids),
        sampling=SamplingParams(temperature=temperature),
        max_tokens=1,
        top_logprobs=ALTERNATIVES + 1,
        model=model,
    )
    return way.request(prompt, prompt.ids, request_id=request_id, max_tokens=1).body


def alternatives_of(body: bytes) -> Top:
    """The top logprobs of an answer. Raises EngineFailed."""
    answer = orjson.loads(body) if body else {}
    rows = ((answer or {}).get("meta_info") or {}).get("output_top_logprobs") or [[]]
    return tuple((token, SENTINEL if p is None else p) for p, token, _ in rows[0] or ())


def kind_of(plain: Top, cold: Top) -> Kind:
    """The kind, by the same position at temperature 1 and at half of it."""
    if min(len(plain), len(cold)) < 2:
        return "unclear"
    for listed in (plain, cold):
        if max(p for _, p in listed) > TOLERANCE or sum(exp(p) for _, p in listed) > 1 + TOLERANCE:
            return "logits"
    spread, colder = (listed[0][1] - listed[-1][1] for listed in (plain, cold))
    if spread < SPREAD:
        return "unclear"
    return "processed" if colder / spread > RATIO else "raw"


def against(kind: Kind, mode: str) -> str:
    """Why a replica with logprobs of this kind must not be used where the settings say `mode`; empty if it may be, as
    is one whose model finds all tokens about as likely: no temperature shows there."""
    if kind == "unclear" or MODES.get(mode, kind) == kind:
        return ""
    if kind == "logits":
        return "it reports logits, not log-probabilities"
    fix = (
        "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB, or set engine.logprobsMode: raw_logprobs, which is right "
        "for training only at temperature 1 without top_p, top_k and min_p"
        if kind == "raw"
        else "set engine.logprobsMode: processed_logprobs, which it is, or start SGLang with "
        "SGLANG_RETURN_ORIGINAL_LOGPROB=1"
    )
    return f"its logprobs are {kind}, but engine.logprobsMode is {mode}: every record would say so wrongly; {fix}"
