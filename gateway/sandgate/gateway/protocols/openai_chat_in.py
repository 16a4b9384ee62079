"""Decodes the body of POST /v1/chat/completions: bytes -> TurnRequest; limits and bounds of its fields. (pure)

Bodies of real clients are in tests/golden/openai_chat. Unknown fields are ignored. A known field that would change what
is sampled, and cannot be honoured, is refused by name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.message_equality import without_billing
from sandgate.gateway.conversation.messages import (
    Message,
    Part,
    ResponseFormat,
    Role,
    SamplingParams,
    TextPart,
    ToolCall,
    TurnRequest,
    VideoPart,
)
from sandgate.gateway.protocols.image_parts import image_part, video_part
from sandgate.gateway.protocols.openai_sampling import (
    TOP_LOGPROBS_MAX,
    Asked,
    choices_of,
    refuse,
    refused_fields,
    sampling_of,
)
from sandgate.gateway.protocols.openai_tools import choice_of, tools_of
from sandgate.gateway.protocols.request_fields import MESSAGES_MAX, digest_of, template_variables
from sandgate.gateway.protocols.wire import bounded, brief, limited, read, sendable, shallow

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
    video_url: _Url | str | None = None
    video: str | list[str] | None = None
    fps: float | None = None
    nframes: _Raw = _NONE
    min_frames: _Raw = _NONE
    max_frames: _Raw = _NONE
    min_pixels: _Raw = _NONE
    max_pixels: _Raw = _NONE
    total_pixels: _Raw = _NONE
    resized_height: _Raw = _NONE
    resized_width: _Raw = _NONE
    video_start: _Raw = _NONE
    video_end: _Raw = _NONE


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
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: _Raw = _NONE
    function_call: _Function | None = None


class _Schema(msgspec.Struct):
    schema: dict[str, Any] | None = None


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


class _Body(Asked, kw_only=True):
    messages: list[_Message]
    tools: _Raw = _NONE
    tool_choice: _Raw = _NONE
    response_format: _Format | None = None
    max_completion_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


_DECODER = msgspec.json.Decoder(_Body)
_TEXT = msgspec.json.Decoder(str)
_REFUSED = refused_fields(_Body, frozenset({"tools", "tool_choice"}))
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def decode(body: bytes) -> TurnRequest:
    """The request in a body. Raises InvalidBody or Unsupported, whose `field` is the path of the wrong value."""
    chat = read(_DECODER, body)
    refuse(chat, chat.model, _REFUSED)
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
    kwargs = template_variables(chat.chat_template_kwargs, chat.reasoning_effort)
    if kwargs:  # else not in the digest: it stays what it was in older journals
        fields["template_kwargs"] = kwargs
    return TurnRequest(
        **fields,
        stream=bool(chat.stream),
        include_usage=chat.include_usage,
        digest=digest_of(fields),
    )


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
    if not parts and message.refusal:
        parts = (TextPart(message.refusal),)
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
            text = without_billing(part.text) if role == "system" else part.text
            return TextPart(text) if text else None
        case "refusal":
            return TextPart(part.refusal) if part.refusal else None
        case "image_url":
            image = part.image_url
            if image is None:
                raise InvalidBody(f"{field}.image_url is missing", field=f"{field}.image_url")
            if isinstance(image, str):
                return image_part(image, f"{field}.image_url")
            return image_part(image.url, f"{field}.image_url.url", image.detail)
        case "video_url" | "video":
            return _video(part, field)
    raise Unsupported(
        f"{field}.type is {brief(part.type)}; text, image_url, video_url and video are understood",
        field=f"{field}.type",
    )


_VIDEO_SETTINGS = tuple(name for name in _Part.__struct_fields__ if _Part.__annotations__[name] == "_Raw")


def _video(part: _Part, field: str) -> VideoPart:
    """As vLLM's clients send it (`video_url`), or Qwen's (`video`: a URL, or its frames)."""
    where = f"{field}.{part.type}"
    video = part.video if part.type == "video" else part.video_url
    if video is None:
        raise InvalidBody(f"{where} is missing", field=where)
    if isinstance(video, _Url):
        video, where = video.url, f"{where}.url"
    others = [
        name for name in _VIDEO_SETTINGS if bytes(memoryview(getattr(part, name))) not in (b"", b"null")
    ]
    return video_part(video, where, field, part.fps, others)


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
    field = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    return sampling_of(chat, getattr(chat, field), field)


def _choices(chat: _Body) -> dict[str, Any]:
    bounded(chat.top_logprobs, 0, TOP_LOGPROBS_MAX, "top_logprobs")
    if chat.top_logprobs and not chat.logprobs:
        raise InvalidBody("top_logprobs needs logprobs to be true", field="top_logprobs")
    return {
        "n": choices_of(chat),
        "logprobs": bool(chat.logprobs),
        "top_logprobs": chat.top_logprobs or 0,
    }
