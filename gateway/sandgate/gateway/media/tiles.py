"""Tiles: a picture cut into squares that each have placeholders, and once more as a whole: Idefics3, SmolVLM. (pure)"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sandgate.contract.trajectory import Ids
from sandgate.gateway.media.rules import RGB, Checkpoint, Fit, PlainRule, UnknownProcessor, too_narrow

CANVAS_MAX = 4096
"""Pixels of a side before it is cut: the processor's own limit."""
ACROSS_MAX = 16
"""Tiles of a side."""
AROUND = "<fake_token_around_image>"


@dataclass(frozen=True, slots=True)
class TileRule(PlainRule):
    """Idefics3's: the longer side made `longest`, both made multiples of `tile`."""

    kind: ClassVar[str] = "tiles"
    tile: int
    longest: int
    tokens: int
    """Placeholders of a tile."""
    around: int
    whole: Ids
    """What says that the picture follows as a whole (`<global-img>`)."""
    cells: tuple[tuple[Ids, ...], ...]
    """What says which tile follows (`<row_1_col_1>`), by row and column."""
    line: Ids
    """Behind a row."""
    last_line: Ids
    """Behind the last."""
    resample: int = 1

    def fit(self, width: int, height: int) -> Fit:
        """See Rule."""
        once, canvas = self._sizes(width, height)
        if self._sizes(*canvas) != (canvas, canvas):
            raise too_narrow(width, height)
        return Fit((once, canvas))

    def _sizes(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """After the first and after the second time that the processor resizes it."""
        ratio = width / height
        if width >= height:
            wide, high = self.longest, int(self.longest / ratio)
            high += high % 2
        else:
            wide, high = int(self.longest * ratio), self.longest
            wide += wide % 2
        wide, high = max(wide, 1), max(high, 1)
        ratio = wide / high
        if wide >= high:
            across = self._tiled(wide)
            return (wide, high), (across, self._tiled(int(across / ratio)))
        down = self._tiled(high)
        return (wide, high), (self._tiled(int(down * ratio)), down)

    def _tiled(self, side: int) -> int:
        return math.ceil(side / self.tile) * self.tile

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """See Rule: pictures, and of them the tiles by row and column."""
        rows, columns = height // self.tile, width // self.tile
        return (1, 0, 0) if rows * columns == 1 else (rows * columns + 1, rows, columns)

    def run(self, placeholder: int, width: int, height: int) -> Ids:
        """See Rule."""
        _, rows, columns = self.grid(width, height)
        seen, around, out = array("i", (placeholder,)) * self.tokens, self.around, array("i")
        for row in range(rows):
            for column in range(columns):
                out.append(around)
                out.extend(self.cells[row][column] + seen)
            out.extend(self.last_line if row == rows - 1 else self.line)
        out.append(around)
        out.extend(self.whole + seen)
        out.append(around)
        return out

    def reserved(self, placeholder: int) -> frozenset[int]:
        """See Rule."""
        return frozenset((placeholder, self.around))


def idefics_of(checkpoint: Checkpoint) -> TileRule:
    """Raises UnknownProcessor."""
    config = checkpoint.image
    checkpoint.set_as({**RGB, "do_image_splitting": True, "do_pad": True})
    longest = _longest(checkpoint, "size", {"longest_edge": 4 * 364})
    tile = _longest(checkpoint, "max_image_size", {"longest_edge": 364})
    if longest % tile or not tile <= longest <= min(CANVAS_MAX, ACROSS_MAX * tile):
        raise UnknownProcessor(
            f"its size of {longest} is no multiple of its tiles of {tile}, or more than {CANVAS_MAX}"
        )
    around = checkpoint.token(AROUND)

    def between(text: str) -> Ids:
        ids = checkpoint.encode(AROUND + text + AROUND)
        if len(ids) < 3 or ids[0] != around or ids[-1] != around:
            raise UnknownProcessor(f"its tokenizer joins {text!r} to what stands beside it")
        return ids[1:-1]

    across = range(1, longest // tile + 1)
    return TileRule(
        tile=tile,
        longest=longest,
        tokens=checkpoint.number("image_seq_len", checkpoint.processor.get("image_seq_len", 169)),
        around=around,
        whole=between("<global-img>"),
        cells=tuple(tuple(between(f"<row_{row}_col_{column}>") for column in across) for row in across),
        line=between("\n"),
        last_line=between("\n\n"),
        resample=checkpoint.number("resample", config.get("resample", 1), 5),
    )


def _longest(checkpoint: Checkpoint, name: str, default: Mapping[str, int]) -> int:
    given = checkpoint.image.get(name, default)
    if not isinstance(given, Mapping) or set(given) != {"longest_edge"}:
        raise UnknownProcessor(f"its image processor's {name} is {given!r}; a longest_edge is served")
    return checkpoint.number(f"{name}.longest_edge", given["longest_edge"])
