"""Images of a request as parts of messages, in every protocol alike. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from sandgate.contract.errors import Unsupported
from sandgate.gateway.conversation.messages import ImagePart, VideoPart
from sandgate.gateway.media.allowed_hosts import is_address
from sandgate.gateway.media.sources import frames_of, image_url


def image_part(url: str, field: str, detail: str | None = None) -> ImagePart:
    """The image of this URL. Raises Unsupported and InvalidBody with this field."""
    return ImagePart(image_url(url, field), detail, field if is_address(url) else "")


def video_part(
    video: str | Sequence[str], field: str, part: str, fps: float | None, others: Sequence[str]
) -> VideoPart:
    """The video of this URL, or of these frames. `part`: the field of the part; `others`: settings of it that would
    make another video, as they are called. Raises Unsupported and InvalidBody with their field."""
    if fps is not None and fps != 1:
        raise Unsupported(
            f"{part}.fps is {fps}: engines count the frames that they are sent as one a second; leave it out",
            field=f"{part}.fps",
        )
    if others:
        raise Unsupported(
            f"{part}.{others[0]}: a video is shown with all frames that are sent, at the size that the model's "
            "processor gives them; leave it out",
            field=f"{part}.{others[0]}",
        )
    return VideoPart(frames_of(video, field))
