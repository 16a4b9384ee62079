"""Encodes answers of POST /v1/responses: the whole response, as JSON. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sandgate.gateway.conversation.ids import call_id, item_id
from sandgate.gateway.conversation.messages import ResponseForm
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.protocols.base import Choice, Context, Usage
from sandgate.gateway.protocols.reply_items import CallItem, Item, ReasoningItem, TextItem, items_of
from sandgate.gateway.protocols.responses_tools import tools_of
from sandgate.gateway.protocols.sealed_reasoning import seal

encode = msgspec.json.Encoder().encode
_DEFAULTS: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
_PREFIX = {"reasoning": "rs_", "text": "msg_", "call": "fc_", "custom": "ctc_"}


class _Reasoning(msgspec.Struct):
    summary: str | None = None


class _FreeText(msgspec.Struct):
    input: str


_REASONING: msgspec.json.Decoder[_Reasoning | None] = msgspec.json.Decoder(_Reasoning | None)
_FREE = msgspec.json.Decoder(_FreeText)


def response_id(turn: str) -> str:
    """The answer's id, which names its turn."""
    return f"resp_{turn}"


def turn_named(response: str) -> str:
    """Inverse of `response_id`."""
    return response.removeprefix("resp_")


class OutputItems:
    """Encodes the output items of one response, as its request asked for them."""

    def __init__(self, context: Context) -> None:
        form = context.form or ResponseForm()
        self._turn = context.turns[0]
        self.sealed = form.sealed
        reasoning = form.echo.get("reasoning")
        settings = _REASONING.decode(reasoning) if reasoning else None
        self.summarised = bool(settings and settings.summary)
        self._forms = tools_of(msgspec.Raw(form.echo.get("tools", b""))).forms

    def item(self, number: int, item: Item, status: str = "completed") -> dict[str, Any]:
        """Output item `number`, whole."""
        match item:
            case ReasoningItem(text):
                return self.reasoning(number, text, status)
            case TextItem(text):
                return self.message(number, text, status)
        return self.call(number, item, status)

    def reasoning(self, number: int, text: str, status: str) -> dict[str, Any]:
        """Reasoning: as its summary if one was asked for (most clients show no other), else as its content."""
        out: dict[str, Any] = {"id": self.id(number, "reasoning"), "type": "reasoning", "summary": []}
        if text and self.summarised:
            out["summary"] = [{"type": "summary_text", "text": text}]
        elif text:
            out["content"] = [{"type": "reasoning_text", "text": text}]
        if self.sealed:
            out["encrypted_content"] = seal(text) if text else ""
        return {**out, "status": status}

    def message(self, number: int, text: str | None, status: str) -> dict[str, Any]:
        """Text; None: not begun yet."""
        return {
            "id": self.id(number, "text"),
            "type": "message",
            "role": "assistant",
            "content": [] if text is None else [text_part(text)],
            "status": status,
        }

    def call(self, number: int, item: CallItem, status: str) -> dict[str, Any]:
        """A call of a function, or of a custom tool, whose input is free text."""
        call = item.call
        form = self._forms.get(call.name)
        custom = form is not None and form.kind == "custom"
        out: dict[str, Any] = {
            "id": self.id(number, "custom" if custom else "call"),
            "type": "custom_tool_call" if custom else "function_call",
            "call_id": call_id(self._turn, item.number),
            "name": form.name if form else call.name,
        }
        if form and form.namespace:
            out["namespace"] = form.namespace
        if custom:
            return {**out, "input": free_text(call), "status": status}
        return {**out, "arguments": call.arguments, "status": status}

    def id(self, number: int, kind: str) -> str:
        """The id of output item `number`."""
        return item_id(self._turn, number, _PREFIX[kind])


def text_part(text: str) -> dict[str, Any]:
    """The one content part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def free_text(call: ReplyCall) -> str:
    """The input of a custom tool's call; what the model wrote, if that is none."""
    try:
        return _FREE.decode(call.arguments).input
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return call.arguments


def output_items(reply: Reply) -> list[Item]:
    """An answer's items. One that says nothing has an empty text: clients go on asking after none, and the turn would
    be gone with the reasoning that most of them drop."""
    items = list(items_of(reply))
    return items if reply.text or reply.tool_calls else [*items, TextItem("")]


def response(context: Context, status: str, **more: Any) -> dict[str, Any]:
    """The response object, as far as it is known before there is an answer."""
    echo = {name: msgspec.Raw(raw) for name, raw in (context.form or ResponseForm()).echo.items()}
    return {
        "id": response_id(context.turns[0]),
        "object": "response",
        "created_at": context.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": context.model,
        "output": [],
        "usage": None,
        **_DEFAULTS,
        **echo,
        **more,
    }


def finished(context: Context, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
    """The whole response. An aborted generation was cut, like one at its limit."""
    (choice,) = choices
    whole = choice.finish == "stop"
    items = OutputItems(context)
    told = output_items(choice.reply)
    output = [
        items.item(number, item, "completed" if whole or number < len(told) - 1 else "incomplete")
        for number, item in enumerate(told)
    ]
    return response(
        context,
        "completed" if whole else "incomplete",
        incomplete_details=None if whole else {"reason": "max_output_tokens"},
        output=output,
        usage={
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.completion,
        },
    )


def reply(context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
    """The JSON body. Equal arguments give equal bytes."""
    return encode(finished(context, choices, usage))
