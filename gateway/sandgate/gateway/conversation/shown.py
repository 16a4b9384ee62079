"""The pictures that the messages of a request show; the latest are kept, as agents send their history again. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import ImagePart, Message
from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.pictures import REQUEST_PIXELS_MAX, TOO_MANY, Picture, read_within
from sandgate.gateway.media.sources import PICTURES_MAX, data_of

CACHE_BYTES, PICTURE_BYTES_MAX = 64 << 20, 8 << 20
"""Of pictures that are kept as PNG, all and one: agents send their whole history with each turn."""


@dataclass(slots=True)
class Pictures:
    """Reads pictures under one rule, and keeps the latest. May be used in threads."""

    rule: GridRule
    cache: ByteCache[bytes, tuple[Picture, int]] = field(
        default_factory=lambda: ByteCache(CACHE_BYTES, PICTURE_BYTES_MAX)
    )

    def of(self, messages: Iterable[Message]) -> list[Picture]:
        """The pictures of these messages in order. Raises InvalidBody, which says which one is wrong, and how."""
        urls = images_of(messages)
        if len(urls) > PICTURES_MAX:
            raise InvalidBody(
                f"the request has {len(urls)} images; at most {PICTURES_MAX} are taken", field="messages"
            )
        shown, left = list[Picture](), REQUEST_PIXELS_MAX
        for number, url in enumerate(urls, 1):
            picture, area = self._read(url, number, left)
            shown.append(picture)
            left -= area
        return shown

    def _read(self, url: str, number: int, left: int) -> tuple[Picture, int]:
        """A picture, and how many pixels it was sent with: at most `left`."""
        key = blake2b(url.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        seen = self.cache.get(key)
        try:
            if seen is None:
                seen = read_within(data_of(url), self.rule, left)
                self.cache.put(key, seen, len(seen[0].png) + len(key))
            elif seen[1] > left:
                raise InvalidBody(TOO_MANY, field="messages")
        except SandgateError as error:
            raise InvalidBody(f"image {number} of the request: {error}", field="messages") from error
        return seen


def images_of(messages: Iterable[Message]) -> list[str]:
    """The URLs of the images in these messages, in order."""
    return [part.url for message in messages for part in message.parts if isinstance(part, ImagePart)]
