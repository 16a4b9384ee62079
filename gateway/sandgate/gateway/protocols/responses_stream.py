"""Encodes answers of POST /v1/responses as events, each with its number. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sandgate.contract.errors import SandgateError
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.protocols.base import Choice, Context, TokenLogprobs, Usage
from sandgate.gateway.protocols.openai_errors import error_object
from sandgate.gateway.protocols.reply_items import CallItem, ReasoningItem, TextItem
from sandgate.gateway.protocols.responses_out import (
    OutputItems,
    encode,
    finished,
    free_text,
    response,
    text_part,
)
from sandgate.gateway.protocols.sse import event
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta

Growing = Literal["text", "reasoning", "call"]


class ResponseStream:
    """Events of one answer. An item is open until a delta of another kind, or the end, closes it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._items = OutputItems(context)
        self._sequence = 0
        self._number = -1
        self._open: Growing | None = None
        self._text: list[str] = []
        self._call = "", 0

    def _event(self, name: str, /, **more: Any) -> bytes:
        raw = encode({"type": name, "sequence_number": self._sequence, **more})
        self._sequence += 1
        return event(raw, name.encode())

    def start(self) -> bytes:
        """The response, still empty."""
        created = self._event("response.created", response=response(self._context, "in_progress"))
        return created + self.keepalive()

    def keepalive(self) -> bytes:
        """`response.in_progress` once more: Codex does not count comments. What is long was told with
        `response.created`."""
        told = response(self._context, "in_progress", instructions=None, tools=[])
        return self._event("response.in_progress", response=told)

    def tokens(self, tokens: TokenLogprobs, choice: int = 0) -> bytes:
        """Nothing: tokens are not told in this dialect."""
        del tokens, choice
        return b""

    def delta(self, delta: ParseDelta, choice: int = 0, tokens: TokenLogprobs | None = None) -> bytes:
        """An item's events."""
        del choice, tokens
        match delta:
            case TextDelta(text):
                return self._grow("text") + self._more_text(text)
            case ReasoningDelta(text):
                return self._grow("reasoning") + self._more_reasoning(text)
            case CallDelta(index, name, arguments):
                begun = b""
                if name is not None:
                    begun = self._end()
                    self._call = name, index
                    begun += self._grow("call")
                self._text.append(arguments)
                return begun

    # -- items

    def _grow(self, kind: Growing) -> bytes:
        """Closes the open item and begins one of this kind, unless it is open."""
        if self._open == kind:
            return b""
        closed = self._end()
        self._open = kind
        self._number += 1
        match kind:
            case "text":
                item = self._items.message(self._number, None, "in_progress")
            case "reasoning":
                item = self._items.reasoning(self._number, "", "in_progress")
            case _:
                item = self._items.call(self._number, self._called(""), "in_progress")
        added = self._of_item("response.output_item.added", item=item)
        return closed + added + self._part_added(kind)

    def _part_added(self, kind: Growing) -> bytes:
        if kind == "text":
            return self._of_part("response.content_part.added", "text", content_index=0, part=text_part(""))
        if kind == "reasoning" and self._items.summarised:
            part = {"type": "summary_text", "text": ""}
            return self._of_part("response.reasoning_summary_part.added", kind, summary_index=0, part=part)
        return b""

    def _called(self, arguments: str) -> CallItem:
        name, index = self._call
        return CallItem(index, ReplyCall(name, arguments))

    def _of_item(self, name: str, /, **more: Any) -> bytes:
        return self._event(name, output_index=self._number, **more)

    def _of_part(self, name: str, kind: str, /, **more: Any) -> bytes:
        return self._of_item(name, item_id=self._items.id(self._number, kind), **more)

    def _more_text(self, text: str) -> bytes:
        self._text.append(text)
        return self._of_part("response.output_text.delta", "text", content_index=0, delta=text, logprobs=[])

    def _more_reasoning(self, text: str) -> bytes:
        self._text.append(text)
        if self._items.summarised:
            return self._of_part(
                "response.reasoning_summary_text.delta", "reasoning", summary_index=0, delta=text
            )
        return self._of_part("response.reasoning_text.delta", "reasoning", content_index=0, delta=text)

    def _end(self, status: str = "completed") -> bytes:
        if self._open is None:
            return b""
        kind, text = self._open, "".join(self._text)
        self._open = None
        self._text.clear()
        match kind:
            case "text":
                done = self._of_part(
                    "response.output_text.done", kind, content_index=0, text=text, logprobs=[]
                ) + self._of_part("response.content_part.done", kind, content_index=0, part=text_part(text))
                item = self._items.item(self._number, TextItem(text), status)
            case "reasoning":
                done = self._reasoned(text)
                item = self._items.item(self._number, ReasoningItem(text), status)
            case _:
                call = self._called(text)
                item = self._items.item(self._number, call, status)
                done = self._arguments(item, call.call)
        return done + self._of_item("response.output_item.done", item=item)

    def _reasoned(self, text: str) -> bytes:
        if not self._items.summarised:
            return self._of_part("response.reasoning_text.done", "reasoning", content_index=0, text=text)
        part = {"type": "summary_text", "text": text}
        return self._of_part(
            "response.reasoning_summary_text.done", "reasoning", summary_index=0, text=text
        ) + self._of_part("response.reasoning_summary_part.done", "reasoning", summary_index=0, part=part)

    def _arguments(self, item: dict[str, Any], call: ReplyCall) -> bytes:
        where = {"item_id": item["id"]}
        if item["type"] == "custom_tool_call":
            text = free_text(call)
            return self._of_item(
                "response.custom_tool_call_input.delta", **where, delta=text
            ) + self._of_item("response.custom_tool_call_input.done", **where, input=text)
        return self._of_item(
            "response.function_call_arguments.delta", **where, delta=call.arguments
        ) + self._of_item(
            "response.function_call_arguments.done", **where, name=item["name"], arguments=call.arguments
        )

    # -- ends

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The end of the open item, and the whole response."""
        (choice,) = choices
        whole = choice.finish == "stop"
        said = b"" if choice.reply.text or choice.reply.tool_calls else self._grow("text")
        ended = self._end("completed" if whole else "incomplete")
        name = "response.completed" if whole else "response.incomplete"
        return said + ended + self._event(name, response=finished(self._context, choices, usage))

    def error(self, error: SandgateError, request: str | None = None) -> bytes:
        """The response, failed: agents try again or not by the error's code."""
        del request
        told = error_object(error)
        code = told["code"] or told["type"]
        why = {"code": code, "message": told["message"]}
        return self._event("response.failed", response=response(self._context, "failed", error=why))
