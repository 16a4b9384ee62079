"""Probes an engine at start-up: version, models, window, open endpoint; reads the label of its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import orjson

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.engine.api import EngineFacts
from sandgate.gateway.engine.transport import Lost, Transport
from sandgate.gateway.engine.wire import GenerateEndpoint, is_shut, words_of

LABEL_S = 5.0
"""Time-out of reading a label in seconds. The engine's core answers in milliseconds, between two steps; a trainer that
sets a version waits for it."""

T = TypeVar("T")


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str = ""


@dataclass(slots=True)
class ProbeResult:
    """What one replica answered."""

    facts: EngineFacts
    endpoint: GenerateEndpoint
    notes: list[str] = field(default_factory=list)
    """Warnings for the engine's operator, one sentence each; `sandgate doctor` prints them."""
    unserved: str = ""
    """Why it answers no request for the model; among the notes, too."""


async def probe(http: Transport, url: str, *, model: str, logprobs_mode: str) -> ProbeResult:
    """Asks one replica what it is. Raises EngineUnavailable if it does not answer, EngineFailed if it is no vLLM
    server."""
    version = await _get(http, f"{url}/version", _Version)
    models = await _get(http, f"{url}/v1/models", _Models)
    facts = EngineFacts(
        version=version.version, logprobs_mode=logprobs_mode, models=[each.id for each in models.data]
    )
    served = next((each for each in models.data if not model or each.id == model), None)
    replica = ProbeResult(facts, await _generate_endpoint(http, url))
    if served is not None:
        facts.max_model_len = served.max_model_len or 0
    else:
        replica.unserved = f"model {model!r} is not served; there are {facts.models}"
        replica.notes.append(replica.unserved)
    if replica.endpoint is GenerateEndpoint.COMPLETIONS:
        replica.notes.append(
            "/inference/v1/generate is closed: start vLLM with --enable-scale-out; "
            "until then /v1/completions is used, without aborts by id and (before 0.33) weight versions"
        )
    return replica


class _Weights(msgspec.Struct):
    weight_version: str


async def label_of(http: Transport, url: str) -> str | None:
    """The label of a replica's weights; None if this server does not report it (vLLM before 0.32, or without
    VLLM_SERVER_DEV_MODE=1). Raises EngineUnavailable if no answer came: an engine that loads weights is slow."""
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
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def names_of(http: Transport, url: str) -> frozenset[str]:
    """What a replica serves: its model, and adapters that are loaded. Raises EngineUnavailable if no answer came, or
    none that can be read."""
    try:
        answer = await http.ask("GET", f"{url}/v1/models", timeout_s=LABEL_S)
    except Lost as error:
        raise EngineUnavailable(f"{url}/v1/models: {error}") from error
    if answer.status != 200:
        raise EngineUnavailable(f"{url}/v1/models answers {answer.status}")
    try:
        return frozenset(each.id for each in msgspec.json.decode(answer.body, type=_Models).data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineUnavailable(f"{url}/v1/models cannot be read: {error}") from error


NO_MODEL = orjson.dumps(
    {"token_ids": [0], "sampling_params": {"max_tokens": 1}, "model": "sandgate-asks-whether-this-is-open"}
)
"""A request that shows whether the endpoint is open. The engine refuses it at the first check, with one line in its
log; nothing is sampled."""


async def _generate_endpoint(http: Transport, url: str) -> GenerateEndpoint:
    status, body = await _ask(http, "POST", url + GenerateEndpoint.GENERATE.value, NO_MODEL)
    return GenerateEndpoint.COMPLETIONS if is_shut(status, body) else GenerateEndpoint.GENERATE


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineFailed(f"{url}: not a vLLM server: {error}") from error
