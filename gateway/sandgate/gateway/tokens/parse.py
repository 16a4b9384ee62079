"""TurnParser: sampled ids to text, reasoning and tool calls, incrementally. (pure)

A call is streamed as a whole when its block has closed and parsed, because no delta can be taken back; a block that
does not parse is text. White space next to a call block belongs to the markup, not to the text."""

from __future__ import annotations

from collections.abc import Sequence

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.tokens.api import ParseDelta
from sandgate.gateway.tokens.family_formats import LABELS, CallFormat, Grammar
from sandgate.gateway.tokens.lexer import Lexer
from sandgate.gateway.tokens.pieces import Marker, Piece, pieces
from sandgate.gateway.tokens.reply import ReplyBuilder
from sandgate.gateway.tokens.tool_calls import bare_calls
from sandgate.gateway.tokens.vocab import Vocab

BARE = CallFormat("bare", "", "", bare_calls)
"""A turn that is, as a whole, a JSON call."""


class TurnParser:
    """The parser of one turn for tagged grammars; see `harmony` for channels."""

    def __init__(
        self,
        vocab: Vocab,
        grammar: Grammar,
        tools: Sequence[Tool] = (),
        stop: Sequence[str] = (),
        *,
        reasoning: bool = False,
    ) -> None:
        self._format = grammar.calls if tools else None
        self._bare = grammar.bare if tools else ""
        self._tools = tuple(tools)
        self._think = grammar.think or ("", "")
        self._label = LABELS.get(self._think[0], "")
        """What may still come of the label at the beginning of the reasoning."""
        markers = grammar.markers if tools else (grammar.think or ())
        self._pieces = pieces(vocab, markers)
        self._lexer = Lexer([marker for marker in markers if marker not in vocab.ids], stop)
        self._out = ReplyBuilder()
        self._reasoning = reasoning
        self._fresh = True
        """Only newlines came since the reasoning or the content began; they are dropped there."""
        self._after_reasoning = False
        self._space = ""
        """White space that may belong to markup that follows."""
        self._draft: list[Piece] | None = None
        """The pieces from a call opener inside reasoning on: a draft if the reasoning is closed later, or the turn
        cut, else a call."""
        self._form: CallFormat | None = None
        """Format of the open block."""
        self._block: list[str] | None = None

    def feed(self, ids: Ids) -> list[ParseDelta]:
        """See `Parser.feed`."""
        for piece in self._lexer.feed(self._pieces.feed(ids)):
            self._piece(piece)
        return self._out.take()

    def finish(self, *, stopped_on: str | None = None, whole: bool = True) -> tuple[list[ParseDelta], Reply]:
        """See `Parser.finish`."""
        for piece in self._lexer.finish(self._pieces.finish(), stopped_on):
            self._piece(piece)
        if self._draft is not None and whole:  # the thought was never closed: the opener ended it
            draft, self._draft, self._reasoning, self._space = self._draft, None, False, ""
            for piece in draft:
                self._piece(piece)
        self._thought()
        if self._block is not None:
            self._end_block(closed="")
        if self._reasoning:
            self._unlabelled()
        elif not self._out.calls:
            self._out.text(self._space)
        return self._out.take(), self._out.reply()

    def _piece(self, piece: Piece) -> None:
        if self._draft is not None:
            self._drafted(piece)
        elif self._block is not None:
            self._in_block(piece)
        elif isinstance(piece, Marker):
            self._marker(piece)
        elif self._reasoning:
            self._reason(piece)
        else:
            self._say(piece)

    def _marker(self, marker: Marker) -> None:
        opens, closes = self._think
        if self._reasoning:
            if marker.text == closes:
                self._unlabelled()
                self._reasoning, self._space = False, ""
                self._fresh = self._after_reasoning = True
            elif self._format is not None and marker.text == self._format.open:
                self._draft = [marker]
            elif marker.text != opens:
                self._reason(marker.text)
        elif marker.text == opens and not self._out.spoke and not self._after_reasoning:
            self._reasoning, self._fresh, self._space = True, True, ""
        elif self._format is not None and marker.text == self._format.open:
            self._form, self._block = self._format, []
        else:
            self._say(marker.text)

    def _drafted(self, piece: Piece) -> None:
        assert self._draft is not None
        if isinstance(piece, Marker) and piece.text == self._think[1]:
            self._thought()
            self._marker(piece)
        else:
            self._draft.append(piece)

    def _thought(self) -> None:
        """What was held as a call's draft, if anything, is part of the thought."""
        draft, self._draft = self._draft or (), None
        for part in draft:
            self._reason(part.text if isinstance(part, Marker) else part)

    def _in_block(self, piece: Piece) -> None:
        assert self._block is not None
        if isinstance(piece, Marker) and self._form is not None:
            if piece.text == self._form.close:
                self._end_block(closed=piece.text)
                return
            if piece.text == self._form.open:  # the closer was forgotten
                form = self._form
                self._end_block(closed="")
                self._form, self._block = form, []
                return
        self._block.append(piece.text if isinstance(piece, Marker) else piece)

    def _end_block(self, *, closed: str) -> None:
        form, block = self._form, self._block
        assert form is not None
        assert block is not None
        self._form = self._block = None
        body = "".join(block)
        calls = None
        if closed or form.ends_unclosed or not form.close:
            calls = form.read(body, self._tools)
        if calls is None:
            self._leave(form.open + body + closed, is_markup=bool(form.open))
            return
        for item in calls:
            if isinstance(item, ReplyCall):
                self._out.call(item)
                self._space = ""
            else:
                self._leave(item, is_markup=True)

    def _leave(self, raw: str, *, is_markup: bool) -> None:
        """What did not parse stays in the text."""
        if is_markup:
            self._out.malformed.append(raw)
        self._out.text(self._space + raw)
        self._space = ""

    def _reason(self, text: str) -> None:
        if self._fresh:
            text = (self._space + text).lstrip("\n")
            self._space = ""
            if self._label.startswith(text):  # too short to say
                self._space = text
                return
            text = text.removeprefix(self._label).lstrip("\n")
            self._label, self._fresh = "", not text
        text = self._space + text
        fresh = text.rstrip("\n")
        self._space = text[len(fresh) :]
        self._out.reasoning(fresh)

    def _unlabelled(self) -> None:
        """The reasoning ends: what was held as the beginning of a label, and is none, was thought."""
        if self._fresh and self._space.strip() != self._label.strip():
            self._out.reasoning(self._space)

    def _say(self, text: str) -> None:
        if self._fresh and self._after_reasoning:
            text = text.lstrip("\n")
            self._fresh = not text
        text = self._space + text
        fresh = text.rstrip()
        if self._bare and not self._out.spoke and fresh.lstrip().startswith(self._bare):
            self._form, self._block, self._space = BARE, [text], ""
            return
        if self._format is None and not self._bare:
            fresh = text
        self._space = text[len(fresh) :]
        self._out.text(fresh)


HEADER_IDS_MAX = 64
"""Ids at the end of a prompt in which a generation prompt may have opened the reasoning."""


def opens_reasoning(vocab: Vocab, grammar: Grammar, prompt: Ids) -> bool:
    """True if the generation prompt at the end of `prompt` opened the reasoning and did not close it."""
    if grammar.think is None:
        return False
    opens, closes = grammar.think
    tail = prompt[-HEADER_IDS_MAX:]
    start = 0
    for index in range(len(tail) - 1, -1, -1):
        text = vocab.texts.get(tail[index])
        if text in {opens, closes}:
            return text == opens
        if tail[index] in vocab.special_ids:
            start = index + 1
            break
    text = vocab.decode(tail[start:])
    return text.rfind(opens) > text.rfind(closes)
