"""Decodes sampled ids to text and markers, as they arrive. (pure)

Text never ends in half a character: the bytes wait for the rest. Special tokens (the closer, padding) are not text;
added tokens that a grammar names are markers; other added tokens are text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sandgate.contract.trajectory import Ids
from sandgate.gateway.tokens.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker that was sampled as one added token."""

    text: str


Piece = str | Marker


class Pieces(Protocol):
    """One turn's decoder."""

    def feed(self, ids: Ids) -> list[Piece]:
        """The pieces that these ids add."""
        ...

    def finish(self) -> list[Piece]:
        """The pieces that waited for the rest of a character that never came."""
        ...


def pieces(vocab: Vocab, markers: Iterable[str]) -> Pieces:
    """A decoder that knows `markers`."""
    marker_of = {vocab.ids[marker]: Marker(marker) for marker in markers if marker in vocab.ids}
    return BytePieces(vocab, marker_of) if vocab.byte_level else WindowPieces(vocab, marker_of)


class BytePieces:
    """For byte-level vocabularies: each id is some bytes."""

    def __init__(self, vocab: Vocab, markers: dict[int, Marker]) -> None:
        self._bytes = vocab.byte_pieces
        self._markers = markers
        self._controls = vocab.special_ids.union(markers)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Ids) -> list[Piece]:
        out: list[Piece] = []
        table, run, start = self._bytes, b"", 0
        if self._controls.isdisjoint(ids):
            self._flush(out, b"".join([table[token_id] for token_id in ids]), final=False)
            return out
        for at in [index for index, token_id in enumerate(ids) if token_id in self._controls]:
            run += b"".join([table[token_id] for token_id in ids[start:at]])
            start = at + 1
            if (marker := self._markers.get(ids[at])) is not None:
                self._flush(out, run, final=True)
                out.append(marker)
                run = b""
        run += b"".join([table[token_id] for token_id in ids[start:]])
        self._flush(out, run, final=False)
        return out

    def finish(self) -> list[Piece]:
        out: list[Piece] = []
        self._flush(out, b"", final=True)
        return out

    def _flush(self, out: list[Piece], run: bytes, *, final: bool) -> None:
        text = self._utf8.decode(run, final)
        if text:
            out.append(text)


WAIT_IDS_MAX = 8
"""Ids that may wait for the rest of a character; one takes at most four bytes, so four ids."""


class WindowPieces:
    """For other vocabularies (Metaspace, byte fallback), whose ids are text only in context: a window of ids is
    decoded with and without the new one, and the difference is what it adds."""

    def __init__(self, vocab: Vocab, markers: dict[int, Marker]) -> None:
        self._vocab = vocab
        self._markers = markers
        self._window: list[int] = []
        self._told = 0
        """How many ids of the window were returned as text."""
        self._prefix = ""
        """The text of those ids."""

    def feed(self, ids: Ids) -> list[Piece]:
        out: list[Piece] = []
        for token_id in ids:
            added = self._vocab.texts.get(token_id)
            self._window.append(token_id)
            text = self._vocab.decode(self._window)
            waiting = len(self._window) - self._told
            if added is None and text.endswith("\ufffd") and waiting < WAIT_IDS_MAX:
                continue
            new = self._advance(text)
            if added is None:
                add_text(out, new)
                continue
            add_text(out, new.removesuffix(added))
            if token_id in self._markers:
                out.append(self._markers[token_id])
            elif token_id not in self._vocab.special_ids:
                add_text(out, added)
        return out

    def finish(self) -> list[Piece]:
        if len(self._window) == self._told:
            return []
        new = self._advance(self._vocab.decode(self._window))
        return [new] if new else []

    def _advance(self, text: str) -> str:
        """Returns the rest of the window's text; the newest ids stay as context of the next."""
        new = text[len(self._prefix) :]
        self._window = self._window[self._told :]
        self._told = len(self._window)
        self._prefix = self._vocab.decode(self._window)
        return new


def add_text(out: list[Piece], text: str) -> None:
    """Appends text, in one piece with the text before it."""
    if not text:
        return
    if out and isinstance(out[-1], str):
        out[-1] += text
    else:
        out.append(text)
