"""Lexer of a reply: finds markers in its text, and holds back text that a later id could change. (pure)"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sandgate.gateway.tokens.pieces import Marker, Piece, add_text


class Lexer:
    """Finds text markers, and keeps everything from a possible stop string on until `finish`.

    The engine ends a generation at a stop string, so nothing but the rest of its last token follows one.
    """

    def __init__(self, text_markers: Sequence[str], stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._words = (*text_markers, *self._stops)
        self._markers = _any_of(text_markers)
        self._stop = _any_of(self._stops)
        self._held = ""
        self._after_stop: list[Piece] = []

    def feed(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Takes pieces, returns those that no later id can change."""
        out: list[Piece] = []
        for piece in pieces:
            if self._after_stop:
                self._after_stop.append(piece)
            elif isinstance(piece, Marker):
                self._marker(out, piece)
            else:
                self._text(out, self._held + piece)
        return out

    def finish(self, pieces: Iterable[Piece], stopped_on: str | None) -> list[Piece]:
        """The rest, cut before `stopped_on` (its last occurrence, if it is not at the expected place)."""
        out = self.feed(pieces)
        rest = [*self._after_stop] or ([self._held] if self._held else [])
        self._held, self._after_stop = "", []
        if stopped_on:
            rest = _cut(rest, stopped_on)
        self._stop = None
        self._words = ()
        joined: list[Piece] = []  # a marker that is text may have come in parts
        for piece in rest:
            if isinstance(piece, Marker):
                joined.append(piece)
            else:
                add_text(joined, piece)
        for piece in joined:
            if isinstance(piece, Marker):
                out.append(piece)
            else:
                self._text(out, piece)
        return out

    def _marker(self, out: list[Piece], marker: Marker) -> None:
        said = self._held + marker.text
        if self._stops and (_overlap(said, self._stops) or any(stop in said for stop in self._stops)):
            self._after_stop = [*([self._held] if self._held else []), marker]
            self._held = ""
            return
        self._emit(out, self._held)
        self._held = ""
        out.append(marker)

    def _text(self, out: list[Piece], text: str) -> None:
        limit = len(text)
        stop = self._stop.search(text) if self._stop else None
        if stop is not None:
            limit = stop.start()
        index = 0
        if self._markers is not None:
            for match in self._markers.finditer(text, 0, limit):
                self._emit(out, text[index : match.start()])
                out.append(Marker(match.group()))
                index = match.end()
        if stop is not None:
            self._emit(out, text[index:limit])
            self._held, self._after_stop = "", [text[limit:]]
            return
        keep = _overlap(text[index:], self._words)
        self._emit(out, text[index : len(text) - keep])
        self._held = text[len(text) - keep :] if keep else ""

    @staticmethod
    def _emit(out: list[Piece], text: str) -> None:
        if text:
            out.append(text)


def _any_of(words: Sequence[str]) -> re.Pattern[str] | None:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if words else None


def _overlap(text: str, words: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of one of `words`."""
    best = 0
    for word in words:
        for size in range(min(len(text), len(word) - 1), best, -1):
            if text.endswith(word[:size]):
                best = size
                break
    return best


def _cut(pieces: Sequence[Piece], stop: str) -> list[Piece]:
    """The pieces before `stop`; all pieces if it is not there (then it was cut already)."""
    texts = [piece.text if isinstance(piece, Marker) else piece for piece in pieces]
    where = "".join(texts).find(stop)
    if where < 0:
        return list(pieces)
    out: list[Piece] = []
    for piece, text in zip(pieces, texts, strict=True):
        if where < len(text):
            if where:
                out.append(text[:where])
            break
        out.append(piece)
        where -= len(text)
    return out
