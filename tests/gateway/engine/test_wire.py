"""Requests say what was meant; refusals mean what they say."""

from __future__ import annotations

from array import array
from typing import Any

import orjson
import pytest

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
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.wire import NEUTRAL, GenerateEndpoint, body_of, refusal, says_paused, words_of


def prompt(**more: Any) -> Prompt:
    base: dict[str, Any] = {
        "request_id": "r",
        "ids": array("i", [1, 2]),
        "sampling": SamplingParams(),
        "max_tokens": 9,
    }
    return Prompt(**{**base, **more})


SAMPLING = SamplingParams(
    temperature=0.5,
    top_p=0.9,
    top_k=7,
    min_p=0.1,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    repetition_penalty=1.1,
    seed=11,
    max_tokens=3,
    stop=("END",),
)
PARAMS = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
    "repetition_penalty": 1.1, "seed": 11, "stop": ["END"], "stop_token_ids": [4], "max_tokens": 9, "logprobs": 0,
}  # fmt: skip

COMPLETION: dict[str, Any] = {
    "return_token_ids": True, "return_tokens_as_token_ids": True, "return_weight_versions": True,
    "skip_special_tokens": True,
}  # fmt: skip
ODD = {"type": "array", "items": {"type": "number", "multipleOf": 3}}
"""One of those that vLLM's `auto` takes to another backend."""


def held(**form: Any) -> dict[str, Any]:
    return {**NEUTRAL, "structured_outputs": form, "max_tokens": 9, "logprobs": 0}


def tag(schema: Any) -> str:
    format_ = {"type": "json_schema", "json_schema": schema}
    return orjson.dumps({"type": "structural_tag", "format": format_}).decode()


BODIES: dict[str, tuple[GenerateEndpoint, Prompt, dict[str, Any], dict[str, Any]]] = {
    "what nobody set is sent as neutral: a checkpoint's own defaults never hold": (
        GenerateEndpoint.GENERATE,
        prompt(),
        {},
        {"token_ids": [1, 2], "sampling_params": {**NEUTRAL, "max_tokens": 9, "logprobs": 0}},
    ),
    "every sampling parameter has its place; the clamped max_tokens wins": (
        GenerateEndpoint.GENERATE,
        prompt(sampling=SAMPLING, stop_ids=(4,), model="m"),
        {"salt": "v3"},
        {"token_ids": [1, 2], "sampling_params": PARAMS, "model": "m", "cache_salt": "v3"},
    ),
    "completions have the same parameters, flat, and ids for names": (
        GenerateEndpoint.COMPLETIONS,
        prompt(sampling=SAMPLING, stop_ids=(4,), model="m"),
        {},
        {
            "prompt": [1, 2],
            **PARAMS,
            **COMPLETION,
            "model": "m",
        },
    ),
    "a later piece moves the seed": (
        GenerateEndpoint.GENERATE,
        prompt(sampling=SamplingParams(seed=5)),
        {"piece": 2},
        {"token_ids": [1, 2], "sampling_params": {**NEUTRAL, "seed": 7, "max_tokens": 9, "logprobs": 0}},
    ),
    "a grammar passes through, a structural tag as text; it holds from the first token on": (
        GenerateEndpoint.GENERATE,
        prompt(constraint={"structural_tag": {"a": 1}}),
        {},
        {
            "token_ids": [1, 2],
            "reasoning_ended": True,
            "sampling_params": {
                **NEUTRAL,
                "structured_outputs": {"structural_tag": '{"a":1}'},
                "max_tokens": 9,
                "logprobs": 0,
            },
        },
    ),
    "a schema is a structural tag, which is always xgrammar's: `json` would choose the engine's backend for good": (
        GenerateEndpoint.GENERATE,
        prompt(constraint={"json": ODD}),
        {},
        {"token_ids": [1, 2], "reasoning_ended": True, "sampling_params": held(structural_tag=tag(ODD))},
    ),
    "a schema that is text, too": (
        GenerateEndpoint.COMPLETIONS,
        prompt(constraint={"json": '{"type":"object"}'}),
        {},
        {"prompt": [1, 2], **COMPLETION, **held(structural_tag=tag({"type": "object"}))},
    ),
    "any JSON object is said as such: every backend has it": (
        GenerateEndpoint.GENERATE,
        prompt(constraint={"json_object": True}),
        {},
        {"token_ids": [1, 2], "reasoning_ended": True, "sampling_params": held(json_object=True)},
    ),
    "one more top logprob, because the sampled token takes a place; a stream with usage": (
        GenerateEndpoint.GENERATE,
        prompt(top_logprobs=3),
        {"stream": True},
        {
            "token_ids": [1, 2],
            "sampling_params": {**NEUTRAL, "max_tokens": 9, "logprobs": 4},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
}


@pytest.mark.parametrize(("door", "asked", "how", "want"), BODIES.values(), ids=BODIES)
def test_body(door: GenerateEndpoint, asked: Prompt, how: dict[str, Any], want: dict[str, Any]) -> None:
    assert orjson.loads(body_of(door, asked, asked.ids, max_tokens=asked.max_tokens, **how)) == want


LONG_1 = "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens, which"
LONG_2 = "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that"
LONG_3 = (
    "The decoder prompt (length 4096) plus the number of requested output tokens (at least 1) is longer than the "
    "maximum model length of 4096. Make sure"
)

SECOND_BACKEND = (
    "Structured output processing only supports one backend per engine. The engine is already using 'guidance', but "
    "this request resolved to 'xgrammar'. Configure `structured_outputs_config.backend` explicitly or use schemas "
    "supported by the initialized backend."
)


def said(message: str) -> bytes:
    return orjson.dumps(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
    )


REFUSALS: dict[str, tuple[int, bytes, str | None, type[SandgateError], str, float | None]] = {
    "prompt too long, in vLLM's 1st words": (400, said(LONG_1), None, PromptTooLong, "5000 tokens; this model", None),
    "prompt too long, in vLLM's 2nd words": (400, said(LONG_2), None, PromptTooLong, "5000 tokens; this model", None),
    "prompt too long, in vLLM's 3rd words": (400, said(LONG_3), None, PromptTooLong, "5000 tokens; this model", None),
    "another 400 is the caller's": (400, said("bad  regex\n here"), None, RefusedByEngine, ": bad regex here", None),
    "a form at a backend that does not know it": (
        400,
        said("Invalid grammar specification: 'triggers'"),
        None,
        RefusedByEngine,
        """engine's backend is another: start vLLM with --structured-outputs-config '{"backend": "xgrammar"}'""",
        None,
    ),
    "a form that xgrammar, as its only backend, cannot compile": (
        400,
        said("Invalid structural tag specification."),
        None,
        RefusedByEngine,
        "specification.; xgrammar cannot compile a schema of response_format or of a tool (",
        None,
    ),
    "a form that it cannot compile, in the words of completions": (
        400,
        said("Invalid structured_outputs structural_tag specification. (parameter=structured_outputs)"),
        None,
        RefusedByEngine,
        "does not exist): mend the schema",
        None,
    ),
    "a form of 0.33's at an engine whose first form was another's": (
        400,
        said(SECOND_BACKEND),
        None,
        RefusedByEngine,
        "start vLLM with --structured-outputs-config '{\"backend\": \"xgrammar\"}': another client's schema chose the",
        None,
    ),
    "a model that is not served": (
        404,
        said("The model `tiny` does not exist."),
        None,
        ModelNotServed,
        "answered 404: The model `tiny` does not exist.",
        None,
    ),
    "a proxy without a back end says nothing of the model": (404, b"default backend", None, EngineFailed, "404", None),
    "a prompt of another vocabulary": (
        400,
        said("Token id 999 is out of vocabulary"),
        None,
        TokenizerMismatch,
        "(400): Token id 999 is out of vocabulary; is spec.model.tokenizer its model's?",
        None,
    ),
    "FastAPI's detail": (404, b'{"detail":"Not Found"}', None, EngineFailed, "answered 404: Not Found", None),
    "an overloaded engine with Retry-After": (429, said("queue full"), "7", Overloaded, "queue full", 7.0),
    "an unavailable engine without Retry-After": (503, b"", None, EngineUnavailable, "503", 1.0),
    "Retry-After as a date counts as one second": (503, b"", "Wed, 21 Oct", EngineUnavailable, "503", 1.0),
    "Retry-After of an hour is cut to a minute": (429, b"", "3600", Overloaded, "", 60.0),
    "a broken engine": (500, b"Internal Server Error", None, EngineFailed, "answered 500: Internal Server Error", None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "after", "kind", "text", "seconds"), REFUSALS.values(), ids=REFUSALS
)
def test_refusal(
    status: int, body: bytes, after: str | None, kind: type[SandgateError], text: str, seconds: float | None
) -> None:
    error = refusal(status, body, after, prompt_tokens=5000)
    assert type(error) is kind
    assert text in str(error)
    assert error.retry_after == seconds


def test_an_engines_words_are_cut() -> None:
    assert len(words_of(said("x" * 10_000))) == 500
    assert len(words_of(b"y" * 10_000)) == 500


def test_only_a_503_that_says_so_is_a_pause() -> None:
    assert says_paused(503, said("Generation is paused. Call /resume."))
    assert not says_paused(503, said("Engine is dead"))
    assert not says_paused(500, said("Generation is paused"))
