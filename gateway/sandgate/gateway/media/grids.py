"""Grids: pictures of many sizes, cut into patches, with a placeholder for each few of them: Qwen-VL, GLM-V. (pure)"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.rules import Fit, PlainRule, UnknownProcessor, too_narrow

RATIO_MAX = 200
"""Of the longer side to the shorter one; the processor refuses more."""
MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
"""Where the checkpoint's file says nothing."""
FRAMES_MAX = 8
"""Of a moment."""
PIXELS_MAX = 1 << 26
"""A checkpoint that asks for larger pictures than this is refused."""


@dataclass(frozen=True, slots=True)
class GridRule(PlainRule):
    """The `smart_resize` of Qwen2-VL: both sides multiples of `patch * merge`, the area within the bounds, and the
    picture's shape kept as nearly as that lets it."""

    kind: ClassVar[str] = "grid"
    patch: int = 14
    merge: int = 2
    min_pixels: int = MIN_PIXELS
    max_pixels: int = MAX_PIXELS
    resample: int = 3
    """Pillow's filter; 3 is bicubic."""

    @property
    def side(self) -> int:
        """Pixels of a side of what one placeholder stands for."""
        return self.patch * self.merge

    def size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) to which a picture is resized. Raises InvalidBody for one that is too narrow: a strip that
        the processor gives more pixels than its limit would be resized again by whoever gets it next."""
        size = self._resized(width, height)
        if max(width, height) > RATIO_MAX * min(width, height) or self._resized(*size) != size:
            raise too_narrow(width, height)
        return size

    def fit(self, width: int, height: int) -> Fit:
        """See Rule."""
        return Fit((self.size(width, height),))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        side = self.side
        high, wide = round(height / side) * side, round(width / side) * side
        if high * wide > self.max_pixels:
            beta = math.sqrt((height * width) / self.max_pixels)
            high = max(side, math.floor(height / beta / side) * side)
            wide = max(side, math.floor(width / beta / side) * side)
        elif high * wide < self.min_pixels:
            beta = math.sqrt(self.min_pixels / (height * width))
            high = math.ceil(height * beta / side) * side
            wide = math.ceil(width * beta / side) * side
        return wide, high

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """The processor's image_grid_thw of a picture that has its size already."""
        return 1, height // self.patch, width // self.patch

    def tokens(self, width: int, height: int) -> int:
        """Placeholders of such a picture."""
        return (height // self.side) * (width // self.side)

    def run(self, placeholder: int, width: int, height: int) -> Ids:
        """See Rule."""
        return array("i", (placeholder,)) * self.tokens(width, height)


@dataclass(frozen=True, slots=True)
class FramedGridRule(GridRule):
    """The `smart_resize` of GLM-4V: a picture counts as the frames of a moment, and a small one is enlarged first."""

    frames: int = 2

    def size(self, width: int, height: int) -> tuple[int, int]:
        """See GridRule."""
        size = self._resized(width, height)
        shown = self._enlarged(width, height)
        if max(shown) > RATIO_MAX * min(shown) or self._resized(*size) != size:
            raise too_narrow(width, height)
        return size

    def _enlarged(self, width: int, height: int) -> tuple[int, int]:
        if min(width, height) >= self.side:
            return width, height
        scale = max(self.side / height, self.side / width)
        return max(int(width * scale), 1), max(int(height * scale), 1)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        side, frames = self.side, self.frames
        width, height = self._enlarged(width, height)
        high, wide = round(height / side) * side, round(width / side) * side
        if frames * high * wide > self.max_pixels:
            beta = math.sqrt((frames * height * width) / self.max_pixels)
            high = max(side, math.floor(height / beta / side) * side)
            wide = max(side, math.floor(width / beta / side) * side)
        elif frames * high * wide < self.min_pixels:
            beta = math.sqrt(self.min_pixels / (frames * height * width))
            high = math.ceil(height * beta / side) * side
            wide = math.ceil(width * beta / side) * side
        return wide, high


def rule_of(config: Mapping[str, Any]) -> GridRule:
    """The rule of a checkpoint's image processor (preprocessor_config.json). Raises UnknownProcessor."""
    return GridRule(*numbers_of(config, MIN_PIXELS, MAX_PIXELS))


def framed_rule_of(config: Mapping[str, Any]) -> FramedGridRule:
    """The same for GLM-4V's. Raises UnknownProcessor."""
    frames = config.get("temporal_patch_size", 2)
    if type(frames) is not int or not 0 < frames <= FRAMES_MAX:
        raise UnknownProcessor(f"its image processor's temporal_patch_size is {frames!r}")
    return FramedGridRule(*numbers_of(config, 112 * 112, 28 * 28 * 15_000), frames)


def numbers_of(config: Mapping[str, Any], least: int, most: int) -> tuple[int, int, int, int, int]:
    """Of a GridRule; `least` and `most` pixels where the file says nothing. Raises UnknownProcessor."""
    if config.get("do_resize", True) is not True or config.get("do_convert_rgb", True) is not True:
        raise UnknownProcessor("its image processor does not resize, or keeps other colours than RGB")
    given = config.get("size")
    size: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    low = config.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or least
    high = config.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or most
    numbers = config.get("patch_size", 14), config.get("merge_size", 2), low, high, config.get("resample", 3)
    if not all(type(number) is int and 0 < number <= PIXELS_MAX for number in numbers):
        raise UnknownProcessor(f"its image processor's sizes are no numbers up to {PIXELS_MAX}")
    return numbers
