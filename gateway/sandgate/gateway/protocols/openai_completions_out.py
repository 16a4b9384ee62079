"""Encodes answers of POST /v1/completions: JSON body or SSE chunks, as OpenAI's SDKs type them. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sandgate.contract.errors import SandgateError
from sandgate.gateway.journal.top_logprobs import unpacked
from sandgate.gateway.protocols.base import Choice, Context, TokenLogprobs, Usage
from sandgate.gateway.protocols.openai_chat_out import LOGPROB_MIN, usage_of
from sandgate.gateway.protocols.openai_errors import error_json
from sandgate.gateway.protocols.sse import DONE, event
from sandgate.gateway.tokens.api import ParseDelta, TextDelta

_encode = msgspec.json.Encoder().encode


def _envelope(context: Context) -> dict[str, Any]:
    return {
        "id": f"cmpl-{context.turns[0]}",
        "object": "text_completion",
        "created": context.created,
        "model": context.model,
    }


def finish_reason(choice: Choice) -> str:
    """stop | length. An aborted generation was cut, like one at its limit."""
    return "stop" if choice.finish == "stop" else "length"


def _ends(choice: Choice) -> dict[str, Any]:
    """What is known of a choice when it has ended. A stop token is no reason: it is what ends a turn."""
    told: dict[str, Any] = {"finish_reason": finish_reason(choice)}
    if isinstance(choice.stop_reason, str):
        told["stop_reason"] = choice.stop_reason
    if choice.prompt_ids is not None:
        told["prompt_token_ids"] = choice.prompt_ids.tolist()
    return told


def reply(context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
    """The JSON body. Equal arguments give equal bytes."""
    told = []
    for index, choice in enumerate(choices):
        out = {"index": index, "text": choice.reply.text, "logprobs": None, **_ends(choice)}
        if choice.tokens is not None:
            out |= _tokens(choice.tokens, context, 0)[0]
        told.append(out)
    return _encode({**_envelope(context), "choices": told, "usage": usage_of(usage)})


def _tokens(tokens: TokenLogprobs, context: Context, offset: int) -> tuple[dict[str, Any], int]:
    """What is told of tokens, as far as it was asked for; and where in the text the next one stands."""
    out: dict[str, Any] = {}
    if context.token_ids:
        out["token_ids"] = tokens.ids.tolist()
    if not context.logprobs:
        return out, offset
    text = context.token_text or str
    words, offsets, tops = [], [], []
    others = map(unpacked, tokens.top) if tokens.top else ((),) * len(tokens.ids)
    for token, logprob, alternatives in zip(tokens.ids, tokens.logprobs, others, strict=True):
        word = text(token)
        words.append(word)
        offsets.append(offset)
        offset += len(word)
        top = {text(other): max(its, LOGPROB_MIN) for other, its in reversed(list(alternatives))}
        tops.append(top | {word: max(logprob, LOGPROB_MIN)})
    out["logprobs"] = {
        "text_offset": offsets,
        "token_logprobs": [max(logprob, LOGPROB_MIN) for logprob in tokens.logprobs],
        "tokens": words,
        "top_logprobs": tops,
    }
    return out, offset


class CompletionStream:
    """Chunks of one answer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._head = _envelope(context)
        self._usage = {"usage": None} if context.include_usage else {}
        self._offsets = [0] * len(context.turns)

    def start(self) -> bytes:
        """Nothing: the first chunk has text."""
        return b""

    def delta(self, delta: ParseDelta, choice: int = 0, tokens: TokenLogprobs | None = None) -> bytes:
        """One chunk."""
        text = delta.text if isinstance(delta, TextDelta) else ""
        return self._chunk(choice, text, tokens)

    def tokens(self, tokens: TokenLogprobs, choice: int = 0) -> bytes:
        """A chunk without text, which has what is told of each token."""
        return self._chunk(choice, "", tokens)

    def keepalive(self) -> bytes:
        """A chunk without text."""
        return self._chunk(0, "", None)

    def _chunk(self, choice: int, text: str, tokens: TokenLogprobs | None, **ends: Any) -> bytes:
        told = {"index": choice, "text": text, "logprobs": None, "finish_reason": None, **ends}
        if tokens is not None:
            more, self._offsets[choice] = _tokens(tokens, self._context, self._offsets[choice])
            told |= more
        return event(_encode({**self._head, "choices": [told], **self._usage}))

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Each choice's finish_reason, the usage if asked for, [DONE]."""
        out = [self._chunk(index, "", None, **_ends(choice)) for index, choice in enumerate(choices)]
        if self._context.include_usage:
            out.append(event(_encode({**self._head, "choices": [], "usage": usage_of(usage)})))
        return b"".join([*out, DONE])

    def error(self, error: SandgateError, request: str | None = None) -> bytes:
        """The error object as an event; OpenAI's SDKs raise it."""
        del request
        return event(error_json(error)) + DONE
