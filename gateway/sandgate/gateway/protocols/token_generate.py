"""The adapter of vLLM's /inference/v1/generate: token ids in, token ids and logprobs out. (pure)

Engines' clients (renderers, routers, other gateways) speak it. The ids alone place a request in the session's tree.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, SandgateError, Unsupported
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.protocols.base import NOTHING, Choice, Context, History, Stream, Usage
from sandgate.gateway.protocols.openai_errors import error_json
from sandgate.gateway.protocols.openai_sampling import (
    MAX_TOKENS_CLAMP,
    MODEL_CHARS_MAX,
    TOP_LOGPROBS_MAX,
    Asked,
    StreamOptions,
    choices_of,
    refuse,
    refused_fields,
    sampling_of,
)
from sandgate.gateway.protocols.request_fields import digest_of
from sandgate.gateway.protocols.token_generate_out import GenerateStream, reply
from sandgate.gateway.protocols.wire import bounded, read, unused

ID_MAX = 2**31 - 1
REQUEST_ID_CHARS_MAX = 256
_Raw = msgspec.Raw
_NONE = _Raw(b"")


class _Sampling(Asked, kw_only=True):
    """vLLM's SamplingParams, as far as they are honoured; what stands there beside them is refused or ignored."""

    model: str = ""
    logprobs: int | None = None


class _Body(msgspec.Struct, kw_only=True):
    token_ids: list[int]
    sampling_params: _Sampling
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    output_mode: str | None = None
    # Refused where they ask for anything.
    features: _Raw = _NONE
    content_parts: _Raw = _NONE
    kv_transfer_params: _Raw = _NONE
    ec_transfer_params: _Raw = _NONE


_DECODER = msgspec.json.Decoder(_Body)
_REFUSED = refused_fields(_Sampling, frozenset())
_REFUSED_BESIDE = ("features", "content_parts", "kv_transfer_params", "ec_transfer_params")


class TokenGenerate:
    """vLLM's token requests as an `Adapter`."""

    name = "token_generate"

    def decode(self, body: bytes, headers: Mapping[str, str], history: History = NOTHING) -> TurnRequest:
        """Decodes a request. Headers have no meaning in this dialect."""
        del headers, history
        return decode(body)

    def reply(self, context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
        """A `GenerateResponse`."""
        return reply(context, choices, usage)

    def stream(self, context: Context) -> Stream:
        """Its chunks."""
        return GenerateStream(context)

    def error_body(self, error: SandgateError, request: str | None = None) -> bytes:
        """OpenAI's error object, as vLLM has it."""
        del request
        return error_json(error)


def decode(body: bytes) -> TurnRequest:
    """The request in a body. Raises InvalidBody or Unsupported, whose `field` is the path of the wrong value."""
    asked = read(_DECODER, body)
    params = asked.sampling_params
    _refuse(asked)
    bounded(params.logprobs, 0, TOP_LOGPROBS_MAX, "sampling_params.logprobs")
    ids = _ids(asked.token_ids)
    most = MAX_TOKENS_CLAMP if params.max_tokens is None else params.max_tokens
    fields: dict[str, Any] = {
        "endpoint": "generate",
        "prompt": ids.tobytes().hex(),
        "tools": (),
        "sampling": sampling_of(params, most, "sampling_params.max_tokens"),
        "n": choices_of(params),
        "logprobs": params.logprobs is not None,
        "top_logprobs": params.logprobs or 0,
        "request_id": asked.request_id or "",
    }
    return TurnRequest(
        model=asked.model or "",
        messages=(),
        prompt=ids,
        prompt_field="token_ids",
        sampling=fields["sampling"],
        n=fields["n"],
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        logprobs=fields["logprobs"],
        top_logprobs=fields["top_logprobs"],
        token_ids=True,
        prompt_told=bool(asked.return_token_ids),
        request_id=fields["request_id"],
        digest=digest_of(fields),
    )


def _refuse(asked: _Body) -> None:
    if len(asked.model or "") > MODEL_CHARS_MAX:
        raise InvalidBody(f"model must have at most {MODEL_CHARS_MAX} characters", field="model")
    if len(asked.request_id or "") > REQUEST_ID_CHARS_MAX:
        raise InvalidBody(
            f"request_id must have at most {REQUEST_ID_CHARS_MAX} characters", field="request_id"
        )
    if asked.output_mode not in (None, "tokens"):
        raise Unsupported("output_mode: only tokens are told here", field="output_mode")
    for field in _REFUSED_BESIDE:
        unused(getattr(asked, field), field)
    try:
        refuse(asked.sampling_params, "", _REFUSED)
    except Unsupported as error:
        raise Unsupported(f"sampling_params.{error}", field=f"sampling_params.{error.field}") from None


def _ids(given: list[int]) -> Ids:
    if not given:
        raise InvalidBody("token_ids is empty; it needs at least one token id", field="token_ids")
    if min(given) < 0 or max(given) > ID_MAX:
        index = next(index for index, token in enumerate(given) if not 0 <= token <= ID_MAX)
        raise InvalidBody(f"token_ids[{index}] is no token id", field=f"token_ids[{index}]")
    return array("i", given)
