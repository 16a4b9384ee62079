"""Decodes the body of POST /v1/messages: bytes -> TurnRequest; limits and bounds of its fields. (pure)

Unknown fields are ignored. A known field that would change what is sampled, and cannot be honoured, is refused by name.
`thinking` does not change what is sampled: whether a model thinks is the job's to say.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.messages import Message, ResponseFormat, SamplingParams, TurnRequest
from sandgate.gateway.protocols.anthropic_blocks import (
    Block,
    assistant_message,
    text_parts,
    user_messages,
)
from sandgate.gateway.protocols.anthropic_errors import ThreadUnsupported
from sandgate.gateway.protocols.anthropic_tools import choice_of, tools_of
from sandgate.gateway.protocols.openai_sampling import (
    MAX_TOKENS_CLAMP,
    NotTaken,
    refuse,
    refused_fields,
    stops_of,
)
from sandgate.gateway.protocols.request_fields import MESSAGES_MAX, digest_of, template_variables
from sandgate.gateway.protocols.wire import (
    EMPTY,
    bounded,
    brief,
    limited,
    read,
    sendable,
    shallow,
)

_Raw = msgspec.Raw
_NONE = _Raw(b"")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""Anthropic's."""


class _Message(msgspec.Struct):
    role: str
    content: str | list[Block]


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class _Output(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


class _Thinking(msgspec.Struct):
    type: str | None = None
    display: str | None = None


class _Body(NotTaken, kw_only=True):
    model: str
    messages: list[_Message]
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    tools: _Raw = _NONE
    tool_choice: _Raw = _NONE
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: _Thinking | None = None
    output_config: _Output | None = None
    output_format: _Format | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thread: _Raw = _NONE
    # Refused where they ask for anything.
    mcp_servers: _Raw = _NONE
    container: _Raw = _NONE


_DECODER = msgspec.json.Decoder(_Body)
_REFUSED = refused_fields(_Body, frozenset({"tools", "tool_choice", "thread"}))
_INSTEAD = {"mcp_servers": "offer their tools as `tools`", "structured_outputs": "use `output_config.format`"}


def decode(body: bytes) -> TurnRequest:
    """The request in a body. Raises InvalidBody or Unsupported, whose `field` is the path of the wrong value."""
    asked = read(_DECODER, body)
    _refuse(asked)
    tools = tools_of(asked.tools)
    choice, parallel = choice_of(asked.tool_choice, tools)
    output = asked.output_config or _Output()
    fields: dict[str, Any] = {
        "endpoint": "messages",
        "model": asked.model,
        "messages": _messages(asked),
        "tools": tools,
        "tool_choice": choice,
        "response_format": _format(output.format, "output_config.format")
        if output.format
        else _format(asked.output_format, "output_format"),
        "sampling": _sampling(asked),
        "parallel_tool_calls": parallel,
        "template_kwargs": template_variables(asked.chat_template_kwargs, _effort(output.effort)),
    }
    digest = digest_of(fields)
    del fields["endpoint"]
    return TurnRequest(
        **fields,
        stream=bool(asked.stream),
        hide_reasoning=bool(asked.thinking and asked.thinking.display == "omitted"),
        digest=digest,
    )


def _refuse(asked: _Body) -> None:
    if bytes(asked.thread) not in EMPTY:
        raise ThreadUnsupported("thread is not supported; send all messages", field="thread")
    refuse(asked, asked.model, _REFUSED, _INSTEAD)
    if not asked.messages:
        raise InvalidBody("messages is empty; at least one message is needed", field="messages")
    limited(len(asked.messages), MESSAGES_MAX, "messages", "messages")


def _messages(asked: _Body) -> tuple[Message, ...]:
    out: list[Message] = []
    if asked.system:
        parts = text_parts(asked.system, "system")
        if parts:
            out.append(Message("system", parts))
    for index, message in enumerate(asked.messages):
        field = f"messages[{index}]"
        match message.role:
            case "user":
                out += user_messages(message.content, f"{field}.content")
            case "assistant":
                out.append(assistant_message(message.content, f"{field}.content"))
            case "system":
                out.append(Message("system", text_parts(message.content, f"{field}.content")))
            case _:
                raise InvalidBody(
                    f"{field}.role is {brief(message.role)}; it must be user, assistant or system",
                    field=f"{field}.role",
                )
    if asked.messages[-1].role == "assistant":
        raise Unsupported(
            "This model does not support assistant message prefill. The conversation must end with a user "
            "message.",
            field=f"messages[{len(asked.messages) - 1}].role",
        )
    limited(len(out), MESSAGES_MAX, "messages and tool results", "messages")
    return tuple(out)


def _effort(effort: str | None) -> str | None:
    if effort is None:
        return None
    if effort not in EFFORTS:
        raise InvalidBody(
            f"output_config.effort is {brief(effort)}; it must be one of {', '.join(EFFORTS)}",
            field="output_config.effort",
        )
    return effort


def _format(given: _Format | None, field: str) -> ResponseFormat:
    match given:
        case None:
            return ResponseFormat()
        case _Format(type="json_schema", schema=dict() as schema):
            shallow(schema, f"{field}.schema")
            sendable(schema, f"{field}.schema")
            return ResponseFormat("json_schema", schema)
        case _Format(type="json_schema"):
            raise InvalidBody(f"{field}.schema is missing", field=f"{field}.schema")
    raise Unsupported(
        f"{field}.type is {brief(given.type)}; json_schema is understood", field=f"{field}.type"
    )


def _sampling(asked: _Body) -> SamplingParams:
    bounded(asked.temperature, 0, 2, "temperature")
    bounded(asked.top_p, 0, 1, "top_p")
    bounded(asked.top_k, -1, 2**31 - 1, "top_k")
    if asked.top_p == 0:
        raise InvalidBody("top_p is 0, which leaves no token", field="top_p")
    most = asked.max_tokens
    if most is not None and most < 1:
        raise InvalidBody(f"max_tokens is {brief(most)}; it must be at least 1", field="max_tokens")
    return SamplingParams(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        max_tokens=None if most is None else min(most, MAX_TOKENS_CLAMP),
        stop=stops_of(asked.stop_sequences, "stop_sequences"),
    )
