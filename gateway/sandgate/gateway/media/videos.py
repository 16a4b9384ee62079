"""Videos: frames of one size, a moment each few of them, as Qwen2-VL's and Qwen2.5-VL's processors take them. (pure)

A video comes as its frames, and all of them are shown: the engine is sent them as PNGs that already have the size that
the processor gives them, and samples none of them. vLLM counts such frames as one a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.grids import FRAMES_MAX as TEMPORAL_MAX
from sandgate.gateway.media.grids import GridRule, numbers_of
from sandgate.gateway.media.pictures import DIGEST_BYTES, Picture, read_within
from sandgate.gateway.media.rules import UnknownProcessor
from sandgate.gateway.media.sources import FRAMES_MAX

FRAMES_PER_SECOND = 1.0
"""As vLLM counts frames that it is sent; its token endpoint cannot be told another number."""
MIN_PIXELS, MAX_PIXELS = 128 * 28 * 28, 768 * 28 * 28
"""Of a frame, where the checkpoint's files say nothing."""


@dataclass(frozen=True, slots=True)
class VideoRule:
    """What a processor makes of a video."""

    placeholder: int
    """The id that stands for each merged patch of a moment (`<|video_pad|>`)."""
    text: str
    """Its text, which templates write once per video."""
    frame: GridRule
    """Of one frame."""
    temporal: int = 2
    """Frames of a moment; the last one is repeated where it lacks some."""
    timed: bool = False
    """Positions count seconds (Qwen2.5-VL)."""

    @property
    def seconds(self) -> float:
        """The processor's second_per_grid_ts: of a moment; 0 where positions do not count them."""
        return self.temporal / FRAMES_PER_SECOND if self.timed else 0.0

    def grid(self, frames: int, width: int, height: int) -> tuple[int, int, int]:
        """The processor's video_grid_thw."""
        return -(-frames // self.temporal), height // self.frame.patch, width // self.frame.patch

    def run(self, video: Picture) -> Ids:
        """The ids that stand for a video."""
        moments, _, _ = video.grid
        return array("i", (self.placeholder,)) * (moments * self.frame.tokens(video.width, video.height))


def read_video(frames: Sequence[bytes], rule: VideoRule, most: int) -> tuple[Picture, int]:
    """A video of these encoded frames, and how many pixels they had. Raises InvalidBody, which says which frame is
    wrong: see `pictures.read_within`."""
    if not 0 < len(frames) <= FRAMES_MAX:
        raise InvalidBody(f"it has {len(frames)} frames; 1 to {FRAMES_MAX} are taken", field="messages")
    shown, left = list[Picture](), most
    for number, raw in enumerate(frames, 1):
        try:
            picture, area = read_within(raw, rule.frame, left)
        except SandgateError as error:
            raise InvalidBody(f"frame {number}: {error}", field="messages") from error
        if (picture.width, picture.height) != (shown or [picture])[0].size:
            raise InvalidBody(f"frame {number} has another size than the first", field="messages")
        shown.append(picture)
        left -= area
    width, height = shown[0].size
    digest = blake2b(
        b"".join(one.digest for one in shown), digest_size=DIGEST_BYTES, person=b"video"
    ).digest()
    video = Picture(
        digest=digest, width=width, height=height, grid=rule.grid(len(shown), width, height), png=b"",
        frames=tuple(one.png for one in shown), seconds=rule.seconds,
    )  # fmt: skip
    return video, most - left


TIMED = {"qwen2_vl": False, "qwen2_5_vl": True}
"""model_type -> whether its positions count seconds. Qwen3-VL writes times between its frames: not here."""
KIND = "Qwen2VLVideoProcessor"


def video_of(
    config: Mapping[str, Any], model: Mapping[str, Any], texts: Mapping[int, str]
) -> VideoRule | None:
    """The rule of a checkpoint, if it is one that is understood. `config`: video_preprocessor_config.json, or what
    stands for it; `model`: config.json; `texts`: added tokens by id."""
    kind, placeholder = model.get("model_type"), model.get("video_token_id")
    if kind not in TIMED or not isinstance(placeholder, int) or placeholder not in texts:
        return None
    if config.get("video_processor_type", KIND) != KIND or config.get("cap_pixels_per_frame"):
        return None
    if config.get("do_sample_frames") or any(config.get(name) for name in ("fps", "num_frames")):
        return None  # the engine would leave frames out
    temporal = config.get("temporal_patch_size", 2)
    if type(temporal) is not int or not 0 < temporal <= TEMPORAL_MAX:
        return None
    try:
        frame = GridRule(*numbers_of(config, MIN_PIXELS, MAX_PIXELS))
    except UnknownProcessor:
        return None
    return VideoRule(placeholder, texts[placeholder], frame, temporal, TIMED[kind])
