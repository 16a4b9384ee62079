"""Rows: pictures of many sizes, a placeholder for each patch, and a token at the end of each row: Pixtral. (pure)"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.rules import RGB, Checkpoint, Fit, PlainRule, UnknownProcessor, too_narrow


@dataclass(frozen=True, slots=True)
class RowRule(PlainRule):
    """Pixtral's and Mistral 3's: no side longer than `longest`, both sides multiples of `patch`."""

    kind: ClassVar[str] = "rows"
    patch: int
    """Pixels of a side of what one placeholder stands for."""
    longest: int
    line: int
    """The id between rows (`[IMG_BREAK]`)."""
    end: int
    """The id behind the last (`[IMG_END]`)."""
    resample: int = 3

    def fit(self, width: int, height: int) -> Fit:
        """See Rule."""
        size = self._resized(width, height)
        if 0 in size or self._resized(*size) != size:
            raise too_narrow(width, height)
        return Fit((size,))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        ratio = max(height / self.longest, width / self.longest)
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        side = self.patch
        return ((width - 1) // side + 1) * side, ((height - 1) // side + 1) * side

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """See Rule."""
        return 1, height // self.patch, width // self.patch

    def run(self, placeholder: int, width: int, height: int) -> Ids:
        """See Rule."""
        _, rows, columns = self.grid(width, height)
        ids = array("i", (*(placeholder,) * columns, self.line)) * rows
        ids[-1] = self.end
        return ids

    def reserved(self, placeholder: int) -> frozenset[int]:
        """See Rule."""
        return frozenset((placeholder, self.line, self.end))


def pixtral_of(checkpoint: Checkpoint) -> RowRule:
    """Raises UnknownProcessor."""
    config, processor = checkpoint.image, checkpoint.processor
    checkpoint.set_as({**RGB, "do_center_crop": False})
    size = config.get("size", {"longest_edge": 1024})
    if not isinstance(size, Mapping) or set(size) != {"longest_edge"}:
        raise UnknownProcessor(f"its image processor's size is {size!r}; a longest_edge is served")
    merge = checkpoint.number("spatial_merge_size", processor.get("spatial_merge_size", 1))
    patch = checkpoint.number("patch_size", processor.get("patch_size", 16)) * merge
    longest = checkpoint.number("size.longest_edge", size["longest_edge"])
    if longest % patch:
        raise UnknownProcessor(f"its longest_edge of {longest} is no multiple of its patches of {patch}")
    line = checkpoint.token(processor.get("image_break_token", "[IMG_BREAK]"))
    end = checkpoint.token(processor.get("image_end_token", "[IMG_END]"))
    return RowRule(patch, longest, line, end, checkpoint.number("resample", config.get("resample", 3), 5))
