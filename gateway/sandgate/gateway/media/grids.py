"""Grids: into how many patches a model's image processor cuts a picture: so many placeholders it has. (pure)

Only the rule is here, not the arithmetic on pixels: the engine and the trainer run the processor itself, on pictures
that already have the size that it would give them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandgate.contract.errors import InvalidBody

KNOWN = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
"""`image_processor_type` of checkpoints whose rule this is: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and their kin."""
RATIO_MAX = 200
"""Of the longer side to the shorter one; the processor refuses more."""
MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
"""Where the checkpoint's file says nothing."""
PIXELS_MAX = 1 << 26
"""A checkpoint that asks for larger pictures than this is refused."""


class UnknownProcessor(ValueError):
    """Why a checkpoint's image processor cannot be used."""


@dataclass(frozen=True, slots=True)
class GridRule:
    """The `smart_resize` of Qwen2-VL: both sides multiples of `patch * merge`, the area within the bounds, and the
    picture's shape kept as nearly as that lets it."""

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
            raise InvalidBody(
                f"its sides are {width} and {height}, which is too narrow for this model", field="messages"
            )
        return size

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


def rule_of(config: Mapping[str, Any]) -> GridRule:
    """The rule of a checkpoint's image processor (preprocessor_config.json). Raises UnknownProcessor."""
    kind = config.get("image_processor_type")
    if kind not in KNOWN:
        raise UnknownProcessor(f"its image processor is {kind!r}; {KNOWN[0]} is understood")
    if config.get("do_resize", True) is not True or config.get("do_convert_rgb", True) is not True:
        raise UnknownProcessor("its image processor does not resize, or keeps other colours than RGB")
    given = config.get("size")
    size: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    low = config.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or MIN_PIXELS
    high = config.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or MAX_PIXELS
    numbers = config.get("patch_size", 14), config.get("merge_size", 2), low, high, config.get("resample", 3)
    if not all(type(number) is int and 0 < number <= PIXELS_MAX for number in numbers):
        raise UnknownProcessor(f"its image processor's sizes are no numbers up to {PIXELS_MAX}")
    return GridRule(*numbers)
