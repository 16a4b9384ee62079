"""Request bodies for vLLM, and what its refusals (HTTP errors) mean. (pure)

The engine has two endpoints: `/inference/v1/generate` (0.32: --enable-scale-out) and `/v1/completions` (fallback).
Both gave the same ids and bit-equal logprobs for a seed (tests/gateway/engine/test_conformance.py).
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import orjson

from sandgate.contract.errors import (
    EngineFailed,
    EngineUnavailable,
    ModelNotServed,
    Overloaded,
    PromptTooLong,
    RefusedByEngine,
    SandgateError,
    TokenizerMismatch,
)
from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.media.pictures import Picture

WORDS_MAX = 500
"""Characters of an engine's error that are passed on; its validation errors can repeat a whole prompt."""

TOP_LOGPROBS_MAX = 20
"""vLLM's default --max-logprobs; it refuses more."""

RETRY_AFTER_S_MAX = 60.0
"""Longest Retry-After that is passed on, in seconds; an engine that asks for more is as good as down."""

ABORT_PREFIX = "generate-tokens-"
"""vLLM puts this before X-Request-Id; an abort of the bare id answers 200 and does nothing."""


class GenerateEndpoint(Enum):
    """The endpoints that take token ids and return samples."""

    GENERATE = "/inference/v1/generate"
    COMPLETIONS = "/v1/completions"


def body_of(
    endpoint: GenerateEndpoint,
    prompt: Prompt,
    ids: Ids,
    *,
    max_tokens: int,
    piece: int = 0,
    stream: bool = False,
    salt: str = "",
) -> bytes:
    """The request body: sample at most `max_tokens` after `ids` (the prompt, and what was sampled so far).

    `piece` > 0: the generation is resumed after an abort. A fixed seed is then moved by `piece`: the engine's generator
    starts anew, and the same seed would draw the same numbers a second time.
    """
    if prompt.pictures and endpoint is not GenerateEndpoint.GENERATE:
        raise EngineFailed(
            f"images go to {GenerateEndpoint.GENERATE.value} only, which this engine does not serve: start vLLM with "
            "--enable-scale-out"
        )
    head = _generate_head(prompt, max_tokens, piece) if endpoint is GenerateEndpoint.GENERATE else None
    if head is None:
        head = _completions_head(prompt, max_tokens, piece)
    if prompt.model:
        head["model"] = prompt.model
    if salt:
        head["cache_salt"] = salt
    if stream:
        head["stream"] = True
        head["stream_options"] = {"include_usage": True}
    if prompt.told is not None:  # vLLM runs its processor on the pictures, and puts in what that says
        ids = prompt.told + ids[len(prompt.ids) :]
    field = b"token_ids" if endpoint is GenerateEndpoint.GENERATE else b"prompt"
    # numpy writes 5k ids in 18 us; a list of Python ints takes 68 us and makes 5k objects.
    packed = orjson.dumps(np.frombuffer(ids, dtype=np.int32), option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join((b'{"', field, b'":', packed, b",", _json(head)[1:]))


def _json(value: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, from a tool's schema
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


NEUTRAL: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling from the model's own distribution: what a parameter is that nobody set, on every engine and endpoint."""


def _sampling(prompt: Prompt, max_tokens: int, piece: int) -> dict[str, Any]:
    given = msgspec.structs.asdict(prompt.sampling)
    # All are sent: /v1/completions fills what is left out from the checkpoint's generation_config.json.
    chosen = {name: neutral if given[name] is None else given[name] for name, neutral in NEUTRAL.items()}
    if prompt.sampling.stop:
        chosen["stop"] = list(prompt.sampling.stop)
    if prompt.stop_ids:
        chosen["stop_token_ids"] = list(prompt.stop_ids)
    if prompt.sampling.seed is not None:
        chosen["seed"] = prompt.sampling.seed + piece
    if prompt.constraint is not None:
        chosen["structured_outputs"] = _constraint(prompt.constraint)
    chosen["max_tokens"] = max_tokens
    # The sampled token comes first and counts as one of the k: ask for one more to get the k most likely.
    chosen["logprobs"] = min(prompt.top_logprobs + 1, TOP_LOGPROBS_MAX) if prompt.top_logprobs else 0
    return chosen


def _constraint(constraint: dict[str, Any]) -> dict[str, Any]:
    """vLLM's shape of it: structural tags are text. So is a schema: by its keywords `json` would choose the backend of
    an engine (`auto`), which has one for good, that of its first form; tags are xgrammar's, all of them."""
    more = dict(constraint)
    schema = more.pop("json", None)
    if schema is not None:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        more["structural_tag"] = {
            "type": "structural_tag",
            "format": {"type": "json_schema", "json_schema": schema},
        }
    tag = more.get("structural_tag")
    if tag is not None and not isinstance(tag, str):
        more["structural_tag"] = _json(tag).decode()
    return more


def _generate_head(prompt: Prompt, max_tokens: int, piece: int) -> dict[str, Any]:
    head: dict[str, Any] = {"sampling_params": _sampling(prompt, max_tokens, piece)}
    if prompt.constraint is not None:  # it holds from the first token on; the thought is part of it
        head["reasoning_ended"] = True
    if prompt.pictures:
        head["content_parts"] = list(map(_content_part, prompt.pictures))
        head["return_token_ids"] = True
    return head


def _content_part(picture: Picture) -> dict[str, str]:
    if not picture.frames:
        return {"type": "image_url", "url": "data:image/png;base64," + b64encode(picture.png).decode()}
    frames = ",".join(b64encode(frame).decode() for frame in picture.frames)
    return {
        "type": "video_url",
        "url": "data:video/jpeg;base64," + frames,
    }  # so vLLM calls frames of any format


def _completions_head(prompt: Prompt, max_tokens: int, piece: int) -> dict[str, Any]:
    # top_logprobs is a dict by decoded text, where two ids may be the same text; by `token_id:N` they cannot.
    return {
        **_sampling(prompt, max_tokens, piece),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "return_weight_versions": True,  # 0.33; older ones ignore it
        "skip_special_tokens": True,  # what stop strings are looked for in; 0.33 has a server-wide default
    }


def abort_body(request_id: str) -> bytes:
    """Body for /inference/v1/abort_requests that ends the generation sent with `X-Request-Id: request_id`."""
    return orjson.dumps({"request_ids": [ABORT_PREFIX + request_id]})


class _Words(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Words | str | None = None
    message: str | None = None
    detail: msgspec.Raw = msgspec.Raw(b"")


def words_of(body: bytes) -> str:
    """The text of an error body, at most 500 characters, in one line."""
    text = ""
    try:
        refusal = msgspec.json.decode(body, type=_Refusal)
        text = refusal.error.message if isinstance(refusal.error, _Words) else refusal.error or ""
        text = text or refusal.message or bytes(refusal.detail).decode("utf-8", "replace").strip('"')
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    text = " ".join((text or body[: 4 * WORDS_MAX].decode("utf-8", "replace")).split())
    return text if len(text) <= WORDS_MAX else text[: WORDS_MAX - 3] + "..."


TOO_LONG = re.compile(
    r"maximum context length is (?P<a>\d+)"
    r"|longer than the maximum model length of (?P<b>\d+)"
    r"|longer than the maximum\s+model length of (?P<c>\d+)"
)
"""vLLM 0.32's texts for a prompt that is too long: renderers/params.py, v1/engine/input_processor.py."""

NO_SUCH_MODEL = re.compile(r"\bmodel\b.*\bdoes not exist\b", re.IGNORECASE | re.DOTALL)
"""vLLM's 404 for a name that it does not serve. A 404 in other words may be a proxy whose engine is starting."""

NO_SUCH_TOKEN = re.compile(r"token id \d+ is out of vocabulary", re.IGNORECASE)
"""vLLM's text for an id in a prompt that its vocabulary lacks: v1/engine/input_processor.py."""

NO_GRAMMAR = re.compile(
    r"invalid grammar specification: 'triggers'"
    r"|invalid (structured_outputs )?structural[ _]tag specification",
    re.IGNORECASE,
)
"""What it says to a structural tag that xgrammar cannot compile: /inference/v1/generate with the backend xgrammar, and
/v1/completions (0.32). With `auto` the former asks guidance then, which knows tags in an older shape only, and says
'triggers' to any: the words of a server whose backend is guidance are the same."""

FORMS_FIX = """start vLLM with --structured-outputs-config '{"backend": "xgrammar"}' or without it (auto)"""

NO_GRAMMAR_FIX = (
    "xgrammar cannot compile a schema of response_format or of a tool (a `pattern` that is no regular expression, "
    "bounds that leave nothing, a type that does not exist): mend the schema; or this engine's backend is another: "
)

OTHER_BACKEND = re.compile(r"only supports one backend per engine", re.IGNORECASE)
"""0.33's text for a form of another backend than its first; a client beside the gateway sent that one."""

OTHER_BACKEND_FIX = """start vLLM with --structured-outputs-config '{"backend": "xgrammar"}': another client's schema \
chose the backend of this engine, and it keeps that until it is started again"""

PAUSED = re.compile(r"generation is paused", re.IGNORECASE)
"""0.33's answer to a new request while paused in abort or wait mode; 0.32 lets it wait instead."""


def refusal(status: int, body: bytes, retry_after: str | None, *, prompt_tokens: int) -> SandgateError:
    """The error that an engine's answer with a status other than 200 means."""
    words = words_of(body)
    if status in (400, 413, 422):
        if too_long := TOO_LONG.search(words):
            return PromptTooLong(tokens=prompt_tokens, limit=int(too_long[too_long.lastgroup or "a"]))
        if NO_SUCH_TOKEN.search(words):
            return TokenizerMismatch(
                f"the engine refused the request ({status}): {words}; is spec.model.tokenizer its model's?"
            )
        return RefusedByEngine(f"the engine refuses this request: {words}{_fix(words)}")
    if status == 429:
        return Overloaded(f"the engine is overloaded: {words}", retry_after=_seconds(retry_after))
    if status in (502, 503, 504):
        return EngineUnavailable(f"the engine answers {status}: {words}", retry_after=_seconds(retry_after))
    if status == 404 and NO_SUCH_MODEL.search(words):
        return ModelNotServed(f"the engine answered {status}: {words}")
    return EngineFailed(f"the engine answered {status}: {words}")


def _fix(words: str) -> str:
    """What to do about a refused form."""
    if OTHER_BACKEND.search(words):
        return f"; {OTHER_BACKEND_FIX}"
    return f"; {NO_GRAMMAR_FIX}{FORMS_FIX}" if NO_GRAMMAR.search(words) else ""


def says_paused(status: int, body: bytes) -> bool:
    """Whether an answer is the 503 that means: wait for the weight update to end."""
    return status == 503 and PAUSED.search(words_of(body)) is not None


def is_shut(status: int, body: bytes) -> bool:
    """Whether an answer means that /inference/v1/generate is not served: 403 without --enable-scale-out, 404 or 405 by
    older servers. A 404 with another text is about the model."""
    return status in (403, 405) or no_such_path(status, body)


def no_such_path(status: int, body: bytes) -> bool:
    """Whether an answer is the 404 of a server without such an endpoint, and not of something that it was asked for."""
    return status == 404 and words_of(body) in ("Not Found", "404: Not Found")


def _seconds(retry_after: str | None) -> float:
    """Retry-After in seconds; HTTP dates and nonsense count as 1."""
    try:
        return min(max(float(retry_after or 1.0), 0.0), RETRY_AFTER_S_MAX)
    except ValueError:
        return 1.0
