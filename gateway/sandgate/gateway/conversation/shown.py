"""The pictures that the messages of a request show; the latest are kept, as agents send their history again. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import ImagePart, Message
from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.pictures import Picture, read
from sandgate.gateway.media.sources import PICTURES_MAX, data_of

CACHE_BYTES, PICTURE_BYTES_MAX = 64 << 20, 8 << 20
"""Of pictures that are kept as PNG, all and one: agents send their whole history with each turn."""


@dataclass(slots=True)
class Pictures:
    """Reads pictures under one rule, and keeps the latest. May be used in threads."""

    rule: GridRule
    cache: ByteCache[bytes, Picture] = field(
        default_factory=lambda: ByteCache(CACHE_BYTES, PICTURE_BYTES_MAX)
    )

    def of(self, messages: Iterable[Message]) -> list[Picture]:
        """The pictures of these messages in order. Raises InvalidBody, which says which one is wrong, and how."""
        urls = images_of(messages)
        if len(urls) > PICTURES_MAX:
            raise InvalidBody(
                f"the request has {len(urls)} images; at most {PICTURES_MAX} are taken", field="messages"
            )
        return [self._read(url, number) for number, url in enumerate(urls, 1)]

    def _read(self, url: str, number: int) -> Picture:
        key = blake2b(url.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        picture = self.cache.get(key)
        if picture is None:
            try:
                picture = read(data_of(url), self.rule)
            except SandgateError as error:
                raise InvalidBody(f"image {number} of the request: {error}", field="messages") from error
            self.cache.put(key, picture, len(picture.png) + len(key))
        return picture


def images_of(messages: Iterable[Message]) -> list[str]:
    """The URLs of the images in these messages, in order."""
    return [part.url for message in messages for part in message.parts if isinstance(part, ImagePart)]
