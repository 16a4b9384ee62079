"""Clients' text in a template: control tokens that it spells stay text; counts them. (pure)

Before a template sees a client's words, they are marked where they spell a control token, or could with what stands
beside them (`marks`, `controls`). What is a control token in the rendered text and has no mark was written by the
template. For such a text those tokens go by private names, in an encoder that knows the tokens by no other: so the
words of the client are encoded as the tokenizer encodes text, in one pass with the words around them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import Message, Tool
from sandgate.gateway.tokens.control_tokens import Controls, control_tokens
from sandgate.gateway.tokens.marks import BREAK, Marked, is_marked, unmark
from sandgate.gateway.tokens.segments import SegmentEncoder, alternation
from sandgate.gateway.tokens.vocab import Vocab

SpecialText = Literal["text", "control"]
"""What a control token that a client spells becomes: words, or the token (what Hugging Face does)."""

LEADS = (0xF0000, 0xFFFFE)
"""Code points of which the first that a text does not have begins the private names."""

LEADS_KEPT = 4
"""Encoders kept, one per lead; all texts but hostile ones take the first."""

TOOLS_BYTES_MAX = 2 << 20
TOOL_BYTES_MAX = 128 << 10
"""As for templates: requests share their tools. What is longer is marked anew each time."""


class ClientText:
    """One checkpoint's rule. Thread-safe: nothing changes after construction but caches."""

    def __init__(
        self, vocab: Vocab, template: str = "", stop_ids: Sequence[int] = (), rule: SpecialText = "text"
    ) -> None:
        self._vocab = vocab
        self._tokens = control_tokens(vocab, template, stop_ids)
        self._ids = frozenset(token.id for token in self._tokens)
        normalizes = vocab.raw.normalizer is not None
        self._controls = Controls(self._tokens, vocab.normalize if normalizes else None)
        self._pattern = re.compile(alternation([token.text for token in vocab.added if token.text]) or "(?!)")
        self._plain = rule == "text"
        self._encoders: dict[str, tuple[SegmentEncoder, Mapping[str, str]]] = {}
        self._tools: ByteCache[int, tuple[Tool, Any]] = ByteCache(TOOLS_BYTES_MAX, TOOL_BYTES_MAX)

    def message(self, given: dict[str, Any]) -> dict[str, Any]:
        """A message as templates see it, marked. The role is one of a few words, and part of some tokens."""
        if not self._plain:
            return given
        return {key: value if key == "role" else self._marked(value) for key, value in given.items()}

    def text(self, given: str) -> str:
        """A text as templates see it, marked."""
        marked: str = self._marked(given) if self._plain else given
        return marked

    def tools(self, tools: Sequence[Tool], given: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """The same for tools, in the order of `tools`."""
        if not self._plain or given is None:
            return given
        return [self._tool(tool, value) for tool, value in zip(tools, given, strict=True)]

    def encode(self, text: str) -> Ids:
        """The ids of a rendered text. Raises BadRequest where a client's text cannot be encoded as words."""
        if not self._plain or not is_marked(text):
            return self._vocab.encode(text)
        encoder, named, written = self._named(text)
        ids = encoder.encode(unmark(named))
        if self._count(ids) > written:  # a model that has the token's text as a word
            ids = self._in_pieces(encoder, named)
        if self._count(ids) > written:
            raise BadRequest("special tokens in it cannot be encoded as text", field="messages")
        return ids

    def decodes_to(self, ids: Ids, text: str) -> bool:
        """As `Vocab.decodes_to`, of a rendered text."""
        if not self._plain or not is_marked(text):
            return self._vocab.decodes_to(ids, text)
        if self._vocab.decodes_to(ids, unmark(text)):
            return True
        encoder, named, _ = self._named(text)
        texts = {name: self._vocab.texts[token_id] for name, token_id in encoder.texts().items()}
        pieces = encoder.pieces(unmark(named))
        normal = "".join(self._vocab.normalize(piece) + texts.get(token, "") for piece, token in pieces)
        return self._vocab.decode(ids) == normal

    def count(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
        """Control tokens that these spell."""
        return sum(map(self._controls.count, _texts_of(messages, tools)))

    def count_in(self, text: str) -> int:
        """Control tokens that a text spells."""
        return self._controls.count(text)

    @property
    def are_text(self) -> bool:
        """Whether control tokens that a client spells stay text."""
        return self._plain

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            breaks = self._controls.breaks(value)
            return Marked(value, breaks) if breaks or is_marked(value) else value
        if isinstance(value, dict):
            return type(value)({self._marked(key): self._marked(item) for key, item in value.items()})
        if isinstance(value, list):
            return [self._marked(item) for item in value]
        return value

    def _tool(self, tool: Tool, given: dict[str, Any]) -> Any:
        entry = self._tools.get(id(tool))
        if entry is None:  # an entry holds its tool, so that its id cannot become another's
            entry = (tool, self._marked(given))
            self._tools.put(id(tool), entry, len(repr(given)))
        return entry[1]

    def _named(self, text: str) -> tuple[SegmentEncoder, str, int]:
        """An encoder for this text; the text with private names for the template's tokens; how many they are."""
        encoder, names = self._encoder(_lead(text))
        written = 0

        def name(found: re.Match[str]) -> str:
            nonlocal written
            written += found.group() in names
            return names.get(found.group(), found.group())

        return encoder, self._pattern.sub(name, text), written

    def _encoder(self, lead: str) -> tuple[SegmentEncoder, Mapping[str, str]]:
        encoder = self._encoders.get(lead)
        if encoder is None:
            if len(self._encoders) >= LEADS_KEPT:
                self._encoders.clear()
            encoder = self._encoders[lead] = self._vocab.renamed(self._tokens, lead)
        return encoder

    def _in_pieces(self, encoder: SegmentEncoder, named: str) -> Ids:
        """Cut at the marks: no piece spells a token."""
        ids = array("i")
        for piece in map(unmark, named.split(BREAK)):
            ids += encoder.encode(piece, at_head=not ids)
        return ids

    def _count(self, ids: Ids) -> int:
        return sum(token_id in self._ids for token_id in ids)


def _lead(text: str) -> str:
    first = chr(LEADS[0])
    if first not in text:
        return first
    used = set(text)
    lead = next((chr(code) for code in range(*LEADS) if chr(code) not in used), None)
    if lead is None:
        raise BadRequest("too many code points of a private use plane", field="messages")
    return lead


def _texts_of(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """All that a client says in them."""
    said: list[str] = []
    for message in messages:
        said += (message.text, message.reasoning or "", message.name or "", message.tool_call_id or "")
        for call in message.tool_calls:
            said += (call.id, call.name, call.arguments)
    for tool in tools:
        said += (tool.name, tool.description or "")
        _words(tool.schema, said)
    return said


def _words(value: Any, said: list[str]) -> None:
    """All strings of a schema."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            said.append(one)
        elif isinstance(one, dict):
            waiting += (*one, *one.values())
        elif isinstance(one, list):
            waiting += one
