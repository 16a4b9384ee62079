"""Sources of pictures: data URLs, and addresses, whose hosts are looked at where they are fetched. (pure)"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.media.allowed_hosts import address_of, is_address

BYTES_MAX = 8 << 20
"""Of one encoded picture; a photograph of 12 megapixels has 4 to 6. A body has at most `limits.body_bytes` anyway."""
PICTURES_MAX = 100
"""In one request, as with Anthropic. An agent that looks at its screen at each turn sends the old ones again."""
TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif")
"""What may be said in front of the data. What they are is read from them."""

FRAMES_MAX = 32
"""Of one video: vLLM drops those behind."""

_HEAD = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_HEAD_CHARS_MAX = 256
"""Characters of a data URL before its comma."""


def image_url(url: str, field: str) -> str:
    """The URL, if a picture may come from it; its data are not looked at yet. Raises Unsupported and InvalidBody
    with this field."""
    if is_address(url):
        address_of(url, field)
        return url
    if url[:5].lower() != "data:":
        raise Unsupported(
            f"{field}: a picture is a data URL (data:image/png;base64,...), or an address (https://...) of a host that "
            "spec.gateway.media.allowedHosts lists",
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
    data = url[head.end() :] if head else ""
    if "\n" in data:  # as Python's `encodebytes` and `base64` of a command line break it into lines
        data = data.replace("\r", "").replace("\n", "")
    try:
        raw = b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidBody("its data is no base64", field="messages") from None
    if not raw:
        raise InvalidBody("it has no data", field="messages")
    return raw


FRAMES_HEAD = "data:video/jpeg;base64,"
FRAMES_SAID = (
    f"a video is its frames, {FRAMES_HEAD}FRAME,FRAME,... (each a JPEG, PNG or WebP in base64), or a list of their "
    "data URLs"
)


def frames_of(video: str | Sequence[str], field: str) -> tuple[str, ...]:
    """Data URLs of a video's frames; their data are not looked at yet. Raises Unsupported and InvalidBody with this
    field: a video that would have to be decoded, or fetched."""
    if isinstance(video, str):
        if video[: len(FRAMES_HEAD)].lower() != FRAMES_HEAD:
            what = "MP4 and other files are not decoded, and none is fetched"
            raise Unsupported(f"{field}: {FRAMES_SAID}; {what}", field=field)
        frames = [f"data:image/jpeg;base64,{one}" for one in video[len(FRAMES_HEAD) :].split(",", FRAMES_MAX)]
    else:
        frames = list(video)
    if not 0 < len(frames) <= FRAMES_MAX:
        raise InvalidBody(f"{field}: a video has 1 to {FRAMES_MAX} frames", field=field)
    for index, frame in enumerate(frames):
        where = field if isinstance(video, str) else f"{field}[{index}]"
        if is_address(image_url(frame, where)):
            raise Unsupported(f"{where}: no frame is fetched; {FRAMES_SAID}", field=where)
    return tuple(frames)
