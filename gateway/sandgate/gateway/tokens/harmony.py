"""gpt-oss's channels (harmony): sampled ids -> text, reasoning and tool calls, incrementally. (pure)

A turn is one message after another: `<|channel|>analysis<|message|>…<|end|>`, then behind `<|start|>assistant` the
next. The channel says what a message is: `analysis` is reasoning, one with a recipient (`to=functions.f`) is a call,
all others are text for the user. The recipient stands before the channel or behind it; models write both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.tokens.api import ParseDelta
from sandgate.gateway.tokens.jsonslice import ends, members, sayable
from sandgate.gateway.tokens.lexer import Lexer
from sandgate.gateway.tokens.pieces import Marker, Piece, pieces
from sandgate.gateway.tokens.reply import ReplyBuilder
from sandgate.gateway.tokens.vocab import Vocab

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
FUNCTIONS = "functions."
"""What recipients that are the client's tools begin with."""
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*([A-Za-z_]+)")
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_ROLE = re.compile(r"\s*(?:assistant)?(?=[\s<]|$)")


class HarmonyParser:
    """The parser of one turn (see `api.Parser`). What is no message is text, so that nothing is lost."""

    def __init__(self, vocab: Vocab, tools: Sequence[Tool] = (), stop: Sequence[str] = ()) -> None:
        self._pieces = pieces(vocab, MARKERS)
        self._lexer = Lexer([marker for marker in MARKERS if marker not in vocab.ids], stop)
        self._calls = bool(tools)
        self._out = ReplyBuilder()
        self._header: list[str] | None = []
        """The header at hand; None inside a message and between messages."""
        self._raw = ""
        """What the header was, with its `<|message|>`; empty between messages."""
        self._reasons = False
        self._thought = False
        """There was an analysis message before; the next is a paragraph of its own."""
        self._name = ""
        """Function that the message at hand calls."""
        self._body: list[str] = []

    def feed(self, ids: Ids) -> list[ParseDelta]:
        """See `Parser.feed`."""
        for piece in self._lexer.feed(self._pieces.feed(ids)):
            self._piece(piece)
        return self._out.take()

    def finish(self, *, stopped_on: str | None = None, whole: bool = True) -> tuple[list[ParseDelta], Reply]:
        """See `Parser.finish`."""
        for piece in self._lexer.finish(self._pieces.finish(), stopped_on):
            self._piece(piece)
        if self._header is not None:
            self._leave("".join(self._header))
        elif self._name:
            self._end_call("")
        return self._out.take(), self._out.reply()

    def _piece(self, piece: Piece) -> None:
        text = piece.text if isinstance(piece, Marker) else piece
        if self._header is not None:
            self._in_header(piece, text)
        elif isinstance(piece, Marker) and text == START:
            self._end("")
            self._header = [START]
        elif isinstance(piece, Marker) and text in ENDS:
            self._end(text)
        else:
            self._say(text)

    def _in_header(self, piece: Piece, text: str) -> None:
        assert self._header is not None
        if isinstance(piece, Marker) and text == START:
            if "".join(self._header) != START:
                self._leave("".join(self._header))
            self._header = [START]
        elif isinstance(piece, Marker) and text in ENDS:
            self._leave("".join(self._header))
            self._header = None
        elif isinstance(piece, Marker) and text == MESSAGE:
            header, self._header = "".join(self._header), None
            self._begin(header)
        else:
            self._header.append(text)

    def _begin(self, header: str) -> None:
        said = header.removeprefix(START)
        role = _ROLE.match(said)
        if role is None:  # the model speaks for somebody else: no message of its own
            self._leave(header + MESSAGE)
            return
        self._raw = header + MESSAGE
        recipient = _RECIPIENT.search(said)
        channel = _CHANNEL.search(said)
        if recipient is not None and self._calls and recipient[1].startswith(FUNCTIONS):
            self._name = recipient[1].removeprefix(FUNCTIONS)
        elif recipient is not None:  # a tool that nobody declared
            self._leave(self._raw)
        elif channel is not None and channel[1] == "analysis":
            self._reasons = True
            if self._thought:
                self._out.reasoning("\n")
            self._thought = True

    def _say(self, text: str) -> None:
        if self._name:
            self._body.append(text)
        elif self._reasons:
            self._out.reasoning(text)
        else:
            self._out.text(text)

    def _end(self, closed: str) -> None:
        if self._name:
            self._end_call(closed)
        self._raw, self._reasons = "", False

    def _end_call(self, closed: str) -> None:
        name, body = self._name, "".join(self._body)
        self._name, self._body = "", []
        try:
            _, end = members(body)
        except ValueError:
            end = -1
        if end >= 0 and ends(body, end) and sayable(name):
            self._out.call(ReplyCall(name, body.strip()))
        else:
            self._leave(self._raw + body + closed)

    def _leave(self, raw: str) -> None:
        """What is no message of the assistant's stays in the text."""
        if any(marker in raw for marker in MARKERS):
            self._out.malformed.append(raw)
        self._out.text(raw)
