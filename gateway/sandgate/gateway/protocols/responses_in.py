"""Decodes the body of POST /v1/responses: bytes -> TurnRequest; limits and bounds of its fields. (pure)

Unknown fields are ignored. A known field that would change what is sampled, and cannot be honoured, is refused by name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.kept_responses import digests_of
from sandgate.gateway.conversation.messages import (
    Message,
    ResponseForm,
    ResponseFormat,
    TextPart,
    TurnRequest,
)
from sandgate.gateway.protocols.base import History, PreviousNotFound
from sandgate.gateway.protocols.openai_sampling import SamplingAsked, refuse, refused_fields, sampling_of
from sandgate.gateway.protocols.request_fields import MESSAGES_MAX, digest_of, template_variables
from sandgate.gateway.protocols.responses_items import ITEMS_MAX, message_of, messages_of, refuse_begun
from sandgate.gateway.protocols.responses_tools import Offered, choice_of, tools_of
from sandgate.gateway.protocols.wire import (
    brief,
    encoded_well,
    limited,
    read,
    sendable,
    shallow,
)

_Raw = msgspec.Raw
_NONE = _Raw(b"")
CHAIN_BYTES_MAX = 32 * 1024 * 1024
"""Of all items that a request goes on from: what it could send itself (`limits.body_bytes`). One content is kept once,
but read as often as it was sent."""
ENCRYPTED = "reasoning.encrypted_content"


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class _Body(SamplingAsked, kw_only=True):
    model: str
    input: _Raw = _NONE
    instructions: _Raw = _NONE
    previous_response_id: str | None = None
    store: bool | None = None
    tools: _Raw = _NONE
    tool_choice: _Raw = _NONE
    parallel_tool_calls: bool | None = None
    text: _Raw = _NONE
    reasoning: _Raw = _NONE
    include: list[str] | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    metadata: _Raw = _NONE
    user: _Raw = _NONE
    chat_template_kwargs: dict[str, Any] | None = None
    # Refused where they ask for anything.
    background: _Raw = _NONE
    conversation: _Raw = _NONE
    prompt: _Raw = _NONE
    top_logprobs: _Raw = _NONE
    previous_response: _Raw = _NONE
    previous_input_messages: _Raw = _NONE


_DECODER = msgspec.json.Decoder(_Body)
_STRING = msgspec.json.Decoder(str)
_LIST = msgspec.json.Decoder(list[_Raw])
_TEXT: msgspec.json.Decoder[_Text | None] = msgspec.json.Decoder(_Text | None)
_REASONING: msgspec.json.Decoder[_Reasoning | None] = msgspec.json.Decoder(_Reasoning | None)
_ECHOED = ("instructions", "tools", "tool_choice", "text", "reasoning", "metadata", "user")
"""Fields that a response says again as they were sent. `truncation` is not: nothing is truncated here."""
_REFUSED = refused_fields(_Body, frozenset((*_ECHOED, "input")))
_INSTEAD = {
    "background": "ask for a stream",
    "conversation": "use previous_response_id, or send all items",
    "previous_input_messages": "send them as items of `input`",
    "previous_response": "use previous_response_id, or send its items",
    "prompt": "send `instructions` and `input`",
    "structured_outputs": "use `text.format`",
    "top_logprobs": "use chat completions",
}


def decode(body: bytes, history: History) -> TurnRequest:
    """The request in a body. Raises InvalidBody or Unsupported, whose `field` is the path of the wrong value, and
    NotFound for references to what is not kept."""
    encoded_well(body)
    asked = read(_DECODER, body)
    _refuse(asked)
    offered = tools_of(asked.tools)
    own = _items(asked.input)
    refuse_begun(own, "input")
    reasoning = _settings(_REASONING, asked.reasoning, "reasoning") or _Reasoning()
    text = _settings(_TEXT, asked.text, "text") or _Text()
    messages = (
        *_instructions(asked.instructions),
        *_before(asked.previous_response_id, history, offered),
        *messages_of(own, "input", history, offered),
    )
    limited(len(messages), MESSAGES_MAX, "messages", "input")
    if not messages:
        raise InvalidBody("input is empty; at least one item is needed", field="input")
    sealed = ENCRYPTED in (asked.include or ())
    fields: dict[str, Any] = {
        "endpoint": "responses",
        "model": asked.model,
        "messages": messages,
        "tools": offered.tools,
        "tool_choice": choice_of(asked.tool_choice, offered),
        "response_format": _format(text.format),
        "sampling": sampling_of(asked, asked.max_output_tokens, "max_output_tokens"),
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "template_kwargs": template_variables(
            asked.chat_template_kwargs, reasoning.effort, "reasoning.effort"
        ),
    }
    digest = digest_of(fields)
    del fields["endpoint"]
    items, echo, store = tuple([bytes(item) for item in own]), _echo(asked), asked.store is not False
    form = ResponseForm(
        previous=asked.previous_response_id,
        items=items,
        echo=echo,
        digests=digests_of(items, echo) if store else (),
        store=store,
        sealed=sealed,
    )
    return TurnRequest(
        **fields,
        stream=bool(asked.stream),
        form=form,
        digest=digest,
    )


def _refuse(asked: _Body) -> None:
    refuse(asked, asked.model, _REFUSED, _INSTEAD)
    for index, name in enumerate(asked.include or ()):
        if name == "message.output_text.logprobs":
            raise Unsupported(
                f"include[{index}]: use chat completions for logprobs", field=f"include[{index}]"
            )


def _items(raw: _Raw) -> tuple[_Raw, ...]:
    """The request's own items; a text is a user's message."""
    match bytes(memoryview(raw)[:1]):
        case b'"':
            return (_Raw(b'{"type":"message","role":"user","content":' + bytes(raw) + b"}"),)
        case b"[":
            listed: list[_Raw] = read(_LIST, raw, "input")
            return tuple(listed)
        case b"" | b"n":
            return ()
    raise InvalidBody("input must be a text or a list of items", field="input")


def _instructions(raw: _Raw) -> tuple[Message, ...]:
    """OpenAI does not carry instructions over from the previous response; nor is that done here."""
    if bytes(raw) in (b"", b"null"):
        return ()
    text = read(_STRING, raw, "instructions")
    return (Message("system", (TextPart(text),)),) if text else ()


def _before(previous: str | None, history: History, offered: Offered) -> list[Message]:
    """All that was said up to the end of an earlier response."""
    if previous is None:
        return []
    chain = history.chain(previous)
    if chain is None:
        raise PreviousNotFound(
            f"Previous response with id {brief(previous)} not found.", field="previous_response_id"
        )
    out: list[Message] = []
    field = "previous_response_id"
    limited(sum(len(earlier.items) for earlier in chain), ITEMS_MAX, "items", field)
    limited(sum(len(item) for earlier in chain for item in earlier.items), CHAIN_BYTES_MAX, "bytes", field)
    for earlier in chain:
        out += messages_of([_Raw(item) for item in earlier.items], field, history, offered)
        out.append(message_of(earlier.reply, earlier.turn))
    return out


def _settings(decoder: msgspec.json.Decoder[Any], raw: _Raw, field: str) -> Any:
    return read(decoder, raw, field) if bytes(raw) else None


def _format(given: _Format | None) -> ResponseFormat:
    match given:
        case None | _Format(type="text"):
            return ResponseFormat()
        case _Format(type="json_object"):
            return ResponseFormat("json_object")
        case _Format(type="json_schema", schema=dict() as schema):
            shallow(schema, "text.format.schema")
            sendable(schema, "text.format.schema")
            return ResponseFormat("json_schema", schema)
        case _Format(type="json_schema"):
            raise InvalidBody("text.format.schema is missing", field="text.format.schema")
    raise Unsupported(
        f"text.format.type is {brief(given.type)}; text, json_object and json_schema are understood",
        field="text.format.type",
    )


def _echo(asked: _Body) -> dict[str, bytes]:
    """What the response says again, as JSON on one line, for events; a field that was not sent, or is null, has
    OpenAI's default."""
    echo = {
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "store": asked.store is not False,
        "max_output_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
    }
    out = {name: msgspec.json.encode(value) for name, value in echo.items()}
    sent = {name: bytes(getattr(asked, name)).translate(None, b"\r\n") for name in _ECHOED}
    return out | {name: raw for name, raw in sent.items() if raw not in (b"", b"null")}
