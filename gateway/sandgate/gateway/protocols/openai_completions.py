"""The adapter of OpenAI's completions, of prompts that clients make themselves: as text, or as token ids. (pure)

`return_token_ids` is vLLM's: the answer has the ids of prompt and sample, so that a client that works on ids need not
encode what was sampled.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, SandgateError, Unsupported
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.protocols.base import NOTHING, Choice, Context, History, Stream, Usage
from sandgate.gateway.protocols.openai_completions_out import CompletionStream, reply
from sandgate.gateway.protocols.openai_errors import error_json
from sandgate.gateway.protocols.openai_sampling import (
    TOP_LOGPROBS_MAX,
    Asked,
    choices_of,
    refuse,
    refused_fields,
    sampling_of,
)
from sandgate.gateway.protocols.request_fields import digest_of
from sandgate.gateway.protocols.wire import bounded, read

ID_MAX = 2**31 - 1
_Raw = msgspec.Raw
_NONE = _Raw(b"")


class _Body(Asked, kw_only=True):
    prompt: _Raw
    logprobs: int | None = None
    best_of: int | None = None
    return_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    skip_special_tokens: bool | None = None
    # Refused where they ask for anything.
    suffix: _Raw = _NONE
    prompt_embeds: _Raw = _NONE
    response_format: _Raw = _NONE


_DECODER = msgspec.json.Decoder(_Body)
_REFUSED = refused_fields(_Body, frozenset({"prompt"}))
_INSTEAD = {"response_format": "use chat completions", "echo": "the client has its prompt"}
_TEXT = msgspec.json.Decoder(str)
_IDS = msgspec.json.Decoder(list[int])
_LIST = msgspec.json.Decoder(list[_Raw])


class OpenAICompletions:
    """OpenAI's completions as an `Adapter`."""

    name = "openai_completions"

    def decode(self, body: bytes, headers: Mapping[str, str], history: History = NOTHING) -> TurnRequest:
        """Decodes a request. Headers have no meaning in this dialect."""
        del headers, history
        return decode(body)

    def reply(self, context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
        """A `text_completion`."""
        return reply(context, choices, usage)

    def stream(self, context: Context) -> Stream:
        """`text_completion` events."""
        return CompletionStream(context)

    def error_body(self, error: SandgateError, request: str | None = None) -> bytes:
        """OpenAI's error object."""
        del request
        return error_json(error)


def decode(body: bytes) -> TurnRequest:
    """The request in a body. Raises InvalidBody or Unsupported, whose `field` is the path of the wrong value."""
    asked = read(_DECODER, body)
    refuse(asked, asked.model, _REFUSED, _INSTEAD)
    bounded(asked.logprobs, 0, TOP_LOGPROBS_MAX, "logprobs")
    n = choices_of(asked)
    if asked.best_of is not None and asked.best_of != n:
        raise Unsupported("best_of is not n: all that is sampled is an answer here", field="best_of")
    if asked.add_special_tokens is False:
        raise Unsupported("add_special_tokens: send the prompt as token ids", field="add_special_tokens")
    if asked.skip_special_tokens is False:
        raise Unsupported("skip_special_tokens: use return_token_ids", field="skip_special_tokens")
    prompt = _prompt(asked.prompt, "prompt")
    fields: dict[str, Any] = {
        "endpoint": "completions",
        "model": asked.model,
        "prompt": prompt if isinstance(prompt, str) else prompt.tobytes().hex(),
        "as_text": isinstance(prompt, str),
        "tools": (),
        "sampling": sampling_of(asked, asked.max_tokens, "max_tokens"),
        "n": n,
        "logprobs": asked.logprobs is not None,
        "top_logprobs": asked.logprobs or 0,
        "token_ids": bool(asked.return_token_ids),
    }
    return TurnRequest(
        model=asked.model,
        messages=(),
        prompt=prompt,
        sampling=fields["sampling"],
        n=n,
        stream=bool(asked.stream),
        include_usage=asked.include_usage,
        logprobs=fields["logprobs"],
        top_logprobs=fields["top_logprobs"],
        token_ids=fields["token_ids"],
        digest=digest_of(fields),
    )


def _prompt(raw: msgspec.Raw, field: str, *, listed: bool = False) -> str | Ids:
    """A text, a list of ids, or a list of one of either."""
    first = bytes(memoryview(raw)[:1])
    if first == b'"':
        text = read(_TEXT, raw, field)
        if not text:
            raise InvalidBody(f"{field} is empty; it needs at least one character", field=field)
        return text
    if first != b"[":
        raise InvalidBody(f"{field} must be a text, or a list of token ids", field=field)
    head = bytes(memoryview(raw)[1:64]).lstrip()[:1]
    if head in (b'"', b"[") and not listed:
        prompts = read(_LIST, raw, field)
        if len(prompts) > 1:
            raise Unsupported(
                f"{field} holds {len(prompts)} prompts; send each in a call of its own", field=field
            )
        return _prompt(prompts[0], f"{field}[0]", listed=True)
    ids = read(_IDS, raw, field)
    if not ids:
        raise InvalidBody(f"{field} is empty; it needs at least one token id", field=field)
    for index, token_id in enumerate(ids):
        if not 0 <= token_id <= ID_MAX:
            where = f"{field}[{index}]"
            raise InvalidBody(f"{where} is no token id", field=where)
    return array("i", ids)
