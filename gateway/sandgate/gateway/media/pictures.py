"""Pictures: an agent's image as the model will see it: one frame, upright, RGB, of the size its processor gives it.

A client's bytes are decoded once, here, within bounds. What goes to the engine and into the record is a PNG of our own
making: neither meets a hostile file, and nobody resizes it again, so that all see the same pixels. (pure)
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from io import BytesIO
from typing import TYPE_CHECKING

import msgspec

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.gateway.media.rules import Rule

if TYPE_CHECKING:
    from PIL.Image import Image

PIXELS_MAX = 1 << 25
"""Of a picture as it is sent, 33 megapixels: of a screen of 8K, or a good camera. Decoded it has 100 MB."""
SIDE_MAX = 16_384
"""Pixels of one side."""
REQUEST_PIXELS_MAX = 1 << 28
"""Of all images of a request, decoded before or not: 100 screens of 2 megapixels. The work of some seconds."""
TOO_MANY = f"with it the request's images have more than {REQUEST_PIXELS_MAX} pixels"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
DIGEST_BYTES = 16
SMALL = 1
"""zlib's level: the next ones take three times as long for a tenth less."""


class Picture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A picture as the model sees it, or a video."""

    digest: bytes
    """Of its size and pixels: two files with the same pixels are one picture."""
    width: int
    height: int
    grid: tuple[int, int, int]
    """As its kind's rule counts: image_grid_thw for grids."""
    png: bytes
    kind: str = "grid"
    """Of its rule."""
    frames: tuple[bytes, ...] = ()
    """Of a video, each as PNG; `png` is empty then, and `grid` its video_grid_thw."""
    seconds: float = 0.0
    """Of a video: how long each moment of its grid is, where positions count that (second_per_grid_ts)."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, of a video's frames too."""
        return self.width, self.height

    @property
    def weight(self) -> int:
        """Bytes of its PNGs."""
        return len(self.png) + sum(map(len, self.frames))


def installed() -> bool:
    """Whether Pillow is there (the extra gateway-vision)."""
    try:
        import PIL.Image  # noqa: F401 - whether it can be
    except ImportError:
        return False
    return True


def read(raw: bytes, rule: Rule) -> Picture:
    """Decodes a picture. Raises InvalidBody: no picture, a broken one, an animation, or one that is too large."""
    return read_within(raw, rule, PIXELS_MAX)[0]


def read_within(raw: bytes, rule: Rule, most: int) -> tuple[Picture, int]:
    """The same, and how many pixels it had. Raises InvalidBody for more than `most`, before they are decoded."""
    from PIL import Image

    try:
        with Image.open(BytesIO(raw), formats=FORMATS) as file:
            _refuse_large(file.size)
            if (area := file.width * file.height) > most:
                raise InvalidBody(TOO_MANY, field="messages")
            if (
                getattr(file, "is_animated", False) and file.format != "MPO"
            ):  # MPO: a photograph and its preview
                raise InvalidBody("it is an animation; send one frame of it", field="messages")
            fit = rule.fit(*_upright_size(file))
            pixels = _upright(file)
            for size in fit.resized:
                pixels = pixels.resize(size, Image.Resampling(rule.resample))
            pixels = pixels.crop(fit.box) if fit.box is not None else pixels
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InvalidBody(f"it has more than {PIXELS_MAX} pixels", field="messages") from None
    except SandgateError:
        raise
    except Exception as error:
        raise InvalidBody(
            f"it is no whole PNG, JPEG, WebP or GIF: {str(error)[:200] or type(error).__name__}",
            field="messages",
        ) from error
    return _of_pixels(pixels, rule), area


def _of_pixels(pixels: Image, rule: Rule) -> Picture:
    """An RGB image, which has its size already, as a picture."""
    raw = pixels.tobytes()
    digest = blake2b(raw, digest_size=DIGEST_BYTES, person=b"%dx%d" % pixels.size).digest()
    out = BytesIO()
    pixels.save(out, "PNG", compress_level=SMALL)
    width, height = pixels.size
    grid = rule.grid(width, height)
    return Picture(digest=digest, width=width, height=height, grid=grid, png=out.getvalue(), kind=rule.kind)


def _refuse_large(size: Sequence[int]) -> None:
    width, height = size
    if width * height > PIXELS_MAX or max(size) > SIDE_MAX:
        raise InvalidBody(
            f"it is {width} x {height}; at most {PIXELS_MAX} pixels, and {SIDE_MAX} a side, are taken",
            field="messages",
        )


def _upright_size(file: Image) -> tuple[int, int]:
    turned = file.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    return (file.height, file.width) if turned else file.size


def _upright(file: Image) -> Image:
    """As viewers show it: turned as its EXIF says, and on white where it is transparent, as vLLM does it, too."""
    from PIL import Image, ImageOps

    shown = ImageOps.exif_transpose(file)
    if shown.mode == "P" or "transparency" in shown.info or shown.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        clear = shown.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, clear).convert("RGB")
    return _eight_bits(shown).convert("RGB")


def _eight_bits(shown: Image) -> Image:
    """Pillow clips the 16 bits of grey PNGs instead of scaling them."""
    if not shown.mode.startswith("I"):
        return shown
    return shown.convert("I").point(lambda value: value * (1 / 256)).convert("L")
