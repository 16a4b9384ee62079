"""Golden wire files of each dialect: `python -m tests.gateway.protocols.golden` writes what the code says today.

A case is a folder below its dialect's: request.json (as a client sends it, byte for byte) and reply.json (what was
sampled) are written by hand; canonical.json, response.json and response.sse are made here and read by a person before
they are committed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.engine.api import Finish
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.top_logprobs import packed
from sandgate.gateway.protocols.anthropic_messages import AnthropicMessages
from sandgate.gateway.protocols.base import Adapter, Choice, Context, TokenLogprobs, Usage
from sandgate.gateway.protocols.openai_chat import OpenAIChat
from sandgate.gateway.protocols.reply_items import ReasoningItem, TextItem, items_of
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta

FOLDER = Path(__file__).parents[2] / "golden"
CHAT, MESSAGES = OpenAIChat(), AnthropicMessages()
DIALECTS: dict[str, Adapter] = {adapter.name: adapter for adapter in (CHAT, MESSAGES)}
"""Folder below FOLDER -> what reads and writes its cases."""
CREATED = 1_780_000_000
PIECE = 9
"""Characters per delta: words and JSON are cut at odd places."""


class Sampled(msgspec.Struct, forbid_unknown_fields=True):
    """One choice of reply.json. `tokens`: (id, logprob, [[other id, its logprob], ...])."""

    reply: Reply
    finish: Finish = "stop"
    stop_reason: str | int | None = None
    tokens: list[tuple[int, float, list[tuple[int, float]]]] | None = None


class Outcome(msgspec.Struct, forbid_unknown_fields=True):
    """reply.json."""

    choices: list[Sampled]
    usage: Usage


class Case:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.adapter = DIALECTS[folder.parent.name]
        self.body = (folder / "request.json").read_bytes()
        self.request = self.adapter.decode(self.body, {})
        outcome = msgspec.json.decode((folder / "reply.json").read_bytes(), type=Outcome)
        self.usage = outcome.usage
        self.choices = [
            Choice(reply=one.reply, finish=one.finish, tokens=_tokens(one), stop_reason=one.stop_reason)
            for one in outcome.choices
        ]

    @property
    def context(self) -> Context:
        return Context(
            turns=tuple(f"turn{at}" for at in range(len(self.choices))),
            model=self.request.model,
            created=CREATED,
            prompt_tokens=self.usage.prompt,
            hide_reasoning=self.request.hide_reasoning,
            include_usage=self.request.include_usage,
            logprobs=self.request.logprobs,
            token_text=lambda token: "\ufffd" if token == 0 else f"<{token}>",
        )

    def canonical(self) -> bytes:
        return canonical(self.request)

    def json(self) -> bytes:
        return self.adapter.reply(self.context, self.choices, self.usage)

    def sse(self) -> bytes:
        stream = self.adapter.stream(self.context)
        out = [stream.start(), stream.keepalive()]
        for at, choice in enumerate(self.choices):
            tokens = choice.tokens
            for delta in deltas(choice.reply):
                out.append(stream.delta(delta, at, tokens))
                tokens = None
            if tokens:
                out.append(stream.tokens(tokens, at))
        out.append(stream.finish(self.choices, self.usage))
        return b"".join(out)

    def made(self) -> dict[str, bytes]:
        return {
            "canonical.json": self.canonical(),
            "response.json": msgspec.json.format(self.json(), indent=1) + b"\n",
            "response.sse": self.sse(),
        }


def canonical(request: TurnRequest) -> bytes:
    """For people: indented, the digest as hex."""
    value = msgspec.to_builtins(request)
    value["digest"] = request.digest.hex()
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _tokens(one: Sampled) -> TokenLogprobs | None:
    if one.tokens is None:
        return None
    return TokenLogprobs(
        array("i", [token for token, _, _ in one.tokens]),
        array("f", [logprob for _, logprob, _ in one.tokens]),
        tuple(packed(tuple(others)) for _, _, others in one.tokens),
    )


def deltas(reply: Reply) -> Iterator[ParseDelta]:
    """The reply in pieces, in the order in which a parser gives them."""
    for item in items_of(reply):
        match item:
            case TextItem(text):
                yield from map(TextDelta, _pieces(text))
            case ReasoningItem(text):
                yield from map(ReasoningDelta, _pieces(text))
            case _:
                first, *more = _pieces(item.call.arguments) or [""]
                yield CallDelta(item.number, item.call.name, first)
                yield from (CallDelta(item.number, None, piece) for piece in more)


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def cases(*dialects: Adapter) -> list[Path]:
    """Folders of these dialects; of all, if none is given."""
    names = [dialect.name for dialect in dialects] or [*DIALECTS]
    return sorted(path.parent for name in names for path in (FOLDER / name).glob("*/request.json"))


if __name__ == "__main__":
    for folder in cases():
        for name, data in Case(folder).made().items():
            (folder / name).write_bytes(data)
