"""Encodes answers of vLLM's /inference/v1/generate: JSON body or chunks, as its own protocol types them. (pure)"""

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
from sandgate.gateway.tokens.api import ParseDelta

_encode = msgspec.json.Encoder().encode


def _name(context: Context) -> str:
    return context.request_id or context.turns[0]


def reply(context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
    """The JSON body. Equal arguments give equal bytes."""
    told = [
        {"index": index, **_tokens(choice.tokens, context), **_ends(choice)}
        for index, choice in enumerate(choices)
    ]
    return _encode(
        {
            "request_id": _name(context),
            "model": context.model,
            "created": context.created,
            "choices": told,
            "usage": usage_of(usage),
            "prompt_token_ids": _prompt(context, choices),
            "output_mode": "tokens",
        }
    )


def _prompt(context: Context, choices: Sequence[Choice]) -> list[int] | None:
    ids = choices[0].prompt_ids if context.prompt_told else None
    return None if ids is None else ids.tolist()


def _ends(choice: Choice) -> dict[str, Any]:
    """What is known of a choice when it has ended. A stop token is no reason: it is what ends a turn."""
    return {
        "finish_reason": choice.finish,
        "stop_reason": choice.stop_reason if isinstance(choice.stop_reason, str) else None,
        "weight_versions": [
            {"version": str(version), "start": start, "end": end} for version, start, end in choice.versions
        ],
    }


def _tokens(tokens: TokenLogprobs | None, context: Context) -> dict[str, Any]:
    if tokens is None:
        return {"token_ids": [], "logprobs": None}
    out: dict[str, Any] = {"token_ids": tokens.ids.tolist(), "logprobs": None}
    if context.logprobs:
        others = map(unpacked, tokens.top) if tokens.top else ((),) * len(tokens.ids)
        out["logprobs"] = {
            "content": [
                {**_one(token, logprob), "top_logprobs": _candidates(token, logprob, top)}
                for token, logprob, top in zip(tokens.ids, tokens.logprobs, others, strict=True)
            ]
        }
    return out


def _one(token: int, logprob: float) -> dict[str, Any]:
    return {"token_id": token, "logprob": max(logprob, LOGPROB_MIN)}


def _candidates(token: int, logprob: float, top: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    """The sampled token first, as vLLM has it, then the others by their rank."""
    return [_one(token, logprob), *(_one(other, its) for other, its in top if other != token)]


class GenerateStream:
    """Chunks of one answer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._head = {"request_id": _name(context), "output_mode": "tokens"}

    def start(self) -> bytes:
        """Nothing: the first chunk has tokens."""
        return b""

    def delta(self, delta: ParseDelta, choice: int = 0, tokens: TokenLogprobs | None = None) -> bytes:
        """Its tokens; what they spell is not told."""
        del delta
        return b"" if tokens is None else self.tokens(tokens, choice)

    def tokens(self, tokens: TokenLogprobs, choice: int = 0) -> bytes:
        """One chunk."""
        return self._chunk({"index": choice, **_tokens(tokens, self._context), "finish_reason": None})

    def keepalive(self) -> bytes:
        """A chunk without tokens."""
        return self._chunk({"index": 0, **_tokens(None, self._context), "finish_reason": None})

    def _chunk(self, *choices: dict[str, Any], **more: Any) -> bytes:
        return event(_encode({**self._head, "choices": choices, **more}))

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Each choice's end, the usage if asked for, [DONE]."""
        told = _prompt(self._context, choices)
        more = {} if told is None else {"prompt_token_ids": told}
        ends = [
            self._chunk({"index": index, "token_ids": [], "logprobs": None, **_ends(choice)}, **more)
            for index, choice in enumerate(choices)
        ]
        if self._context.include_usage:
            ends.append(self._chunk(usage=usage_of(usage)))
        return b"".join([*ends, DONE])

    def error(self, error: SandgateError, request: str | None = None) -> bytes:
        """The error object as an event."""
        del request
        return event(error_json(error)) + DONE
