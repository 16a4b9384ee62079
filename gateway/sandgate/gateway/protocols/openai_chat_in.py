"""Decodes the body of POST /v1/chat/completions: bytes -> TurnRequest; limits and bounds of its fields. (pure)

Bodies of real clients are in tests/golden/openai_chat. Unknown fields are ignored. A known field that would change what
is sampled, and cannot be honoured, is refused by name.
"""

from __future__ import annotations

import re
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
    TemplateValue,
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
KWARGS_MAX = 8
KWARG_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
KWARG_NUMBER_MAX = 2**31
KWARG_TEXT = re.compile(r"[\w .,:+/-]{0,64}")
"""A template's variable is not escaped as a message's text is; such words spell no control token."""
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
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
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
    if kwargs := _template_kwargs(chat):  # else not in the digest: it stays what it was in older journals
        fields["template_kwargs"] = kwargs
    return TurnRequest(
        **fields,
        stream=bool(chat.stream),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        digest=_digest(fields),
    )


def _template_kwargs(chat: _Body) -> dict[str, TemplateValue]:
    """Template variables. Their text is the owner's part of a prompt, which is not escaped: a few plain words."""
    asked = dict(chat.chat_template_kwargs or {})
    field = "chat_template_kwargs"
    limited(len(asked), KWARGS_MAX, "variables", field)
    if chat.reasoning_effort is not None:
        asked.setdefault("reasoning_effort", chat.reasoning_effort)
    for name, value in asked.items():
        where = f"{field}.{name[:64]}"
        if not KWARG_NAME.fullmatch(name):
            raise InvalidBody(f"{where}: no name of a template's variable", field=where)
        if isinstance(value, str) and not KWARG_TEXT.fullmatch(value):
            where = "reasoning_effort" if name == "reasoning_effort" else where
            raise InvalidBody(
                f"{where}: must be at most 64 letters, digits, blanks or any of -_.,:/+", field=where
            )
        if not isinstance(value, str | int | float):
            raise InvalidBody(f"{where}: must be true, false, a number or text", field=where)
        if not isinstance(value, str) and not abs(value) <= KWARG_NUMBER_MAX:
            raise InvalidBody(f"{where}: must be at most {KWARG_NUMBER_MAX}", field=where)
    return asked


def _digest(fields: dict[str, Any]) -> bytes:
    """The hash of what is asked, however it is spelt; it does not depend on how the answer is to be sent."""
    raw = _CANONICAL.encode({**fields, "tools": tools_key(fields["tools"]).hex()})
    return blake2b(raw, digest_size=16).digest()


# --- messages


def _message(message: _Message, index: int) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        field = f"messages[{index}].role"
        raise InvalidBody(
            f"{field} is {brief(message.role)}; it must be one of {', '.join(_ROLES)}", field=field
        )
    content = message.content
    if not content:
        parts: tuple[Part, ...] = ()
    elif isinstance(content, str):
        parts = (TextPart(content),)
    else:
        parts = tuple([part for i, given in enumerate(content) if (part := _part(given, role, index, i))])
    if role != "assistant":
        return Message(role, parts, None, (), message.tool_call_id if role == "tool" else None, message.name)
    reasoning = message.reasoning_content or _text(message.reasoning, f"messages[{index}].reasoning")
    calls = tuple([_call(call, index, i) for i, call in enumerate(message.tool_calls or ())])
    if message.function_call and not calls:
        calls = (ToolCall("", message.function_call.name, message.function_call.arguments or ""),)
    return Message(role, parts, reasoning or None, calls, None, message.name)


def _text(raw: msgspec.Raw, field: str) -> str | None:
    """The reasoning; None unless it is text: some clients send OpenAI's object of settings by this name."""
    return read(_TEXT, raw, field) if bytes(memoryview(raw)[:1]) == b'"' else None


def _part(part: _Part, role: Role, message: int, i: int) -> Part | None:
    field = f"messages[{message}].content[{i}]"
    match part.type:
        case "text" | "input_text" | "output_text":
            if part.text is None:
                raise InvalidBody(f"{field}.text is missing", field=f"{field}.text")
            if role == "system" and part.text.startswith(BILLING_HEADER):
                return None
            return TextPart(part.text) if part.text else None
        case "refusal":
            return TextPart(part.refusal) if part.refusal else None
        case "image_url":
            image = part.image_url
            if image is None:
                raise InvalidBody(f"{field}.image_url is missing", field=f"{field}.image_url")
            return ImagePart(image) if isinstance(image, str) else ImagePart(image.url, image.detail)
    raise Unsupported(
        f"{field}.type is {brief(part.type)}; text and image_url are understood", field=f"{field}.type"
    )


def _call(call: _Call, message: int, i: int) -> ToolCall:
    field = f"messages[{message}].tool_calls[{i}]"
    if call.type == "custom" and call.custom:
        return ToolCall(call.id or "", call.custom.name, call.custom.input or "")
    if call.type not in ("function", None):
        raise Unsupported(
            f"{field}.type is {brief(call.type)}; function is understood", field=f"{field}.type"
        )
    if call.function is None:
        raise InvalidBody(f"{field}.function is missing", field=f"{field}.function")
    return ToolCall(call.id or "", call.function.name, call.function.arguments or "")


# --- how to answer


def _format(given: _Format | None) -> ResponseFormat:
    match given:
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
        f"response_format.type is {brief(given.type)}; text, json_object and json_schema are understood",
        field="response_format.type",
    )


def _sampling(chat: _Body) -> SamplingParams:
    bounded(chat.temperature, 0, 2, "temperature")
    bounded(chat.top_p, 0, 1, "top_p")
    bounded(chat.top_k, -1, 2**31 - 1, "top_k")
    bounded(chat.min_p, 0, 1, "min_p")
    bounded(chat.presence_penalty, -2, 2, "presence_penalty")
    bounded(chat.frequency_penalty, -2, 2, "frequency_penalty")
    bounded(chat.repetition_penalty, 0.01, 10, "repetition_penalty")
    bounded(chat.seed, SEED_MIN, SEED_MAX, "seed")
    if chat.top_p == 0:
        raise InvalidBody(
            "top_p is 0, which leaves no token; use temperature 0 for greedy sampling", field="top_p"
        )
    field = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    most = getattr(chat, field)
    if most is not None and most < 1:
        raise InvalidBody(f"{field} is {brief(most)}; it must be at least 1", field=field)
    return SamplingParams(
        temperature=chat.temperature,
        top_p=chat.top_p,
        top_k=chat.top_k,
        min_p=chat.min_p,
        presence_penalty=chat.presence_penalty,
        frequency_penalty=chat.frequency_penalty,
        repetition_penalty=chat.repetition_penalty,
        seed=chat.seed,
        max_tokens=None if most is None else min(most, MAX_TOKENS_CLAMP),
        stop=_stop(chat.stop),
    )


def _stop(given: str | list[str] | None) -> tuple[str, ...]:
    if not given:
        return ()
    stops = (given,) if isinstance(given, str) else tuple(given)
    limited(len(stops), STOPS_MAX, "strings", "stop")
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= STOP_CHARS_MAX:
            field = "stop" if isinstance(given, str) else f"stop[{index}]"
            raise InvalidBody(f"{field} must have 1 to {STOP_CHARS_MAX} characters", field=field)
    return stops


def _choices(chat: _Body) -> dict[str, Any]:
    bounded(chat.n, 1, CHOICES_MAX, "n")
    bounded(chat.top_logprobs, 0, TOP_LOGPROBS_MAX, "top_logprobs")
    if chat.top_logprobs and not chat.logprobs:
        raise InvalidBody("top_logprobs needs logprobs to be true", field="top_logprobs")
    return {
        "n": 1 if chat.n is None else chat.n,
        "logprobs": bool(chat.logprobs),
        "top_logprobs": chat.top_logprobs or 0,
    }
