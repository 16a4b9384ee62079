"""Sources of pictures: data URLs only. The gateway never fetches what an agent names. (pure)"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode

from sandgate.contract.errors import InvalidBody, Unsupported

BYTES_MAX = 8 << 20
"""Of one encoded picture; a photograph of 12 megapixels has 4 to 6. A body has at most `limits.body_bytes` anyway."""
PICTURES_MAX = 100
"""In one request, as with Anthropic. An agent that looks at its screen at each turn sends the old ones again."""
TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif")
"""What may be said in front of the data. What they are is read from them."""

_HEAD = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_HEAD_CHARS_MAX = 256
"""Characters of a data URL before its comma."""


def image_url(url: str, field: str) -> str:
    """The URL, if a picture may come from it; its data are not looked at yet. Raises Unsupported and InvalidBody
    with this field."""
    if url[:5].lower() != "data:":
        raise Unsupported(
            f"{field}: the gateway fetches no pictures; send it as a data URL (data:image/png;base64,...) instead of "
            "an address",
            field=field,
        )
    head = _HEAD.match(url, 0, _HEAD_CHARS_MAX)
    if head is None:
        raise InvalidBody(f"{field} is no data URL of the form data:image/png;base64,...", field=field)
    if head[1].lower() not in TYPES:
        raise Unsupported(f"{field}: pictures are of type {', '.join(TYPES)}", field=field)
    if head[2].rpartition(";")[2].lower() != "base64":
        raise InvalidBody(f"{field}: a picture's data URL must say base64", field=field)
    if (len(url) - head.end()) * 3 // 4 > BYTES_MAX:
        raise InvalidBody(f"{field}: a picture has at most {BYTES_MAX} bytes", field=field)
    return url


def data_of(url: str) -> bytes:
    """The bytes of a URL that `image_url` took. Raises InvalidBody: they are no base64, or none."""
    head = _HEAD.match(url, 0, _HEAD_CHARS_MAX)
    try:
        raw = b64decode(url[head.end() :] if head else "", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidBody("its data is no base64", field="messages") from None
    if not raw:
        raise InvalidBody("it has no data", field="messages")
    return raw
