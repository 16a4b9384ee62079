"""Spans: where in a prompt's ids a picture's placeholders are, and which picture they stand for. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import msgspec

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.pictures import Picture


class Span(msgspec.Struct, frozen=True, array_like=True):
    """ids[start : start + length] stand for the picture of this digest."""

    start: int
    length: int
    digest: bytes

    def moved(self, by: int) -> Span:
        """The same in ids that begin `-by` earlier."""
        return Span(self.start + by, self.length, self.digest)


Spans = tuple[Span, ...]


def expand(ids: Ids, placeholder: int, pictures: Sequence[Picture], rule: GridRule) -> tuple[Ids, Spans]:
    """A rendered text's ids, with one placeholder per picture, as the processor gives them: one for each patch. Raises
    BadRequest where the template did not show each picture once."""
    if not pictures and not ids.count(placeholder):
        return ids, ()
    at = [index for index, token in enumerate(ids) if token == placeholder]
    if len(at) != len(pictures):
        raise BadRequest(
            f"the chat template shows {len(at)} of {len(pictures)} images of these messages, and none may be lost",
            field="messages",
        )
    out, spans, done = array("i"), list[Span](), 0
    for index, picture in zip(at, pictures, strict=True):
        out.extend(ids[done:index])
        length = rule.tokens(picture.width, picture.height)
        spans.append(Span(len(out), length, picture.digest))
        out.extend(array("i", (placeholder,)) * length)
        done = index + 1
    out.extend(ids[done:])
    return out, tuple(spans)


def collapse(ids: Ids, spans: Iterable[Span]) -> Ids:
    """The inverse of `expand`: what is asked of an engine that expands placeholders itself."""
    out, done = array("i"), 0
    for span in spans:
        out.extend(ids[done : span.start + 1])
        done = span.start + span.length
    out.extend(ids[done:])
    return out


def stray(ids: Ids, placeholder: int, spans: Iterable[Span]) -> bool:
    """Whether a placeholder stands for no picture: a client wrote it, or the model sampled it."""
    return ids.count(placeholder) != sum(span.length for span in spans)


def within(spans: Iterable[Span], start: int, end: int) -> Spans:
    """The spans in ids[start:end], counted from `start`. None of them may lie across an end."""
    return tuple(span.moved(-start) for span in spans if start <= span.start < end)
