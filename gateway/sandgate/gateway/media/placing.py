"""Placing: pictures into the ids of a rendered text, and whose placeholders are nobody's. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.spans import Span, Spans
from sandgate.gateway.media.vision import Vision


def expand(ids: Ids, vision: Vision, pictures: Sequence[Picture]) -> tuple[Ids, Spans]:
    """A rendered text's ids, with one placeholder per picture, as the processor gives them: as many as the picture
    takes. Raises BadRequest where the template did not show each picture once."""
    places = vision.places
    if not pictures and not any(map(ids.count, places)):
        return ids, ()
    at = [index for index, token in enumerate(ids) if token in places]
    if len(at) != len(pictures):
        what = "images and videos" if any(picture.frames for picture in pictures) else "images"
        raise BadRequest(
            f"the chat template shows {len(at)} of {len(pictures)} {what} of these messages, and none may be lost",
            field="messages",
        )
    if any(ids[index] != vision.place(picture) for index, picture in zip(at, pictures, strict=True)):
        raise BadRequest("the chat template shows images and videos in another order", field="messages")
    out, spans, done = array("i"), list[Span](), 0
    for index, picture in zip(at, pictures, strict=True):
        out.extend(ids[done:index])
        run = vision.run(picture)
        spans.append(Span(len(out), len(run), picture.digest))
        out.extend(run)
        done = index + 1
    out.extend(ids[done:])
    return out, tuple(spans)


def stray(ids: Ids, vision: Vision, spans: Iterable[Span]) -> bool:
    """Whether a placeholder stands for no picture: a client wrote it, or the model sampled it."""
    spans = tuple(spans)
    return any(
        ids.count(token) != sum(ids[span.start : span.start + span.length].count(token) for span in spans)
        for token in vision.reserved
    )
