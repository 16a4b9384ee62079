"""SglangEngine: SGLang behind the pool, and what one server says of itself."""

from __future__ import annotations

import uuid
from typing import TypeVar

import msgspec

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.engine.api import EngineFacts
from sandgate.gateway.engine.dialect import Dialect, Found
from sandgate.gateway.engine.facts import LABEL_S
from sandgate.gateway.engine.health import PROBE_TIMEOUT_S, Probe
from sandgate.gateway.engine.logprobs import ASKS, PROMPTS, Kind
from sandgate.gateway.engine.logprobs_check import sampled
from sandgate.gateway.engine.pool import EnginePool
from sandgate.gateway.engine.sglang import logprobs
from sandgate.gateway.engine.sglang.server_info import ServerInfo
from sandgate.gateway.engine.sglang.wire import GENERATE, PENALTIES, SglangWay
from sandgate.gateway.engine.transport import HttpAnswer, Lost, Transport
from sandgate.gateway.engine.way import Way
from sandgate.gateway.engine.wire import words_of

MODEL_INFO = ("/model_info", "/get_model_info")
SERVER_INFO = ("/server_info", "/get_server_info")
"""The new name, then the one of older servers."""

T = TypeVar("T")


class _ModelInfo(msgspec.Struct):
    is_generation: bool
    weight_version: str | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class SglangDialect:
    """See `Dialect`."""

    gauges = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
    """With --enable-metrics only; without it each gateway goes by what it sends itself."""
    serves_adapters = False
    """It answers a request for an adapter that it does not have with what it has."""
    over_sampled = PENALTIES
    """The repetition penalty does not count the prompt there, either (sampling/penaltylib, 0.5.23)."""
    unasked = SglangWay()

    async def probe(self, http: Transport, url: str, *, model: str, logprobs_mode: str) -> Found:
        """See `Dialect.probe`."""
        about = await _first(http, url, MODEL_INFO, _ModelInfo)
        if not about.is_generation:
            raise EngineFailed(f"{url}: this SGLang serves embeddings, not generation")
        server = await _first(http, url, SERVER_INFO, ServerInfo)
        if why := _unfit(server):
            raise EngineFailed(f"{url}: {why}")
        models = (await _first(http, url, ("/v1/models",), _Models)).data
        base = next((each for each in models if each.parent is None), None)
        way = SglangWay(
            mode=logprobs_mode,
            seeds=server.enable_deterministic_inference,
            served=base.id if base else "",
            label=(server.label if server.tokenizer_worker_num > 1 else about.weight_version) or "",
            adapters=frozenset(each.id for each in models if each.parent is not None),
            workers=server.tokenizer_worker_num,
        )
        context = (base.max_model_len if base else 0) or 0
        facts = EngineFacts(
            name="sglang",
            version=server.version,
            logprobs_mode=logprobs_mode,
            max_model_len=context,
            room=server.room(context),
            models=[each.id for each in models],
        )
        notes = []
        if model and model not in facts.models:
            notes.append(f"model {model!r} is not served; there are {facts.models}")
        if not (server.incremental_streaming_output or server.stream_output):
            notes.append(
                "each event of a stream has all tokens so far, which is slow for long answers: start SGLang with "
                "--incremental-streaming-output"
            )
        return Found(facts, way, notes)

    async def label_of(self, http: Transport, url: str, way: Way) -> str | None:
        """See `Dialect.label_of`. Of several HTTP workers one was told the label, and nobody can choose which one
        answers: there the schedulers are asked, which sample by theirs."""
        many = isinstance(way, SglangWay) and way.workers > 1
        paths = SERVER_INFO if many else MODEL_INFO
        try:
            answer = await _ask(http, url, paths, LABEL_S)
        except Lost as error:
            raise EngineUnavailable(f"{url}{paths[0]}: {error}") from error
        if answer.status in (502, 503, 504):
            raise EngineUnavailable(f"{url}{paths[0]} answers {answer.status}")
        if answer.status != 200:
            return None
        try:
            if many:
                return msgspec.json.decode(answer.body, type=ServerInfo).label
            return msgspec.json.decode(answer.body, type=_ModelInfo).weight_version
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def names_of(self, http: Transport, url: str) -> frozenset[str]:
        """See `Dialect.names_of`."""
        return frozenset()  # nothing that may be relied on

    async def check(self, http: Transport, url: str) -> Probe:
        """See `Dialect.check`. SGLang's /health samples a token, which waits while a weight update holds the engine:
        then it counts whether the server answers at all. A scheduler that dies takes its server with it."""
        try:
            answer = await http.ask("GET", f"{url}/health", timeout_s=PROBE_TIMEOUT_S)
            return Probe(None if answer.status == 200 else f"/health answers {answer.status}")
        except Lost as error:
            if error.refused:
                return Probe(str(error), dead=True)
        try:
            answer = await _ask(http, url, MODEL_INFO, PROBE_TIMEOUT_S)
        except Lost as error:
            return Probe(str(error), error.refused, silent=True)
        return Probe(None if answer.status == 200 else f"{MODEL_INFO[0]} answers {answer.status}")

    async def measure(self, http: Transport, url: str, way: Way, *, model: str) -> Kind:
        """See `Dialect.measure`."""
        assert isinstance(way, SglangWay)
        kind: Kind = "unclear"
        for ids in PROMPTS:
            answers = []
            for temperature in logprobs.TEMPERATURES:
                name = ASKS + uuid.uuid4().hex
                body = logprobs.measuring_request(way, ids, temperature, model=model, request_id=name)
                answers.append(await sampled(http, url, GENERATE, body))
            kind = logprobs.kind_of(*map(logprobs.alternatives_of, answers))
            if kind != "unclear":
                break
        return kind

    def against(self, kind: Kind, mode: str) -> str:
        """See `Dialect.against`."""
        return logprobs.against(kind, mode)


SGLANG: Dialect = SglangDialect()


class SglangEngine(EnginePool):
    """An `Engine` over one or more SGLang servers. Make it with `connect`."""

    dialect = SGLANG


def _unfit(server: ServerInfo) -> str:
    """Why what it samples would not be what the record says; empty: it would."""
    if server.allow_auto_truncate:
        return (
            "this SGLang cuts prompts that are too long, so that turns would be sampled from other ids than the record "
            "has: start it without --allow-auto-truncate"
        )
    if server.is_lossy:
        return (
            "this SGLang takes drafts more often than its model would sample them, so that its logprobs are not those "
            "of what was sampled: start it without --speculative-accept-threshold-single and "
            "--speculative-accept-threshold-acc"
        )
    if server.tokenizer_worker_num > 1 and server.label is None:
        return (
            "one of this SGLang's HTTP workers knows the label of its weights, and its schedulers do not say theirs: "
            "start it without --tokenizer-worker-num, or use SGLang 0.5.23"
        )
    return ""


async def _ask(http: Transport, url: str, paths: tuple[str, ...], timeout_s: float = 10.0) -> HttpAnswer:
    """The answer of the first of these paths that is served; raises Lost."""
    answer = HttpAnswer(404, b"")
    for path in paths:
        answer = await http.ask("GET", url + path, timeout_s=timeout_s)
        if answer.status != 404:
            break
    return answer


async def _first(http: Transport, url: str, paths: tuple[str, ...], kind: type[T]) -> T:
    try:
        answer = await _ask(http, url, paths)
    except Lost as error:
        raise EngineUnavailable(f"{url}{paths[0]}: {error}") from error
    if answer.status in (502, 503, 504):
        raise EngineUnavailable(f"{url}{paths[0]} answers {answer.status}")
    if answer.status == 404:
        raise EngineFailed(f"{url}{paths[0]}: no such endpoint: this is no SGLang server")
    if answer.status != 200:
        raise EngineFailed(f"{url}{paths[0]} answers {answer.status}: {words_of(answer.body)}")
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineFailed(f"{url}{paths[0]}: not an SGLang server: {error}") from error
