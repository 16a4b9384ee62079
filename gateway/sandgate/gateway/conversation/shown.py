"""The pictures that the messages of a request show; the latest are kept, as agents send their history again. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType

from sandgate.contract.errors import InvalidBody, SandgateError, Unsupported
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import ImagePart, Message, Part, TextPart, VideoPart
from sandgate.gateway.media.pictures import REQUEST_PIXELS_MAX, TOO_MANY, Picture, read_within
from sandgate.gateway.media.rules import Rule
from sandgate.gateway.media.sources import PICTURES_MAX, data_of
from sandgate.gateway.media.videos import VideoRule, read_video

CACHE_BYTES, PICTURE_BYTES_MAX = 128 << 20, 64 << 20
"""Of pictures that are kept as PNG, all and one: agents send their whole history with each turn. One of 12 megapixels
has up to 38 MB, and takes more than a second to make."""


Seen = tuple[Picture, int]
"""A picture, and how many pixels it came with."""
NONE_FETCHED: Mapping[str, Seen] = MappingProxyType({})


@dataclass(slots=True)
class Pictures:
    """Reads pictures under one rule, and keeps the latest. May be used in threads."""

    rule: Rule
    video: VideoRule | None = None
    cache: ByteCache[bytes, Seen] = field(default_factory=lambda: ByteCache(CACHE_BYTES, PICTURE_BYTES_MAX))

    def of(self, messages: Iterable[Message], fetched: Mapping[str, Seen] = NONE_FETCHED) -> list[Picture]:
        """The pictures of these messages in order; `fetched`: those of addresses. Raises InvalidBody, which says which
        one is wrong, and how."""
        numbers = {"image": 0, "video": 0}
        shown, left = list[Picture](), REQUEST_PIXELS_MAX
        for part in refuse_many(messages):
            numbers[part.kind] += 1
            found = fetched.get(part.url) if isinstance(part, ImagePart) else None
            try:
                picture, area = found or self._read(part, left)
                if area > left:
                    raise InvalidBody(TOO_MANY, field="messages")
            except SandgateError as error:
                what = f"{part.kind} {numbers[part.kind]} of the request"
                raise InvalidBody(f"{what}: {error}", field="messages") from error
            shown.append(picture)
            left -= area
        return shown

    def _read(self, part: ImagePart | VideoPart, left: int) -> Seen:
        """A picture or video, and how many pixels it was sent with: `left` at most, if it was not seen before."""
        seen = blake2b(part.kind.encode(), digest_size=32)
        for url in urls_of(part):
            seen.update(b"%d:" % len(url) + url.encode("utf-8", "surrogatepass"))
        key = seen.digest()
        found = self.cache.get(key)
        if found is None:
            if isinstance(part, ImagePart):
                found = read_within(data_of(part.url), self.rule, left)
            elif self.video is not None:
                found = read_video([data_of(frame) for frame in part.frames], self.video, left)
            else:
                raise Unsupported("this model takes no videos", field="messages")
            self.cache.put(key, found, found[0].weight + len(key))
        return found


def refuse_many(messages: Iterable[Message]) -> list[ImagePart | VideoPart]:
    """What these messages show. Raises InvalidBody if it is too much for a request."""
    shown = media_of(messages)
    many = sum(len(urls_of(part)) for part in shown)
    if many > PICTURES_MAX:
        what = "images and frames" if any(isinstance(part, VideoPart) for part in shown) else "images"
        raise InvalidBody(
            f"the request has {many} {what}; at most {PICTURES_MAX} are taken", field="messages"
        )
    return shown


def media_of(messages: Iterable[Message]) -> list[ImagePart | VideoPart]:
    """The images and videos in these messages, in order."""
    return [part for message in messages for part in message.parts if not isinstance(part, TextPart)]


def urls_of(part: Part) -> tuple[str, ...]:
    """Of an image, or of a video's frames."""
    match part:
        case ImagePart():
            return (part.url,)
        case VideoPart():
            return part.frames
    return ()
