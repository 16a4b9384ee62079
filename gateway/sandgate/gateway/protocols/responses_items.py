"""Input items of POST /v1/responses as canonical messages. (pure)

A model's turn is several items (reasoning, text, each call): those that follow each other become one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.messages import Message, Part, Role, TextPart, ToolCall
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.protocols.base import History, ItemNotFound
from sandgate.gateway.protocols.image_parts import image_part
from sandgate.gateway.protocols.reply_items import CallItem, Item, ReasoningItem, TextItem
from sandgate.gateway.protocols.responses_tools import Offered
from sandgate.gateway.protocols.sealed_reasoning import unseal
from sandgate.gateway.protocols.wire import brief, limited, read

ITEMS_MAX = 20_000
"""Far above any window (an item takes at least 3 tokens); bounds the work on a hostile body."""
_Raw = msgspec.Raw
_NONE = _Raw(b"")
_ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
}


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class _Item(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    id: str | None = None
    content: str | list[_Part] | None = None
    summary: list[_Part] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[_Part] | None = None
    status: _Raw = _NONE


_ITEM = msgspec.json.Decoder(_Item)


def messages_of(items: Sequence[_Raw], field: str, history: History, offered: Offered) -> list[Message]:
    """The conversation of these items. Raises InvalidBody, Unsupported; NotFound for a reference to nothing."""
    limited(len(items), ITEMS_MAX, "items", field)
    out = _Conversation()
    for index, raw in enumerate(items):
        where = f"{field}[{index}]"
        _take(read(_ITEM, raw, where), where, out, history, offered)
    return out.whole()


_BEGUN = (b'"in_progress"', b'"incomplete"')


def refuse_begun(items: Sequence[_Raw], field: str) -> None:
    """Raises Unsupported for an answer that the client begins, which would be no sample: vLLM goes on with a last item
    of such a status. One that was cut, and that other items follow, is history; so is a thought, or a message without a
    word, which ours end with that were cut in a thought: agents' loops send them back as they are."""
    if not items:
        return
    item, where = read(_ITEM, items[-1], f"{field}[{len(items) - 1}]"), f"{field}[{len(items) - 1}].status"
    if item.role == "assistant" and bytes(item.status) in _BEGUN and _says(item):
        raise Unsupported(f"{where}: an answer that the client begins itself would be no sample", field=where)


def _says(item: _Item) -> bool:
    if item.content is None or isinstance(item.content, str):
        return bool(item.content)
    return any(part.text or part.refusal for part in item.content)


def message_of(reply: Reply, turn: str) -> Message:
    """A turn's answer as the message that its client would send back."""
    calls = [ToolCall(call_id(turn, i), call.name, call.arguments) for i, call in enumerate(reply.tool_calls)]
    parts = (TextPart(reply.text),) if reply.text else ()
    return Message("assistant", parts, reply.reasoning or None, tuple(calls))


class _Conversation:
    """Messages so far, and the assistant's turn that is still growing."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._parts: list[Part] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._spoke = False
        self._turn: str | None = None

    def message(self, message: Message) -> None:
        self._end()
        self._messages.append(message)

    def thought(self, text: str) -> None:
        """A turn begins with what the model thought."""
        if self._spoke:
            self._end()
        self._reasoning.append(text)

    def said(self, parts: Sequence[Part]) -> None:
        """Two texts one after the other are two turns: one turn has one."""
        if self._parts and not self._calls:
            self._end()
        self._parts += parts
        self._spoke = True

    def called(self, call: ToolCall) -> None:
        self._calls.append(call)
        self._spoke = True

    def item(self, item: Item, turn: str) -> None:
        """A part of a turn of ours."""
        if self._turn not in (None, turn):
            self._end()
        match item:
            case ReasoningItem(text):
                self.thought(text)
            case TextItem(text):
                self.said((TextPart(text),))
            case CallItem(number, call):
                self.called(ToolCall(call_id(turn, number), call.name, call.arguments))
        self._turn = turn

    def _end(self) -> None:
        if self._spoke or any(self._reasoning):  # a thought that cannot be read is none
            reasoning = "".join(self._reasoning) or None
            self._messages.append(Message("assistant", tuple(self._parts), reasoning, tuple(self._calls)))
        self._parts, self._reasoning, self._calls = [], [], []
        self._spoke, self._turn = False, None

    def whole(self) -> list[Message]:
        self._end()
        return self._messages


def _take(item: _Item, field: str, out: _Conversation, history: History, offered: Offered) -> None:
    match item.type:
        case "message" | None if item.role is not None:
            _message(item, field, out)
        case "reasoning":
            out.thought(_reasoning(item))
        case "function_call":
            arguments = _needed(item.arguments, f"{field}.arguments")
            out.called(_call(item, arguments, field, offered))
        case "custom_tool_call":
            free = msgspec.json.encode({"input": _needed(item.input, f"{field}.input")}).decode()
            out.called(_call(item, free, field, offered))
        case "function_call_output" | "custom_tool_call_output":
            call = _needed(item.call_id, f"{field}.call_id")
            parts = _parts(_needed(item.output, f"{field}.output"), f"{field}.output")
            out.message(Message("tool", parts, None, (), call))
        case "item_reference" | None if item.id is not None:
            _refer(item.id, field, out, history, offered)
        case None:
            raise InvalidBody(f"{field}.type is missing", field=f"{field}.type")
        case "message":
            raise InvalidBody(f"{field}.role is missing", field=f"{field}.role")
        case "item_reference":
            raise InvalidBody(f"{field}.id is missing", field=f"{field}.id")
        case _:
            raise Unsupported(
                f"{field}.type is {brief(item.type)}; messages, reasoning, function and custom tool calls and their "
                "outputs, and item references are understood",
                field=f"{field}.type",
            )


def _refer(name: str, field: str, out: _Conversation, history: History, offered: Offered) -> None:
    """One level deep: `input_items` tells a reference under the id of what it refers to."""
    if found := history.item(name):
        out.item(*found)
        return
    kept = history.input(name, field)
    given = read(_ITEM, kept, field) if kept is not None else _Item()
    if given.type == "item_reference" or not (given.type or given.role):
        raise ItemNotFound(
            f"Item with id {brief(name)} not found: items of responses are kept unless `store` is false",
            field=f"{field}.id",
        )
    _take(given, field, out, history, offered)


def _message(item: _Item, field: str, out: _Conversation) -> None:
    role = _ROLES.get(item.role or "")
    if role is None:
        raise InvalidBody(
            f"{field}.role is {brief(item.role)}; it must be one of {', '.join(_ROLES)}",
            field=f"{field}.role",
        )
    parts = _parts(item.content or "", f"{field}.content")
    if role == "assistant":
        out.said(parts)
    else:
        out.message(Message(role, parts))


def _reasoning(item: _Item) -> str:
    content = item.content if isinstance(item.content, list) else ()
    for parts in (content, item.summary or ()):
        if text := "".join(part.text or "" for part in parts):
            return text
    return unseal(item.encrypted_content or "")


def _call(item: _Item, arguments: str, field: str, offered: Offered) -> ToolCall:
    name = _needed(item.name, f"{field}.name")
    return ToolCall(_needed(item.call_id, f"{field}.call_id"), offered.shown(name, item.namespace), arguments)


def _needed(value: Any, field: str) -> Any:
    if value is None:
        raise InvalidBody(f"{field} is missing", field=field)
    return value


def _parts(content: str | list[_Part], field: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple([part for i, given in enumerate(content) if (part := _part(given, f"{field}[{i}]"))])


def _part(part: _Part, field: str) -> Part | None:
    match part.type:
        case "input_text" | "output_text" | "text" | "summary_text":
            text = _needed(part.text, f"{field}.text")
            return TextPart(text) if text else None
        case "refusal":
            return TextPart(part.refusal) if part.refusal else None
        case "input_image":
            if part.file_id and not part.image_url:
                raise Unsupported(
                    f"{field}.file_id: no files are kept here; send the image as `image_url`, a data URL",
                    field=f"{field}.file_id",
                )
            where = f"{field}.image_url"
            return image_part(_needed(part.image_url, where), where, part.detail)
    raise Unsupported(
        f"{field}.type is {brief(part.type)}; input_text, output_text and input_image are understood",
        field=f"{field}.type",
    )
