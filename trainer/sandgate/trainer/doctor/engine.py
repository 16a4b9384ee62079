"""Checks a running vLLM (or SGLang: sglang.py) over HTTP: whether it takes token ids and returns what it sampled."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any

import httpx
import orjson

from sandgate.contract.errors import EngineFailed
from sandgate.gateway.conversation.messages import Message, SamplingParams, TextPart
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.labels import beyond, number_of
from sandgate.gateway.engine.logprobs import PROMPTS, UNCLEAR, Kind, measuring
from sandgate.gateway.engine.wire import FORMS_FIX, GenerateEndpoint, body_of, is_shut, words_of
from sandgate.gateway.tokens.api import Codec
from sandgate.trainer.doctor import sglang
from sandgate.trainer.doctor.asked import CheckedEngine
from sandgate.trainer.doctor.findings import Finding, fail, ok, skip, warn

TIMEOUT_S = 60.0
"""The first generation after a start compiles."""
GENERATE_FLAG = "--enable-scale-out"
VERSION_MIN = (0, 32)
"""The first vLLM whose /inference/v1/generate answers with integer token ids."""
SENTINEL = -9999.0
"""What vLLM writes for a logprob it does not have."""
PROBE_TEXT = "Name three colours, please."
FALLBACK_IDS = [1, 2, 3, 4]
FORM: dict[str, Any] = {
    "structural_tag": {
        "type": "structural_tag",
        "format": {"type": "json_schema", "json_schema": {"type": "object"}},
    }
}
JSON = {"Content-Type": "application/json"}


def check_engine(engine: CheckedEngine, *, positions: int = 0) -> Iterator[Finding]:
    """All checks; those that need an answer which did not come are left out. `positions`: of the weights, 0 unknown."""
    try:
        yield (alive := reachable(engine))
        if alive.verdict != "ok":
            return
        if engine.ask("GET", "/version")[0] != 200 and sglang.is_sglang(engine):
            yield from check_sglang(engine, positions)
            return
        yield version(engine)
        yield (served := models(engine))
        if served.verdict == "fail":
            return
        yield length(engine, positions)
        engine.probe = probe_ids(engine)
        yield from sampling(engine)
        yield dev_mode(engine)
        if engine.codec is not None:
            yield from tokens(engine, engine.codec)
        yield from drafts(engine)  # last: 0.32 without pip answers 500, and ends the connection
    except (httpx.HTTPError, EngineFailed, KeyError, TypeError, IndexError, ValueError) as error:
        yield fail(
            "answers", f"not those of vLLM: {error!r}", "is this a vLLM server? see its version and log"
        )


def reachable(engine: CheckedEngine) -> Finding:
    fix = "start the engine, or correct --engine-url"
    try:
        status, _ = engine.ask("GET", "/health")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return fail("engine", f"{engine.http.base_url} does not answer: {error}", fix)
    return (
        ok("engine", f"{engine.http.base_url} is up")
        if status == 200
        else fail("engine", f"/health is {status}", _without_v1(engine) or fix)
    )


def _without_v1(engine: CheckedEngine) -> str:
    """What to do, if its URL is that of the OpenAI API."""
    return "give its URL without /v1" if engine.http.base_url.path.rstrip("/").endswith("/v1") else ""


def check_sglang(engine: CheckedEngine, positions: int) -> Iterator[Finding]:
    """As `check_engine`; its tokenizer is not compared."""
    yield from sglang.settings(engine)
    yield (served := models(engine))
    if served.verdict == "fail":
        return
    yield length(engine, positions)
    engine.probe = engine.codec.render(question(), ()).tolist() if engine.codec else FALLBACK_IDS
    yield from sglang.sampling(engine)


def version(engine: CheckedEngine) -> Finding:
    status, body = engine.ask("GET", "/version")
    if status != 200:
        return warn(
            "version", f"/version is {status}", f"needs vLLM {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer"
        )
    text = str(body["version"])
    numbers = text.split("+", maxsplit=1)[0].split(".")[:2]
    if all(part.isdigit() for part in numbers) and tuple(map(int, numbers)) < VERSION_MIN:
        return warn(
            "version",
            f"vLLM {text}",
            f"upgrade to {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer: older ones have no {GENERATE_FLAG}",
        )
    return ok("version", f"vLLM {text}")


def models(engine: CheckedEngine) -> Finding:
    status, body = engine.ask("GET", "/v1/models")
    found = body["data"] if status == 200 else []
    if not found:
        return fail("model", f"/v1/models is {status}, {len(found)} models", "serve a model")
    engine.model, engine.max_model_len = found[0]["id"], int(found[0].get("max_model_len") or 0)
    return ok("model", ", ".join(one["id"] for one in found))


def length(engine: CheckedEngine, positions: int) -> Finding:
    if not engine.max_model_len:
        return skip("max_model_len", "the engine does not say")
    if positions and engine.max_model_len > positions:
        return fail(
            "max_model_len",
            f"{engine.max_model_len:,} is more than the {positions:,} positions of the weights",
            f"start the engine with --max-model-len {positions}",
        )
    return ok("max_model_len", f"{engine.max_model_len:,} tokens")


def probe_ids(engine: CheckedEngine) -> list[int]:
    """A prompt this model could have been given."""
    if engine.codec is not None:
        return engine.codec.render(question(), ()).tolist()
    status, body = engine.ask("POST", "/tokenize", {"model": engine.model, "prompt": PROBE_TEXT})
    return list(body["tokens"]) if status == 200 else FALLBACK_IDS


def question() -> tuple[Message, ...]:
    return (Message(role="user", parts=(TextPart(PROBE_TEXT),)),)


def sampling(engine: CheckedEngine) -> Iterator[Finding]:
    """Token ids in, ids and logprobs out."""
    status, body = engine.generate()
    if status != 200:
        yield fail(
            "token ids in",
            f"/inference/v1/generate is {status}",
            f"start vLLM (0.32 or newer) with {GENERATE_FLAG}"
            if status in (403, 404)
            else f"it refused ids of this model: {body}",
        )
        if is_shut(status, orjson.dumps(body)):
            yield logprobs_mode(engine, GenerateEndpoint.COMPLETIONS)
            yield structured_outputs(engine, GenerateEndpoint.COMPLETIONS)
        return
    choice = body["choices"][0]
    ids, entries = choice["token_ids"], choice["logprobs"]["content"]
    yield ok("token ids in", f"/inference/v1/generate gave {len(ids)} ids")
    yield logprobs(ids, entries)
    yield logprobs_mode(engine, GenerateEndpoint.GENERATE)
    yield structured_outputs(engine, GenerateEndpoint.GENERATE)
    yield weight_version(choice)


def logprobs(ids: list[int], entries: list[dict[str, Any]]) -> Finding:
    """One per id, of that id, and real."""
    values = [float(entry["logprob"]) for entry in entries]
    named = [entry.get("token_id") for entry in entries]
    if named != ids and any(name is not None for name in named):
        return fail(
            "logprobs",
            f"of {named} for ids {ids}",
            "this engine's answers cannot be trusted; change its version",
        )
    if len(values) != len(ids):
        return fail("logprobs", f"{len(values)} for {len(ids)} ids", "change the engine's version")
    bad = [value for value in values if value == SENTINEL or not math.isfinite(value) or value > 1e-6]
    if bad:
        return fail(
            "logprobs", f"{bad[0]} is no logprob", "the engine marks missing values; see its log for NaN"
        )
    return ok("logprobs", "one per sampled id, no sentinel")


def logprobs_mode(engine: CheckedEngine, door: GenerateEndpoint) -> Finding:
    """Processed or raw, by measurement, as each gateway measures it at its start."""
    fix = "start vLLM with --logprobs-mode processed_logprobs"
    kind, refused = _measured(engine, door)
    match kind:
        case "processed":
            return ok("logprobs mode", "processed: what top_k 1 filters out has no logprob")
        case "raw":
            return warn(
                "logprobs mode",
                "raw: what top_k 1 filters out still has its logprob",
                f"{fix}; raw ones need engine.logprobsMode: raw_logprobs in the manifest, and are right only at "
                "temperature 1 without top_p, top_k and penalties",
            )
        case "logits":
            return fail("logprobs mode", "logits: these are not log-probabilities", fix)
        case "unclear":
            return fail(
                "logprobs mode",
                f"the engine refuses to show it: {refused}" if refused else UNCLEAR,
                f"{fix} and --max-logprobs 5 or more: a gateway does not use an engine whose mode it cannot tell",
            )


def _measured(engine: CheckedEngine, door: GenerateEndpoint) -> tuple[Kind, str]:
    """The kind, and the words of the last refusal."""
    asking = measuring(door, engine.model, (engine.probe, *PROMPTS))
    body, refused = next(asking), ""
    while True:
        answer = engine.http.post(door.value, content=body, headers=JSON)
        taken = answer.status_code == 200
        refused = refused if taken else words_of(answer.content)
        try:
            body = asking.send(answer.content if taken else None)
        except StopIteration as done:
            return done.value, refused


def structured_outputs(engine: CheckedEngine, door: GenerateEndpoint) -> Finding:
    """Can it hold an answer to a form, in the way in which turns say it?"""
    prompt = Prompt(
        request_id="",
        ids=array("i", engine.probe),
        sampling=SamplingParams(),
        max_tokens=1,
        constraint=FORM,
        model=engine.model,
    )
    body = body_of(door, prompt, prompt.ids, max_tokens=1)
    answer = engine.http.post(door.value, content=body, headers=JSON)
    if answer.status_code == 200:
        return ok("structured outputs", "it takes a structural tag")
    return warn(
        "structured outputs",
        f"a structural tag is {answer.status_code}: {words_of(answer.content)}",
        f"{FORMS_FIX}, or turns with response_format, tool_choice required or parallel_tool_calls: false are refused",
    )


def weight_version(choice: dict[str, Any]) -> Finding:
    spans = choice.get("weight_versions") or []
    if not spans:
        return warn(
            "weight version",
            "the engine does not say which weights sampled a token",
            "each token then gets the version the trainer last told; exact if updates go through weight_update()",
        )
    label = spans[0]["version"]
    if why := beyond(str(label)):
        return warn("weight version", why, "weight_update(engines=...) does, or POST /update_weight_version")
    if number_of(label) is not None:
        return ok("weight version", f"reported per token: {label}")
    return ok("weight version", f"reported per token; {label!r}, so as last told, until the trainer sets one")


def dev_mode(engine: CheckedEngine) -> Finding:
    status, _ = engine.ask("GET", "/is_paused")
    if status == 200:
        return ok("weight updates", "pause and resume are there")
    return warn(
        "weight updates",
        f"/is_paused is {status}",
        "for updates in place set VLLM_SERVER_DEV_MODE=1 (and keep the port closed to everything but gateways)",
    )


LOSSY = ("synthetic", "fly")
"""Values of `rejection_sample_method` with which drafts are accepted that the model would not have sampled."""


def drafts(engine: CheckedEngine) -> Iterator[Finding]:
    """Are they taken as often as the model would sample them? Only a server in dev mode says so."""
    try:
        status, told = engine.ask("GET", "/server_info?config_format=json")
    except httpx.HTTPError:  # it looks at its whole machine the first time
        return
    config = told.get("vllm_config") if status == 200 and isinstance(told, dict) else None
    method = ((config or {}).get("speculative_config") or {}).get("rejection_sample_method")
    if method in LOSSY:
        yield fail(
            "drafts",
            f"rejection_sample_method {method}: they are taken more often than the model would sample them",
            "logprobs are not of what was sampled: start vLLM with the method standard (its default) or block",
        )


def tokens(engine: CheckedEngine, codec: Codec) -> Iterator[Finding]:
    """Do the engine's tokenizer and template agree with ours?"""
    ours = codec.render(question(), ())
    messages = [{"role": "user", "content": PROBE_TEXT}]
    status, body = engine.ask("POST", "/tokenize", {"model": engine.model, "messages": messages})
    if status != 200:
        yield skip("template", f"/tokenize is {status}")
        return
    if body["tokens"] == ours.tolist():
        yield ok("template", f"the engine renders the probe to the same {len(ours)} ids")
    else:
        yield warn(
            "template",
            f"the engine renders {body['tokens']}, we render {ours.tolist()}",
            "serve the folder that --model names; rollouts stay exact, but the prompt is not the engine's own",
        )
    yield round_trip(engine, codec, ours.tolist())


def round_trip(engine: CheckedEngine, codec: Codec, ids: list[int]) -> Finding:
    fix = "engine and gateway have different tokenizers: serve the folder that --model names"
    status, body = engine.ask("POST", "/detokenize", {"model": engine.model, "tokens": ids})
    if status != 200:
        return skip("tokenizer parity", f"/detokenize is {status}")
    text = body["prompt"]
    status, back = engine.ask(
        "POST", "/tokenize", {"model": engine.model, "prompt": text, "add_special_tokens": False}
    )
    if status != 200 or back["tokens"] != ids:
        return fail("tokenizer parity", f"{len(ids)} ids -> text -> ids came back as others", fix)
    return ok("tokenizer parity", f"{len(ids)} ids -> text -> the same ids")
