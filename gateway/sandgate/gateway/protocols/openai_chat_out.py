"""Encodes answers of POST /v1/chat/completions: JSON body or SSE chunks, as OpenAI's SDKs type them. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from sandgate.contract.errors import SandgateError
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.top_logprobs import unpacked
from sandgate.gateway.protocols.base import Choice, Context, TokenLogprobs, Usage
from sandgate.gateway.protocols.openai_errors import error_json
from sandgate.gateway.protocols.sse import DONE, event, one_line, text_json
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta

_JSON = msgspec.json.Encoder()
_encode = _JSON.encode

LOGPROB_MIN = -9999.0
"""OpenAI's own word for 'practically impossible'; JSON has no infinity."""


def response_id(context: Context) -> str:
    """The answer's id, which names the first choice's turn."""
    return f"chatcmpl-{context.turns[0]}"


def finish_reason(choice: Choice) -> str:
    """stop | length | tool_calls. An aborted generation was cut, like one at its limit."""
    if choice.finish != "stop":
        return "length"
    return "tool_calls" if choice.reply.tool_calls else "stop"


def usage_of(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


# --- whole


def reply(context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
    """The JSON body. Equal arguments give equal bytes."""
    return _encode(
        {
            "id": response_id(context),
            "object": "chat.completion",
            "created": context.created,
            "model": context.model,
            "choices": [
                {
                    "index": index,
                    "message": _message(choice.reply, context.turns[index]),
                    "logprobs": _logprobs(choice.tokens, context)
                    if choice.tokens and context.logprobs
                    else None,
                    "finish_reason": finish_reason(choice),
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage_of(usage),
        }
    )


def _message(reply: Reply, turn: str) -> dict[str, Any]:
    out: dict[str, Any] = {
        "role": "assistant",
        "content": None if reply.tool_calls and not reply.text else reply.text,
        "refusal": None,
    }
    if reply.tool_calls:
        out["tool_calls"] = [
            {
                "id": call_id(turn, index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(reply.tool_calls)
        ]
    if reply.reasoning:
        out["reasoning_content"] = out["reasoning"] = reply.reasoning
    return out


def _logprobs(tokens: TokenLogprobs, context: Context) -> dict[str, Any]:
    top = map(unpacked, tokens.top) if tokens.top else ((),) * len(tokens.ids)
    return {
        "content": [
            {
                **_token(token, logprob, context),
                "top_logprobs": [_token(other, its, context) for other, its in others],
            }
            for token, logprob, others in zip(tokens.ids, tokens.logprobs, top, strict=True)
        ],
        "refusal": None,
    }


def _token(token: int, logprob: float, context: Context) -> dict[str, Any]:
    text = (context.token_text or str)(token)
    raw: bytes | None = text.encode()
    if "\ufffd" in text:  # a part of a character, or that character itself
        raw = context.token_bytes(token) if context.token_bytes else None
    return {
        "token": text,
        "logprob": max(logprob, LOGPROB_MIN),
        "bytes": None if raw is None else list(raw),
    }


# --- streamed


class ChatStream:
    """Chunks of one answer. Only what changes is encoded: the envelope is made once per choice."""

    def __init__(self, context: Context) -> None:
        self._context = context
        envelope = {
            "id": response_id(context),
            "object": "chat.completion.chunk",
            "created": context.created,
            "model": context.model,
        }
        self._envelope = one_line(_encode(envelope))[:-1]
        self._heads = [
            b"data: " + self._envelope + b',"choices":[{"index":%d,"delta":' % index
            for index in range(len(context.turns))
        ]
        self._usage = b',"usage":null' if context.include_usage else b""
        self._tail = b',"logprobs":null,"finish_reason":null}]' + self._usage + b"}\n\n"

    def start(self) -> bytes:
        """The role, for each choice."""
        return b"".join(
            [head + b'{"role":"assistant","content":"","refusal":null}' + self._tail for head in self._heads]
        )

    def delta(self, delta: ParseDelta, choice: int = 0, tokens: TokenLogprobs | None = None) -> bytes:
        """One chunk."""
        match delta:
            case TextDelta(text):
                content = b'{"content":' + text_json(text) + b"}"
            case ReasoningDelta(text):
                raw = text_json(text)
                content = b'{"reasoning_content":' + raw + b',"reasoning":' + raw + b"}"
            case CallDelta(index, name, arguments):
                content = self._call(choice, index, name, text_json(arguments))
            case _:
                assert_never(delta)
        return self._heads[choice] + content + (self._tail_with(tokens) if tokens else self._tail)

    def _call(self, choice: int, index: int, name: str | None, arguments: bytes) -> bytes:
        if name is None:
            return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, arguments)
        call = call_id(self._context.turns[choice], index).encode()
        return (
            b'{"tool_calls":[{"index":%d,"id":"%b","type":"function","function":{"name":%b,"arguments":%b}}]}'
            % (
                index,
                call,
                text_json(name),
                arguments,
            )
        )

    def _tail_with(self, tokens: TokenLogprobs) -> bytes:
        if not self._context.logprobs:
            return self._tail
        logprobs = one_line(_encode(_logprobs(tokens, self._context)))
        return b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._usage + b"}\n\n"

    def tokens(self, tokens: TokenLogprobs, choice: int = 0) -> bytes:
        """An empty delta that carries logprobs."""
        return self._heads[choice] + b"{}" + self._tail_with(tokens)

    def keepalive(self) -> bytes:
        """An empty delta: a chunk to every client, words to none."""
        return self._heads[0] + b"{}" + self._tail

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Each choice's finish_reason, the usage if asked for, [DONE]."""
        out = [
            b'%b{},"logprobs":null,"finish_reason":"%b"}]%b}\n\n'
            % (head, finish_reason(choice).encode(), self._usage)
            for head, choice in zip(self._heads, choices, strict=True)
        ]
        if self._context.include_usage:
            out.append(event(self._envelope + b',"choices":[],"usage":' + _encode(usage_of(usage)) + b"}"))
        out.append(DONE)
        return b"".join(out)

    def error(self, error: SandgateError, request: str | None = None) -> bytes:
        """The error object as an event; OpenAI's SDKs raise it."""
        del request
        return event(error_json(error)) + DONE
