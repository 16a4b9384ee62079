"""Codec and Parser: the interface to a model's tokens: render, bridge, parse. (pure)

Implementations: family renderers (`renderers` package) and the verified bridge over any chat template.
All methods are CPU only, deterministic and thread-safe; the core calls the slow ones off the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, TemplateValue, Tool, TurnRequest
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.media.vision import Vision

NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of tool call number `index` (0-based, in order of appearance). The first one of an index carries `name`;
    the `arguments` of an index, concatenated, are that ReplyCall's `arguments`."""

    index: int
    name: str | None
    arguments: str


ParseDelta = TextDelta | ReasoningDelta | CallDelta


class Parser(Protocol):
    """Sampled ids of one turn -> message, incrementally. Markers that are special tokens are recognised by id."""

    def feed(self, ids: Ids) -> list[ParseDelta]:
        """Takes ids, returns the deltas that they complete. It returns no text that a later id could change (half a
        character, half a marker, half a stop string)."""
        ...

    def finish(self, *, stopped_on: str | None = None, whole: bool = True) -> tuple[list[ParseDelta], Reply]:
        """Ends the turn: the remaining deltas, and the whole reply. All deltas, concatenated, are the reply.
        `stopped_on`: the stop string that ended generation; it is cut from the end of the text. `whole`: the model
        ended the turn; of one that was cut, a call in a thought that goes on is a draft."""
        ...


class Codec(Protocol):
    """Translates one model's messages to ids and back."""

    @property
    def name(self) -> str:
        """The codec's name in records: `renderers/qwen3@0.1.12` or `bridge/<digest of the template>`."""
        ...

    @property
    def tokenizer_digest(self) -> str:
        """Digest of tokenizer.json."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids in [0, vocab_size) exist."""
        ...

    @property
    def history(self) -> Literal["sampled", "template"]:
        """What of earlier turns stays in context: what was sampled, or what the template keeps of it."""
        ...

    @property
    def looks_back(self) -> bool:
        """Whether `bridge` must be given what came before the tail: its template numbers calls on, say, or a word in an
        earlier message switches a mode."""
        ...

    @property
    def no_tools(self) -> str:
        """Why this model cannot be given tools; "" if it can."""
        ...

    @property
    def vision(self) -> Vision | None:
        """How the model sees pictures; None: it takes none. `render` and `bridge` give one placeholder per picture,
        which `media.placing.expand` makes as many as the picture has patches."""
        ...

    @property
    def no_images(self) -> str:
        """Why this model cannot be given images; "" if it can."""
        ...

    def takes(self, asked: Mapping[str, TemplateValue]) -> dict[str, TemplateValue]:
        """Which of these variables are part of the prompt. `reasoning_effort`, which SDKs send to every model, is left
        out where the template does not read it, and else one that it knows; raises Unsupported for any other name that
        it does not read, and for no effort where it knows none."""
        ...

    def variant(self, values: Mapping[str, TemplateValue]) -> Codec:
        """The codec that renders and bridges under these variables; it parses like this one. The first time it takes
        tens of ms. Raises Unsupported where the template cannot be used with them."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """The full prompt's ids, generation prompt included. Raises BadRequest where the template refuses the
        messages."""
        ...

    def bridge(
        self,
        prompt: Ids,
        response: Ids,
        tail: Sequence[Message],
        tools: Sequence[Tool],
        *,
        closed: bool,
        names: Mapping[str, str] = NO_NAMES,
        earlier: Sequence[Message] = (),
    ) -> Ids | ForkReason:
        """The ids to append to `prompt + response` so that the next assistant turn can be sampled after `tail`.

        `prompt + response` is the whole path up to and including the parent's sampled ids. `closed` is False if the
        parent was cut (finish `length` or a stop string) and so has no closer: the closer is then part of the result.
        `names`: call id -> function, of the calls that the parent's answer makes: templates write it into tool answers.
        `earlier`: the messages before `tail`, where the codec `looks_back`.
        Returns a ForkReason when it cannot be proved that the tail renders on its own.
        """
        ...

    def parser(self, prompt: Ids, tools: Sequence[Tool], stop: Sequence[str] = ()) -> Parser:
        """A parser for a turn sampled after `prompt` (which may have opened the reasoning already)."""
        ...

    def lead(self) -> Ids:
        """The ids that the tokenizer puts before every text (a beginning-of-sequence token), most often none."""
        ...

    def encode_text(self, text: str, *, behind: bool = False) -> Ids:
        """The ids of a prompt that a client wrote whole, `lead` included, as engines encode a completion's prompt; or
        `behind` other ids, without. Raises BadRequest for control tokens in it, unless clients may spell them."""
        ...

    def spelt_in(self, text: str) -> int:
        """How many control tokens a text spells."""
        ...

    def text_parser(self, stop: Sequence[str] = ()) -> Parser:
        """A parser that takes all for text: of a turn sampled after a prompt that the client wrote whole. Special
        tokens are no text."""
        ...

    def constraint(self, prompt: Ids, request: TurnRequest) -> dict[str, Any] | None:
        """vLLM `structured_outputs` that holds a turn sampled after `prompt` to the request's tool_choice,
        parallel_tool_calls and response_format; None if any turn will do. Raises Unsupported where that cannot be
        enforced."""
        ...

    def decode(self, ids: Ids) -> str:
        """The text of ids, special tokens included (for viewers)."""
        ...

    def plain(self, ids: Ids) -> str:
        """The text of ids without special tokens: where engines look for stop strings."""
        ...

    def special_id(self, text: str) -> int | None:
        """The special token that is spelt so, if there is one. Engines look for stop strings in text without these."""
        ...

    def bytes_of(self, token: int) -> bytes:
        """The UTF-8 bytes of one id, perhaps a part of a character."""
        ...

    def spelt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """How many control tokens the text of messages and tools spells, whatever becomes of them
        (`model.specialTokensInText`)."""
        ...
