"""Spans: where in a prompt's ids a picture's placeholders are, and which picture they stand for. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from sandgate.contract.trajectory import Ids


class Span(msgspec.Struct, frozen=True, array_like=True):
    """ids[start : start + length] stand for the picture of this digest."""

    start: int
    length: int
    digest: bytes

    def moved(self, by: int) -> Span:
        """The same in ids that begin `-by` earlier."""
        return Span(self.start + by, self.length, self.digest)


Spans = tuple[Span, ...]


def collapse(ids: Ids, spans: Iterable[Span], placeholder: int | None = None) -> Ids:
    """One id per picture: what a person is shown, and most engines are asked. Without `placeholder` it is the first
    of those that stand for it."""
    out, done = array("i"), 0
    for span in spans:
        out.extend(ids[done : span.start])
        out.append(ids[span.start] if placeholder is None else placeholder)
        done = span.start + span.length
    out.extend(ids[done:])
    return out


def within(spans: Iterable[Span], start: int, end: int) -> Spans:
    """The spans in ids[start:end], counted from `start`. None of them may lie across an end."""
    return tuple(span.moved(-start) for span in spans if start <= span.start < end)
