"""Pictures: an agent's image as the model will see it: one frame, upright, RGB, of the size its processor gives it.

A client's bytes are decoded once, here, within bounds. What goes to the engine and into the record is a PNG of our own
making: neither meets a hostile file, and nobody resizes it again, so that all see the same pixels. (pure)
"""

from __future__ import annotations

import re
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
SCANS_MAX = 64
"""Of a JPEG, for each of which its reader goes through all pixels. Progressive ones have about a dozen."""
PARTS_MAX = 1 << 17
"""Reads of a file: its reader goes through segments, chunks, blocks and what is between them with one to four for each,
in Python. A GIF of 8 MiB, in blocks of 255 bytes, takes half of it."""
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
"""But those within a scan's data, which may be millions."""
_SCAN, _END = b"\xff\xda", b"\xff\xd9"
_ALONE = frozenset((0x01, 0xD8))
"""Markers that no length follows, beside the end and those within a scan's data."""
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
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(_Bounded(_scanned(raw)), formats=FORMATS) as file:
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
    except UnidentifiedImageError as error:  # which names our buffer by its address
        raise InvalidBody("it is no whole PNG, JPEG, WebP or GIF", field="messages") from error
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


class _Bounded(BytesIO):
    """A file that can be read PARTS_MAX times."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > PARTS_MAX:
            raise InvalidBody(
                f"it has more than {PARTS_MAX} parts (segments, chunks, blocks)", field="messages"
            )
        return super().read(size)


def _scanned(raw: bytes) -> bytes:
    """A JPEG without what stands behind it, such as a film; other files as they are. Raises InvalidBody for more than
    SCANS_MAX markers of scans anywhere in it: where the next one of a damaged file begins is up to its reader."""
    if not raw.startswith(b"\xff\xd8\xff"):
        return raw
    whole = raw[: _jpeg_end(raw)]
    if (scans := whole.count(_SCAN)) > SCANS_MAX:
        raise InvalidBody(f"it has {scans} scans; at most {SCANS_MAX} are taken", field="messages")
    return whole


def _jpeg_end(raw: bytes) -> int | None:
    """Behind the first end after its first scan: before it, previews have ends of their own; and so may a segment
    between two scans."""
    at, scanned = 2, False
    for _ in range(PARTS_MAX):
        found = _MARKER.search(raw, at)
        if found is None:
            return None
        at = found.end()
        if scanned and found[0] == _END:
            return at
        scanned = scanned or found[0] == _SCAN
        if found[1][0] not in _ALONE:
            at += int.from_bytes(raw[at : at + 2])
    return None


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

    shown = _eight_bits(ImageOps.exif_transpose(file))
    if shown.mode == "P" or "transparency" in shown.info or shown.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        clear = shown.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, clear).convert("RGB")
    return shown.convert("RGB")


def _eight_bits(shown: Image) -> Image:
    """Pillow clips the 16 bits of grey PNGs instead of scaling them."""
    from PIL import ImageChops

    if not shown.mode.startswith("I"):
        return shown
    wide, clear = shown.convert("I"), shown.info.get("transparency")
    grey = wide.point(lambda value: value * (1 / 256)).convert("L")
    grey.info.pop("transparency", None)
    if isinstance(clear, int):  # one shade, of all 16 bits
        above, below = (
            wide.point(lambda value: value * 1 - clear),
            wide.point(lambda value: value * -1 + clear),
        )
        other = ImageChops.lighter(above.convert("L"), below.convert("L"))
        grey.putalpha(other.point(lambda value: 255 if value else 0))
    return grey
