"""What an engine says about itself at start-up, and whether its logprobs are of the kind we were told."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import exp
from typing import Literal, TypeVar

import msgspec
import orjson

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.alternatives import Top
from sandgate.gateway.conversation.messages import Sampling
from sandgate.gateway.engine.answers import read
from sandgate.gateway.engine.api import EngineFacts, Prompt
from sandgate.gateway.engine.transport import Lost, Transport
from sandgate.gateway.engine.wire import Door, body_of, is_shut, words_of

TEMPERATURE = 0.7
"""For telling raw from processed logprobs: far enough from 1 to move them by tenths of a nat."""

TOLERANCE = 1e-2
"""Nat. Two runs of one prompt on a GPU differ by about 1e-3 in bfloat16; raw and processed by tenths."""

LABEL_S = 5.0
"""The engine's core answers this, between two steps, in milliseconds; a trainer that told a version waits for it."""

T = TypeVar("T")

Kind = Literal["raw", "processed", "logits", "unclear"]


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str = ""


@dataclass(slots=True)
class Found:
    """One replica's answers."""

    facts: EngineFacts
    door: Door
    notes: list[str] = field(default_factory=list)
    """What an operator should know or fix, one sentence each; `sandgate doctor` prints them."""


async def probe(http: Transport, url: str, *, model: str, logprobs_mode: str) -> Found:
    """Ask one replica. Raises EngineUnavailable if it does not answer, EngineFailed if it is no vLLM server."""
    version = await _get(http, f"{url}/version", _Version)
    models = await _get(http, f"{url}/v1/models", _Models)
    facts = EngineFacts(
        version=version.version, logprobs_mode=logprobs_mode, models=[each.id for each in models.data]
    )
    served = next((each for each in models.data if not model or each.id == model), None)
    found = Found(facts, await _door(http, url))
    if served is not None:
        facts.max_model_len = served.max_model_len or 0
    else:
        found.notes.append(f"model {model!r} is not served; there are {facts.models}")
    if found.door is Door.COMPLETIONS:
        found.notes.append(
            "/inference/v1/generate is closed: start vLLM with --enable-scale-out; "
            "until then /v1/completions is used, without weight versions and aborts by id"
        )
    return found


class _Weights(msgspec.Struct):
    weight_version: str


async def label_of(http: Transport, url: str) -> str | None:
    """The label of a replica's weights; None if this server does not tell it (vLLM before 0.32, or without
    VLLM_SERVER_DEV_MODE=1). Raises EngineUnavailable if no answer came: an engine that loads weights is slow to."""
    try:
        answer = await http.ask("GET", f"{url}/weight_info", timeout_s=LABEL_S)
    except Lost as error:
        raise EngineUnavailable(f"{url}/weight_info: {error}") from error
    if answer.status in (502, 503, 504):
        raise EngineUnavailable(f"{url}/weight_info answers {answer.status}")
    try:
        return (
            msgspec.json.decode(answer.body, type=_Weights).weight_version if answer.status == 200 else None
        )
    except msgspec.DecodeError:
        return None


NO_MODEL = orjson.dumps(
    {"token_ids": [0], "sampling_params": {"max_tokens": 1}, "model": "sandgate-asks-whether-this-is-open"}
)
"""Refused at the first check, for one line in the engine's log; nothing is sampled."""


async def _door(http: Transport, url: str) -> Door:
    status, body = await _ask(http, "POST", url + Door.GENERATE.value, NO_MODEL)
    return Door.COMPLETIONS if is_shut(status, body) else Door.GENERATE


async def _ask(http: Transport, method: str, url: str, body: bytes | None = None) -> tuple[int, bytes]:
    try:
        answer = await http.ask(method, url, body=body)
    except Lost as error:
        raise EngineUnavailable(f"{url}: {error}") from error
    return answer.status, answer.body


async def _get(http: Transport, url: str, kind: type[T]) -> T:
    status, body = await _ask(http, "GET", url)
    if status in (502, 503, 504):
        raise EngineUnavailable(f"{url} answers {status}")
    if status != 200:
        raise EngineFailed(f"{url} answers {status}: {words_of(body)}")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"{url}: not a vLLM server: {error}") from error


# -- raw or processed? ----------------------------------------------------------------------------------------------


async def logprobs_kind(http: Transport, url: str, door: Door, *, model: str, ids: tuple[int, ...]) -> Kind:
    """Which kind of logprobs a replica reports, by asking for the same next token at two temperatures.

    `ids`: any short prompt. Raises EngineFailed, EngineUnavailable.
    """
    told = []
    for temperature in (1.0, TEMPERATURE):
        prompt = Prompt(
            request_id="sandgate-doctor",
            ids=array("i", ids),
            sampling=Sampling(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, seed=1),
            max_tokens=1,
            top_logprobs=5,
            model=model,
        )
        status, body = await _ask(
            http, "POST", url + door.value, body_of(door, prompt, prompt.ids, max_tokens=1)
        )
        if status != 200:
            raise EngineFailed(f"{url} answers {status}: {words_of(body)}")
        told.append(read(body, door, top=5, allow_positive=True).top[0])
    return kind_of(told[0], told[1], TEMPERATURE)


def kind_of(at_one: Top, at_t: Top, temperature: float) -> Kind:
    """Judge by the most likely tokens at temperature 1 and at `temperature`.

    raw: the same numbers; processed: the differences between tokens grow by 1 / temperature; logits: no probabilities.
    """
    if any(logprob > TOLERANCE for _, logprob in (*at_one, *at_t)) or sum(exp(p) for _, p in at_one) > 1.01:
        return "logits"
    one, other = dict(at_one), dict(at_t)
    pairs = [(one[token], other[token]) for token in one if token in other]
    if len(pairs) < 2:
        return "unclear"
    same = all(abs(a - b) < TOLERANCE for a, b in pairs)
    a0, b0 = pairs[0]
    scaled = all(abs((a - a0) - (b - b0) * temperature) < TOLERANCE for a, b in pairs)
    if same == scaled:
        return "unclear"
    return "raw" if same else "processed"
