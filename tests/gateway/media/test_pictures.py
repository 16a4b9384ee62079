"""Pictures: what is taken, what it becomes, and what is refused, in the words that the client gets."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from PIL import Image

from sandgate.contract.errors import BadRequest, InvalidBody
from sandgate.gateway.conversation.messages import ImagePart, Message
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.media.grids import GridRule, rule_of
from sandgate.gateway.media.pictures import PIXELS_MAX, Picture, read
from sandgate.gateway.media.rules import UnknownProcessor
from sandgate.gateway.media.sources import BYTES_MAX, data_of, image_url
from tests.gateway.media import seeing
from tests.gateway.media.seeing import RULE, encoded, picture, url

LARGE = GridRule(14, 2, 56 * 56, 28 * 28 * 1280)


def pixels(of: Picture) -> Image.Image:
    return Image.open(io.BytesIO(of.png))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header says so, whatever its data are."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data or zlib.compress(b"")) + chunk(b"IEND", b"")


def exif(orientation: int) -> bytes:
    made = Image.Exif()
    made[0x0112] = orientation
    return encoded(picture("red", (84, 56)), "JPEG", exif=made, quality=95)


def animated(kind: str) -> bytes:
    frames = [picture("red"), picture("green")]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def of_scans(more: int, side: int = 56) -> bytes:
    """A progressive JPEG of ten scans, and so many more, of a few bytes each."""
    raw = encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True)
    last = raw.rindex(b"\xff\xda")
    return raw[:-2] + raw[last:-2] * more + raw[-2:]


def with_chunks(more: int) -> bytes:
    raw = encoded(picture())
    return raw[:33] + chunk(b"abCd", b"") * more + raw[33:]


def with_segments(segment: bytes, more: int) -> bytes:
    raw = encoded(picture(), "JPEG")
    return raw[:2] + segment * more + raw[2:]


def with_comments(more: int) -> bytes:
    raw = encoded(picture().quantize(8), "GIF")
    at = raw.index(b",", 13)
    return raw[:at] + b"!\xfe\1a\0" * more + raw[at:]


def see_through() -> bytes:
    made = Image.new("P", (56, 56), 1)
    made.putpalette([0, 0, 0, 255, 0, 0])
    made.paste(0, (0, 0, 28, 56))
    return encoded(made, transparency=0)


def with_an_end_between_scans() -> bytes:
    """A progressive JPEG with a comment that has the bytes of an end, and a film behind it."""
    raw = encoded(picture(), "JPEG", progressive=True)
    second = raw.index(b"\xff\xda", raw.index(b"\xff\xda") + 2)
    at = raw.rindex(b"\xff\xc4", 0, second)
    return raw[:at] + b"\xff\xfe\0\6\xff\xd9ab" + raw[at:] + b"\xff\xda" * 100


KINDS: dict[str, tuple[bytes, tuple[int, int], tuple[int, int, int]]] = {
    "a PNG": (encoded(picture()), (56, 56), (255, 0, 0)),
    "a JPEG": (encoded(picture(), "JPEG", quality=95), (56, 56), (254, 0, 0)),
    "a WebP": (encoded(picture(), "WEBP", lossless=True), (56, 56), (255, 0, 0)),
    "a GIF of one frame": (encoded(picture(), "GIF"), (56, 56), (255, 0, 0)),
    "grey": (encoded(Image.new("L", (56, 56), 128)), (56, 56), (128, 128, 128)),
    "grey of 16 bits keeps its shade": (
        encoded(Image.new("I;16", (56, 56), 0x8000)),
        (56, 56),
        (128, 128, 128),
    ),
    "black and white": (encoded(Image.new("1", (56, 56), 1)), (56, 56), (255, 255, 255)),
    "a CMYK JPEG": (
        encoded(Image.new("CMYK", (56, 56), (0, 255, 255, 0)), "JPEG", quality=95),
        (56, 56),
        (255, 0, 0),
    ),
    "transparent is white": (encoded(Image.new("RGBA", (56, 56), (255, 0, 0, 0))), (56, 56), (255, 255, 255)),
    "half transparent is pale": (
        encoded(Image.new("RGBA", (56, 56), (255, 0, 0, 128))),
        (56, 56),
        (255, 127, 127),
    ),
    "one pixel": (encoded(Image.new("RGB", (1, 1), "red")), (28, 28), (255, 0, 0)),
    "a long one": (encoded(Image.new("RGB", (28 * 16, 28), "red")), (448, 28), (255, 0, 0)),
    "larger than the model takes": (encoded(Image.new("RGB", (1024, 768), "red")), (112, 84), (255, 0, 0)),
}


@pytest.mark.parametrize("case", KINDS)
def test_a_picture_is_rgb_of_the_models_size(case: str) -> None:
    raw, size, color = KINDS[case]
    made = read(raw, RULE)
    found = pixels(made)
    assert (found.mode, found.size, (made.width, made.height)) == ("RGB", size, size)
    corner = found.getpixel((size[0] - 1, size[1] - 1))
    assert isinstance(corner, tuple)
    assert all(abs(one - other) <= 2 for one, other in zip(corner, color, strict=True)), corner
    assert made.grid == (1, size[1] // 14, size[0] // 14)
    assert RULE.tokens(*size) * 4 == made.grid[1] * made.grid[2]


def test_a_palette_with_a_transparent_colour_is_put_on_white() -> None:
    found = pixels(read(see_through(), RULE))
    assert found.getpixel((0, 0)) == (255, 255, 255)
    assert found.getpixel((55, 0)) == (255, 0, 0)


def test_grey_of_16_bits_keeps_its_shades_beside_a_transparent_one() -> None:
    shades = [0x3FFF, 0x4000, 0x4001, 0xFFFF]
    row = b"".join(struct.pack("<H", shade) * 14 for shade in shades)
    made = Image.frombytes("I;16", (56, 56), row * 56)
    found = pixels(read(encoded(made, transparency=0x4000), RULE))
    assert [found.getpixel((number * 14 + 7, 28)) for number in range(4)] == [
        (0x3F,) * 3,
        (255,) * 3,
        (0x40,) * 3,
        (255,) * 3,
    ]


def test_what_no_reader_knows_is_refused_in_the_same_words_each_time() -> None:
    with pytest.raises(InvalidBody) as refused:
        read(b"zz", RULE)
    assert str(refused.value) == "it is no whole PNG, JPEG, WebP or GIF"


@pytest.mark.parametrize(
    ("orientation", "size"), [(1, (84, 56)), (3, (84, 56)), (6, (56, 84)), (8, (56, 84))]
)
def test_a_photograph_is_turned_as_its_exif_says(orientation: int, size: tuple[int, int]) -> None:
    made = read(exif(orientation), RULE)
    assert (made.width, made.height) == size
    at = {1: (5, 5), 3: (80, 52), 6: (52, 5), 8: (3, 80)}[orientation]
    blue = pixels(made).getpixel(at)
    assert isinstance(blue, tuple)
    assert blue[2] > 150 > blue[0]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing of a picture": (lambda: b"hello", "no whole PNG"),
    "a BMP": (lambda: encoded(picture(), "BMP"), "no whole PNG"),
    "a TIFF that says to be a PNG": (lambda: encoded(picture(), "TIFF"), "no whole PNG"),
    "an SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no whole PNG"),
    "half of a PNG": (lambda: encoded(picture("red", (560, 560)))[:200], "no whole PNG"),
    "half of a JPEG": (lambda: encoded(picture("red", (560, 560)), "JPEG")[:900], "no whole PNG"),
    "half of a WebP": (lambda: encoded(picture("red", (560, 560)), "WEBP")[:60], "no whole PNG"),
    "100,000 x 100,000 pixels": (lambda: png(100_000, 100_000), "at most|more than"),
    "12,000 x 12,000 pixels, which Pillow only warns of": (lambda: png(12_000, 12_000), "at most|more than"),
    "one line of 20,000": (lambda: png(20_000, 101), "20000 x 101; at most"),
    "0 x 0": (lambda: png(0, 0), "no whole PNG"),
    "a broken checksum": (lambda: encoded(picture()).replace(b"IDAT", b"IDAU"), "no whole PNG"),
    "an animated GIF": (lambda: animated("GIF"), "animation; send one frame"),
    "an animated WebP": (lambda: animated("WEBP"), "animation; send one frame"),
    "an animated PNG": (lambda: animated("PNG"), "animation; send one frame"),
    "a JPEG of a thousand scans": (lambda: of_scans(1_000), "1006 scans; at most 64"),
    "a PNG of 100,000 chunks": (lambda: with_chunks(100_000), "more than 131072 parts"),
    "a JPEG of 200,000 comments": (lambda: with_segments(b"\xff\xfe\0\2", 200_000), "more than 131072 parts"),
    "a JPEG of 200,000 segments that nobody knows": (
        lambda: with_segments(b"\xff\xf5\0\2", 200_000),
        "more than 131072 parts",
    ),
    "a JPEG that is nothing but fill": (lambda: with_segments(b"\xff", 1_000_000), "more than 131072 parts"),
    "a GIF of 200,000 comments": (lambda: with_comments(200_000), "more than 131072 parts"),
    "a strip": (lambda: encoded(Image.new("L", (2001, 10))), "2001 and 10, which is too narrow"),
    "a strip that keeps more pixels than the model's limit": (
        lambda: encoded(Image.new("L", (28 * 199, 28))),
        "too narrow",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_picture_is_refused(case: str) -> None:
    make, why = REFUSED[case]
    with pytest.raises(InvalidBody, match=why):
        read(make(), RULE)


PARTS: dict[str, Callable[[], bytes]] = {
    "a JPEG of as many scans as a careful encoder makes": lambda: of_scans(20),
    "a photograph and its preview": lambda: encoded(
        picture(), "MPO", save_all=True, append_images=[picture("green")]
    ),
    "a photograph with a preview in its EXIF": lambda: encoded(
        picture(), "JPEG", exif=b"Exif\0\0" + of_scans(9)
    ),
    "a photograph with a film behind it": lambda: (
        encoded(picture(), "JPEG") + random.Random(7).randbytes(BYTES_MAX - 4096)
    ),
    "an end in a comment between two scans": with_an_end_between_scans,
    "a JPEG of more restarts than it may have parts": lambda: encoded(
        Image.new("L", (4096, 4096)), "JPEG", restart_marker_blocks=1
    ),
    "a PNG of small chunks": lambda: with_chunks(8_000),
    "a JPEG of many segments, and fill between them": lambda: with_segments(b"\xff\xff\xfe\0\3.", 2_000),
    "a GIF of 6 MB": lambda: encoded(Image.effect_noise((2500, 2500), 99), "GIF"),
}


@pytest.mark.parametrize("case", PARTS)
def test_what_honest_files_have_many_of_is_taken(case: str) -> None:
    assert read(PARTS[case](), LARGE).width >= 56


def test_rows_that_a_png_says_to_have_and_lacks_are_black() -> None:
    made = pixels(read(png(1000, 1000, zlib.compress(b"\0" + b"\xff" * 3000)), RULE))
    assert made.getpixel((0, 111)) == (0, 0, 0)


URLS: dict[str, tuple[str, str]] = {
    "an address of no host": ("https:///cat.png", "is no address of the form"),
    "a file": ("file:///etc/passwd", "a picture is a data URL"),
    "a name": ("cat.png", "a picture is a data URL"),
    "nothing": ("", "a picture is a data URL"),
    "a URL without data": ("data:image/png", "no data URL of the form"),
    "no base64": ("data:image/png,%89PNG", "must say base64"),
    "no type": ("data:;base64,AAAA", "pictures are of type"),
    "an SVG": ("data:image/svg+xml;base64,AAAA", "pictures are of type"),
    "text": ("data:text/plain;base64,AAAA", "pictures are of type"),
    "a head without end": ("data:image/png;" + "a=b;" * 100_000 + "base64,AAAA", "no data URL of the form"),
    "too many bytes": ("data:image/png;base64," + "A" * (BYTES_MAX * 4 // 3 + 8), "at most 8388608 bytes"),
}


@pytest.mark.parametrize("case", URLS)
def test_a_source_that_is_not_taken_is_named(case: str) -> None:
    given, why = URLS[case]
    with pytest.raises(BadRequest, match=why) as refused:
        image_url(given, "messages[0].content[1].image_url.url")
    assert refused.value.field == "messages[0].content[1].image_url.url"


@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:IMAGE/PNG;charset=x;BASE64,"])
def test_a_data_url_gives_its_bytes(head: str) -> None:
    assert data_of(image_url(head + "QUJD", "f")) == b"ABC"


@pytest.mark.parametrize("data", ["", "*", "QUJ", "QUJD QUJD", "é"])
def test_what_is_no_base64_is_refused(data: str) -> None:
    with pytest.raises(InvalidBody, match=r"no base64|no data"):
        data_of(image_url("data:image/png;base64," + data, "f"))


def messages(*urls: str) -> list[Message]:
    return [Message("user", tuple(ImagePart(one) for one in urls))]


def test_the_third_image_is_named() -> None:
    with pytest.raises(InvalidBody, match="image 3 of the request: its data is no base64"):
        Pictures(RULE).of(messages(url(), url("green"), "data:image/png;base64,*"))


def test_a_thousand_images_are_refused_before_one_is_read() -> None:
    with pytest.raises(InvalidBody, match="1000 images; at most 100"):
        Pictures(RULE).of(messages(*["data:image/png;base64,*"] * 1000))


@pytest.mark.parametrize("cached", [False, True], ids=["new", "seen before"])
def test_the_pixels_of_a_request_are_bounded_in_all(cached: bool) -> None:
    side = int(PIXELS_MAX**0.5)
    one = seeing.data_url(encoded(Image.new("1", (side, side))))
    pictures = Pictures(RULE)
    if cached:
        pictures.of(messages(one))
    assert len(pictures.of(messages(*[one] * 8))) == 8
    with pytest.raises(
        InvalidBody, match="image 9 of the request: with it the request's images have more than"
    ):
        pictures.of(messages(*[one] * 9))


def test_a_picture_is_read_once() -> None:
    pictures = Pictures(RULE)
    first, again = pictures.of(messages(url(), url()))
    assert first is again
    assert pictures.of(messages(url()))[0] is first


def test_a_photograph_of_twelve_megapixels_is_read_once() -> None:
    noise = Image.effect_noise((4000, 3000), 80).convert("RGB")
    pictures = Pictures(GridRule(14, 2, 56 * 56, 14 * 14 * 4 * 16_384))
    asked = messages(seeing.data_url(encoded(noise, "JPEG", quality=50), "image/jpeg"))
    (first,) = pictures.of(asked)
    assert len(first.png) > 8 << 20
    assert pictures.of(asked)[0] is first


def test_pictures_with_the_same_pixels_are_one_and_others_are_not() -> None:
    found = [read(encoded(picture(), kind), RULE).digest for kind in ("PNG", "GIF")]
    assert found[0] == found[1]
    others = [picture("green"), picture("red", (56, 84)), picture("red", (84, 56)), picture((254, 0, 0))]
    assert len({found[0], *(read(encoded(one), RULE).digest for one in others)}) == 5


def test_bytes_of_one_shape_and_another_are_two_pictures() -> None:
    flat = [Image.new("RGB", size, "red") for size in ((56, 28), (28, 56))]
    assert len({read(encoded(one), RULE).digest for one in flat}) == 2


def test_what_was_resized_once_is_not_resized_again() -> None:
    made = read(encoded(picture("red", (500, 333))), LARGE)
    assert read(made.png, LARGE).png == made.png
    assert LARGE.size(made.width, made.height) == (made.width, made.height)


def test_the_largest_picture_that_is_taken_is_taken() -> None:
    side = int(PIXELS_MAX**0.5)
    assert read(encoded(Image.new("1", (side, side))), RULE).grid == (1, 8, 8)


PROCESSORS: dict[str, tuple[dict[str, object], GridRule | str]] = {
    "as Qwen2-VL's": ({"min_pixels": 3136, "max_pixels": 12_845_056}, GridRule(14, 2, 3136, 12_845_056)),
    "as transformers 5 writes it": (
        {"size": {"shortest_edge": 3136, "longest_edge": 1_003_520}},
        GridRule(14, 2, 3136, 1_003_520),
    ),
    "as Qwen3-VL's": (
        {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16_777_216}},
        GridRule(16, 2, 65536, 16_777_216),
    ),
    "one that does not resize": ({"do_resize": False}, "does not resize"),
    "sizes that are none": ({"patch_size": 0}, "no numbers"),
    "a size beyond all bounds": ({"max_pixels": 2**40}, "no numbers"),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_a_checkpoints_processor_is_understood_or_named(case: str) -> None:
    given, wanted = PROCESSORS[case]
    config = {"image_processor_type": "Qwen2VLImageProcessor", **given}
    if isinstance(wanted, GridRule):
        assert rule_of(config) == wanted
    else:
        with pytest.raises(UnknownProcessor, match=wanted):
            rule_of(config)


def test_the_model_of_these_tests_has_the_rule() -> None:
    vision = seeing.codec().vision
    assert vision is not None
    assert (vision.rule, vision.text) == (RULE, "<|image_pad|>")
