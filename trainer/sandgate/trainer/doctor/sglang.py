"""Checks of a running SGLang: does it take ids, and give back exactly what it sampled? By asking it, over its wire."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from sandgate.contract.errors import SandgateError
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.logprobs import ASKS, PROMPTS
from sandgate.gateway.engine.sglang.logprobs import (
    TEMPERATURES,
    against,
    alternatives_of,
    kind_of,
    measuring_request,
)
from sandgate.gateway.engine.sglang.server_info import ServerInfo
from sandgate.gateway.engine.sglang.wire import GENERATE, SglangWay
from sandgate.trainer.doctor.asked import CheckedEngine
from sandgate.trainer.doctor.findings import Finding, fail, ok, warn

WANTED = "processed_logprobs"
TOKENS = 4


def is_sglang(engine: CheckedEngine) -> bool:
    """Whether the server says so."""
    status, body = engine.ask("GET", "/model_info")
    return status == 200 and isinstance(body, dict) and "is_generation" in body


def settings(engine: CheckedEngine) -> Iterator[Finding]:
    """How it was started."""
    status, told = engine.ask("GET", "/server_info")
    if status != 200 or not isinstance(told, dict):
        yield warn("version", f"/server_info is {status}", "needs SGLang 0.5.23 or newer")
        return
    yield ok("version", f"SGLang {told.get('version', '')}")
    if told.get("allow_auto_truncate"):
        yield fail("prompts", "SGLang cuts those that are too long", "start it without --allow-auto-truncate")
    yield from _drafts(told)
    if not told.get("incremental_streaming_output"):
        yield warn(
            "streams", "each event has all tokens so far", "start SGLang with --incremental-streaming-output"
        )
    if not told.get("enable_deterministic_inference"):
        yield warn(
            "seed", "requests with a seed are refused", "start SGLang with --enable-deterministic-inference"
        )


def _drafts(told: dict[str, Any]) -> Iterator[Finding]:
    try:
        info = msgspec.convert(told, ServerInfo)
    except msgspec.ValidationError as error:
        yield fail("settings", f"/server_info cannot be read: {error}", "change SGLang's version")
        return
    if info.is_lossy:
        yield fail(
            "drafts",
            "SGLang takes them more often than its model would sample them",
            "start it without --speculative-accept-threshold-single and --speculative-accept-threshold-acc",
        )


def sampling(engine: CheckedEngine) -> Iterator[Finding]:
    """One generation, as a gateway reads it."""
    prompt = Prompt(
        request_id=f"doctor-{uuid.uuid4().hex}",
        ids=array("i", engine.probe),
        sampling=SamplingParams(),
        max_tokens=TOKENS,
    )
    way = SglangWay()
    asked = way.request(prompt, prompt.ids, request_id=prompt.request_id, max_tokens=TOKENS)
    status, body = _post(engine, asked.body)
    if status != 200:
        yield fail("generate", f"{GENERATE} is {status}: {body[:200]!r}", "see SGLang's log")
        return
    try:
        step = way.reader(prompt, prompt.ids, vocab_size=0)(body)
    except SandgateError as error:
        yield fail("generate", str(error), "this engine's answers cannot be trusted; change its version")
        return
    yield ok("generate", f"{len(step.ids)} ids, each with its logprob")
    if step.labels is None:
        yield warn(
            "versions",
            "the engine does not say which weights sampled a token",
            "tokens count as of the version last set; SGLang 0.5.23 says it",
        )
    else:
        yield ok("versions", f"told for each token; now {step.labels[-1][0] if step.labels else ''!r}")
    yield _mode(engine)


def _mode(engine: CheckedEngine) -> Finding:
    kind = "unclear"
    for ids in (engine.probe, *PROMPTS):
        told: list[Any] = []
        for temperature in TEMPERATURES:
            name = ASKS + uuid.uuid4().hex
            body = measuring_request(SglangWay(), ids, temperature, model="", request_id=name)
            status, answer = _post(engine, body)
            told.append(alternatives_of(answer) if status == 200 else ())
        kind = kind_of(*told)
        if kind == "processed":
            return ok("logprobs mode", "of after the temperature; top_p, top_k and min_p are refused")
        if why := against(kind, WANTED):
            return (fail if kind == "logits" else warn)("logprobs mode", kind, why)
    return warn("logprobs mode", "the engine gives too few alternatives to tell", f"it must be {WANTED}")


def _post(engine: CheckedEngine, body: bytes) -> tuple[int, bytes]:
    answer = engine.http.post(GENERATE, content=body, headers={"Content-Type": "application/json"})
    return answer.status_code, answer.content
