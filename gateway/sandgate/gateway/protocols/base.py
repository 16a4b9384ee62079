"""Adapter and Stream: the interface of an API dialect: bytes to TurnRequest, turns to bytes. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sandgate.contract.errors import InvalidBody, NotFound, SandgateError
from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.conversation.messages import ResponseForm, TurnRequest
from sandgate.gateway.engine.api import Finish
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.protocols.reply_items import Item
from sandgate.gateway.tokens.api import ParseDelta


class PreviousNotFound(InvalidBody):
    """400 for a response to go on from that is not kept: OpenAI's SDKs know its code."""


class ItemNotFound(NotFound):
    """404 for an item that is not kept; `field` is the path of the reference to it."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class ModelNotFound(NotFound):
    """404 for a model name that this job does not serve: dialects that have a code for it say so."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the engine counted them; real, because clients compact their history by it."""

    prompt: int
    completion: int
    """Of all choices together."""
    cached: int = 0
    reasoning: int = 0
    """Of `completion`, those that were thought."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Sampled ids with their logprobs, for clients that asked for them. All three are aligned."""

    ids: Ids
    logprobs: Floats
    top: tuple[bytes, ...] = ()
    """Per id the alternatives, packed (see journal.top_logprobs); empty if none were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Facts of an answer that are known before it exists. All are journalled, so that a replay is byte for byte the
    same answer."""

    turns: tuple[str, ...]
    """One turn id per choice; the first one names the answer."""
    model: str
    """As the client called it."""
    created: int
    """Unix seconds."""
    prompt_tokens: int = 0
    include_usage: bool = False
    hide_reasoning: bool = False
    form: ResponseForm | None = None
    """Set in Responses."""
    logprobs: bool = False
    token_ids: bool = False
    prompt_told: bool = True
    request_id: str = ""
    token_text: Callable[[int], str] | None = None
    """Text of one token; needed where `logprobs` is true."""
    token_bytes: Callable[[int], bytes] | None = None
    """The bytes of one that is a part of a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished turn."""

    reply: Reply
    finish: Finish
    tokens: TokenLogprobs | None = None
    """Set if logprobs or ids were asked for."""
    prompt_ids: Ids | None = None
    """Set if ids were asked for."""
    stop_reason: str | int | None = None
    """The stop string or token that ended it."""
    versions: tuple[tuple[int, int, int], ...] = ()
    """(policy version, start, end) spans over the sampled ids; set if ids were asked for."""


class Stream(Protocol):
    """Encodes one answer as events. Each method returns the bytes to write now."""

    def start(self) -> bytes:
        """The events before the first token."""
        ...

    def delta(self, delta: ParseDelta, choice: int = 0, tokens: TokenLogprobs | None = None) -> bytes:
        """The events of a delta of a choice. `tokens`: those that arrived with it, if logprobs were asked for."""
        ...

    def tokens(self, tokens: TokenLogprobs, choice: int = 0) -> bytes:
        """Tokens that made no visible delta (yet)."""
        ...

    def keepalive(self) -> bytes:
        """A real event that says nothing: clients time out on comments alone."""
        ...

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The terminal events, once the turns are durable. Deltas that were not sent are not made up here."""
        ...

    def error(self, error: SandgateError, request: str | None = None) -> bytes:
        """Instead of `finish`: the dialect's error event, and its end of stream. `request`: see `error_body`."""
        ...


class Earlier(NamedTuple):
    """A response that was kept: the input that was its own, and its answer."""

    turn: str
    items: tuple[bytes, ...]
    """JSON."""
    reply: Reply


class History(Protocol):
    """What a session keeps for requests that refer to it."""

    def chain(self, response: str) -> Sequence[Earlier] | None:
        """This response and those that it goes on from, the first one first; None if it is not kept."""
        ...

    def item(self, item: str) -> tuple[Item, str] | None:
        """An output item of a response that is kept, and its turn."""
        ...

    def input(self, item: str, field: str) -> bytes | None:
        """An input item of a response that is kept, by the id that it was given here, as JSON. Raises InvalidBody with
        this field where a request refers to more than it could send."""
        ...


class NoHistory:
    """Of a session that keeps nothing."""

    def chain(self, response: str) -> None:
        """See `History`."""

    def item(self, item: str) -> None:
        """See `History`."""

    def input(self, item: str, field: str) -> None:
        """See `History`."""


NOTHING = NoHistory()


class Adapter(Protocol):
    """One dialect. Stateless; safe from any thread."""

    @property
    def name(self) -> str:
        """For metrics labels."""
        ...

    def decode(self, body: bytes, headers: Mapping[str, str], history: History = NOTHING) -> TurnRequest:
        """Raises BadRequest that names the field, and NotFound for a reference to what `history` does not have; never
        anything else, whatever the body holds."""
        ...

    def reply(self, context: Context, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The whole answer as a JSON body."""
        ...

    def stream(self, context: Context) -> Stream:
        """An encoder for one answer."""
        ...

    def error_body(self, error: SandgateError, request: str | None = None) -> bytes:
        """The dialect's JSON error object; the status is `error.status`. `request`: the id of the HTTP request, for
        dialects whose errors have it; all have it as a header."""
        ...
