"""Encodes answers of POST /v1/messages: JSON body or events, as Anthropic's SDKs type them. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.gateway.conversation.ids import call_id, call_mark
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.protocols.anthropic_blocks import UNPARSED
from sandgate.gateway.protocols.anthropic_errors import error_json
from sandgate.gateway.protocols.base import Choice, Context, TokenLogprobs, Usage
from sandgate.gateway.protocols.reply_items import CallItem, ReasoningItem, TextItem, items_of
from sandgate.gateway.protocols.sealed_reasoning import seal
from sandgate.gateway.protocols.sse import event
from sandgate.gateway.protocols.wire import ANYTHING, shallow
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta

_JSON = msgspec.json.Encoder()

Kind = Literal["text", "thinking", "tool_use"]


def message_id(context: Context) -> str:
    """The answer's id, which names its turn."""
    return f"msg_{context.turns[0]}"


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's input_tokens leave out what came from a cache."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def stop_reason(choice: Choice) -> str:
    """end_turn | stop_sequence | tool_use | max_tokens. An aborted generation was cut, like one at its limit."""
    if choice.finish != "stop":
        return "max_tokens"
    if choice.reply.tool_calls:
        return "tool_use"
    return "stop_sequence" if isinstance(choice.stop_reason, str) else "end_turn"


def _ends(choice: Choice) -> dict[str, Any]:
    reason = stop_reason(choice)
    return {
        "stop_reason": reason,
        "stop_sequence": choice.stop_reason if reason == "stop_sequence" else None,
    }


def _message(context: Context, **more: Any) -> dict[str, Any]:
    return {
        "id": message_id(context),
        "type": "message",
        "role": "assistant",
        "model": context.model,
        **more,
    }


# --- whole


def reply(context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
    """The JSON body. Equal arguments give equal bytes."""
    (choice,) = choices
    content = [_block(item, context) for item in items_of(choice.reply)]
    return _JSON.encode(_message(context, content=content, **_ends(choice), usage=_usage(usage)))


def _block(item: TextItem | ReasoningItem | CallItem, context: Context) -> dict[str, Any]:
    match item:
        case TextItem(text):
            return {"type": "text", "text": text}
        case ReasoningItem(text):
            told = "" if context.hide_reasoning else text
            return {"type": "thinking", "thinking": told, "signature": _signature(context, text)}
    return {**_use(context, item.number, item.call.name), "input": input_of(item.call)}


def _use(context: Context, index: int, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id(context.turns[0], index, "toolu_"), "name": name}


def _signature(context: Context, reasoning: str) -> str:
    """Of a block of thinking. It has the text itself if that is not shown."""
    return seal(reasoning) if context.hide_reasoning else f"sig_{call_mark(context.turns[0], -1)}"


def input_of(call: ReplyCall) -> Any:
    """A call's arguments as the model wrote them, if they are an object that Anthropic's SDKs can read and send again:
    200 levels, no number beyond float64. Else the text itself, under a name that says so."""
    try:
        value = ANYTHING.decode(call.arguments)
        shallow(value, UNPARSED)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, InvalidBody):
        value = None
    if isinstance(value, dict) and [*value] != [UNPARSED]:  # what looks like ours is wrapped: one unwraps it
        return msgspec.Raw(call.arguments.encode())
    return {UNPARSED: call.arguments}


# --- streamed


def _event(name: str, **more: Any) -> bytes:
    return event(_JSON.encode({"type": name, **more}), name.encode())


class MessageStream:
    """Events of one answer. A block is open until a delta of another kind, or the end, closes it. A call's arguments
    are told when it is whole: SDKs fail at what is no object. Parsers give whole calls, so nobody waits for that."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._index = -1
        self._open: Kind | None = None
        self._thought: list[str] = []
        self._arguments: list[str] = []

    def start(self) -> bytes:
        """The message, still empty. Its usage is that of the prompt; the last event has the rest."""
        usage = _usage(Usage(self._context.prompt_tokens, 0))
        empty = _message(self._context, content=[], stop_reason=None, stop_sequence=None, usage=usage)
        return _event("message_start", message=empty)

    def delta(self, delta: ParseDelta, choice: int = 0, tokens: TokenLogprobs | None = None) -> bytes:
        """A block's events."""
        del choice, tokens
        match delta:
            case TextDelta(text):
                begun = self._begin("text", {"type": "text", "text": ""})
                return begun + self._more({"type": "text_delta", "text": text})
            case ReasoningDelta(text):
                begun = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self._thought.append(text)
                if self._context.hide_reasoning:
                    return begun
                return begun + self._more({"type": "thinking_delta", "thinking": text})
            case CallDelta(index, name, arguments):
                begun = b""
                if name is not None:
                    use = {**_use(self._context, index, name), "input": {}}
                    begun = self._end() + self._begin("tool_use", use)
                self._arguments.append(arguments)
                return begun

    def _begin(self, kind: Kind, block: dict[str, Any]) -> bytes:
        """Closes the open block and opens one of this kind, unless it is open."""
        if self._open == kind:
            return b""
        closed = self._end()
        self._open = kind
        self._index += 1
        return closed + _event("content_block_start", index=self._index, content_block=block)

    def _more(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        last = b""
        if self._open == "thinking":
            signature = _signature(self._context, "".join(self._thought))
            last = self._more({"type": "signature_delta", "signature": signature})
            self._thought.clear()
        elif self._open == "tool_use":
            told = _JSON.encode(input_of(ReplyCall("", "".join(self._arguments)))).decode()
            last = self._more({"type": "input_json_delta", "partial_json": told})
            self._arguments.clear()
        self._open = None
        return last + _event("content_block_stop", index=self._index)

    def tokens(self, tokens: TokenLogprobs, choice: int = 0) -> bytes:
        """Nothing: this dialect does not tell tokens."""
        del tokens, choice
        return b""

    def keepalive(self) -> bytes:
        """A ping."""
        return _event("ping")

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The end of the open block, the reason of the stop with the usage, and the end."""
        (choice,) = choices
        ends = _event("message_delta", delta=_ends(choice), usage=_usage(usage))
        return self._end() + ends + _event("message_stop")

    def error(self, error: SandgateError, request: str | None = None) -> bytes:
        """The error object as an event; Anthropic's SDKs raise it."""
        return event(error_json(error, request), b"error")
