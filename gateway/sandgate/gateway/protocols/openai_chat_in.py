"""Decodes the body of POST /v1/chat/completions: bytes -> TurnRequest; limits and bounds of its fields. (pure)

Bodies of real clients are in tests/golden/openai_chat. Unknown fields are ignored. A known field that would change what
is sampled, and cannot be honoured, is refused by name.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.canonical import BILLING_HEADER, tools_key
from sandgate.gateway.conversation.messages import (
    ImagePart,
    Message,
    Part,
    ResponseFormat,
    Role,
    SamplingParams,
    TextPart,
    ToolCall,
    TurnRequest,
)
from sandgate.gateway.protocols.openai_tools import choice_of, tools_of
from sandgate.gateway.protocols.wire import bounded, brief, limited, read, sendable, shallow, unused

MESSAGES_MAX = 10_000
"""Far above any window (a message takes at least 3 tokens); bounds the work on a hostile body."""
MODEL_CHARS_MAX = 1_024
"""Answers say it again, each chunk of a stream too."""
CHOICES_MAX = 8
"""Each choice is a generation of its own."""
STOPS_MAX, STOP_CHARS_MAX = 16, 256
"""Each stop string is searched for in every delta."""
TOP_LOGPROBS_MAX = 20
"""As OpenAI."""
MAX_TOKENS_CLAMP = 2**31 - 1
"""Larger limits mean 'as much as fits' anyway, and every later int is 32 bits."""
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1

_Raw = msgspec.Raw
_NONE = _Raw(b"")


class _Url(msgspec.Struct):
    url: str
    detail: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Url | str | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None


class _Custom(msgspec.Struct):
    name: str
    input: str | None = None


class _Call(msgspec.Struct):
    id: str | None = None
    type: str | None = "function"
    function: _Function | None = None
    custom: _Custom | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: _Raw = _NONE
    function_call: _Function | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Schema(msgspec.Struct):
    schema: dict[str, Any] | None = None


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


class _Body(msgspec.Struct):
    model: str
    messages: list[_Message]
    tools: _Raw = _NONE
    tool_choice: _Raw = _NONE
    response_format: _Format | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    # Refused where they ask for anything: each would change what is sampled, or what comes back.
    audio: _Raw = _NONE
    functions: _Raw = _NONE
    function_call: _Raw = _NONE
    logit_bias: _Raw = _NONE
    web_search_options: _Raw = _NONE
    allowed_token_ids: _Raw = _NONE
    bad_words: _Raw = _NONE
    continue_final_message: _Raw = _NONE
    echo: _Raw = _NONE
    chat_template: _Raw = _NONE
    chat_template_kwargs: _Raw = _NONE
    guided_choice: _Raw = _NONE
    guided_grammar: _Raw = _NONE
    guided_json: _Raw = _NONE
    guided_regex: _Raw = _NONE
    ignore_eos: _Raw = _NONE
    min_tokens: _Raw = _NONE
    prompt_logprobs: _Raw = _NONE
    stop_token_ids: _Raw = _NONE
    structured_outputs: _Raw = _NONE
    use_beam_search: _Raw = _NONE


_DECODER = msgspec.json.Decoder(_Body)
_TEXT = msgspec.json.Decoder(str)
_REFUSED = tuple(
    field.name
    for field in msgspec.structs.fields(_Body)
    if field.type is _Raw and not field.name.startswith("tool")
)
_INSTEAD = {"functions": "use `tools`", "function_call": "use `tool_choice`"}
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_CANONICAL = msgspec.json.Encoder(order="deterministic")


def decode(body: bytes) -> TurnRequest:
    """The request in a body. Raises InvalidBody or Unsupported, whose `field` is the path of the wrong value."""
    chat = read(_DECODER, body)
    if len(chat.model) > MODEL_CHARS_MAX:
        raise InvalidBody(
            f"model has {len(chat.model)} characters; it must have at most {MODEL_CHARS_MAX}", field="model"
        )
    for field in _REFUSED:
        if (raw := getattr(chat, field)) is not _NONE:
            unused(raw, field, _INSTEAD.get(field, ""))
    if chat.modalities and chat.modalities != ["text"]:
        raise Unsupported("modalities: only text is generated here", field="modalities")
    if not chat.messages:
        raise InvalidBody("messages is empty; at least one message is needed", field="messages")
    limited(len(chat.messages), MESSAGES_MAX, "messages", "messages")
    tools = tools_of(chat.tools)
    fields: dict[str, Any] = {
        "model": chat.model,
        "messages": tuple([_message(message, index) for index, message in enumerate(chat.messages)]),
        "tools": tools,
        "tool_choice": choice_of(chat.tool_choice, tools),
        "response_format": _format(chat.response_format),
        "sampling": _sampling(chat),
        "parallel_tool_calls": chat.parallel_tool_calls is not False,
        **_choices(chat),
    }
    return TurnRequest(
        **fields,
        stream=bool(chat.stream),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        digest=_digest(fields),
    )


def _digest(fields: dict[str, Any]) -> bytes:
    """The hash of what is asked, however it is spelt; it does not depend on how the answer is to be sent."""
    raw = _CANONICAL.encode({**fields, "tools": tools_key(fields["tools"]).hex()})
    return blake2b(raw, digest_size=16).digest()


# --- messages


def _message(said: _Message, at: int) -> Message:
    role = _ROLES.get(said.role)
    if role is None:
        field = f"messages[{at}].role"
        raise InvalidBody(
            f"{field} is {brief(said.role)}; it must be one of {', '.join(_ROLES)}", field=field
        )
    content = said.content
    if not content:
        parts: tuple[Part, ...] = ()
    elif isinstance(content, str):
        parts = (TextPart(content),)
    else:
        parts = tuple([part for i, one in enumerate(content) if (part := _part(one, role, at, i))])
    if role != "assistant":
        return Message(role, parts, None, (), said.tool_call_id if role == "tool" else None, said.name)
    reasoning = said.reasoning_content or _text(said.reasoning, f"messages[{at}].reasoning")
    calls = tuple([_call(call, at, i) for i, call in enumerate(said.tool_calls or ())])
    if said.function_call and not calls:
        calls = (ToolCall("", said.function_call.name, said.function_call.arguments or ""),)
    return Message(role, parts, reasoning or None, calls, None, said.name)


def _text(raw: msgspec.Raw, field: str) -> str | None:
    """The reasoning; None unless it is text: some clients send OpenAI's object of settings by this name."""
    return read(_TEXT, raw, field) if bytes(memoryview(raw)[:1]) == b'"' else None


def _part(said: _Part, role: Role, at: int, i: int) -> Part | None:
    field = f"messages[{at}].content[{i}]"
    match said.type:
        case "text" | "input_text" | "output_text":
            if said.text is None:
                raise InvalidBody(f"{field}.text is missing", field=f"{field}.text")
            if role == "system" and said.text.startswith(BILLING_HEADER):
                return None
            return TextPart(said.text) if said.text else None
        case "refusal":
            return TextPart(said.refusal) if said.refusal else None
        case "image_url":
            image = said.image_url
            if image is None:
                raise InvalidBody(f"{field}.image_url is missing", field=f"{field}.image_url")
            return ImagePart(image) if isinstance(image, str) else ImagePart(image.url, image.detail)
    raise Unsupported(
        f"{field}.type is {brief(said.type)}; text and image_url are understood", field=f"{field}.type"
    )


def _call(said: _Call, at: int, i: int) -> ToolCall:
    field = f"messages[{at}].tool_calls[{i}]"
    if said.type == "custom" and said.custom:
        return ToolCall(said.id or "", said.custom.name, said.custom.input or "")
    if said.type not in ("function", None):
        raise Unsupported(
            f"{field}.type is {brief(said.type)}; function is understood", field=f"{field}.type"
        )
    if said.function is None:
        raise InvalidBody(f"{field}.function is missing", field=f"{field}.function")
    return ToolCall(said.id or "", said.function.name, said.function.arguments or "")


# --- how to answer


def _format(said: _Format | None) -> ResponseFormat:
    match said:
        case None | _Format(type="text"):
            return ResponseFormat()
        case _Format(type="json_object"):
            return ResponseFormat("json_object")
        case _Format(type="json_schema", json_schema=_Schema(schema=dict() as schema)):
            field = "response_format.json_schema.schema"
            shallow(schema, field)
            sendable(schema, field)
            return ResponseFormat("json_schema", schema)
        case _Format(type="json_schema"):
            field = "response_format.json_schema.schema"
            raise InvalidBody(f"{field} is missing", field=field)
    raise Unsupported(
        f"response_format.type is {brief(said.type)}; text, json_object and json_schema are understood",
        field="response_format.type",
    )


def _sampling(said: _Body) -> SamplingParams:
    bounded(said.temperature, 0, 2, "temperature")
    bounded(said.top_p, 0, 1, "top_p")
    bounded(said.top_k, -1, 2**31 - 1, "top_k")
    bounded(said.min_p, 0, 1, "min_p")
    bounded(said.presence_penalty, -2, 2, "presence_penalty")
    bounded(said.frequency_penalty, -2, 2, "frequency_penalty")
    bounded(said.repetition_penalty, 0.01, 10, "repetition_penalty")
    bounded(said.seed, SEED_MIN, SEED_MAX, "seed")
    if said.top_p == 0:
        raise InvalidBody(
            "top_p is 0, which leaves no token; use temperature 0 for greedy sampling", field="top_p"
        )
    field = "max_tokens" if said.max_completion_tokens is None else "max_completion_tokens"
    most = getattr(said, field)
    if most is not None and most < 1:
        raise InvalidBody(f"{field} is {brief(most)}; it must be at least 1", field=field)
    return SamplingParams(
        temperature=said.temperature,
        top_p=said.top_p,
        top_k=said.top_k,
        min_p=said.min_p,
        presence_penalty=said.presence_penalty,
        frequency_penalty=said.frequency_penalty,
        repetition_penalty=said.repetition_penalty,
        seed=said.seed,
        max_tokens=None if most is None else min(most, MAX_TOKENS_CLAMP),
        stop=_stop(said.stop),
    )


def _stop(said: str | list[str] | None) -> tuple[str, ...]:
    if not said:
        return ()
    stops = (said,) if isinstance(said, str) else tuple(said)
    limited(len(stops), STOPS_MAX, "strings", "stop")
    for at, stop in enumerate(stops):
        if not 1 <= len(stop) <= STOP_CHARS_MAX:
            field = "stop" if isinstance(said, str) else f"stop[{at}]"
            raise InvalidBody(f"{field} must have 1 to {STOP_CHARS_MAX} characters", field=field)
    return stops


def _choices(said: _Body) -> dict[str, Any]:
    bounded(said.n, 1, CHOICES_MAX, "n")
    bounded(said.top_logprobs, 0, TOP_LOGPROBS_MAX, "top_logprobs")
    if said.top_logprobs and not said.logprobs:
        raise InvalidBody("top_logprobs needs logprobs to be true", field="top_logprobs")
    return {
        "n": 1 if said.n is None else said.n,
        "logprobs": bool(said.logprobs),
        "top_logprobs": said.top_logprobs or 0,
    }
