"""Each kind of image processor: ids, grids and pixels are those of transformers, read from the same folder."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch  # type: ignore[import-not-found]
from PIL import Image
from transformers import AutoImageProcessor, AutoProcessor  # type: ignore[import-not-found]

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.media.pictures import read
from sandgate.gateway.media.placing import expand
from sandgate.gateway.media.record import packed
from sandgate.trainer.verl import Lengths, to_dataproto
from sandgate.trainer.verl.multimodal import NOT_INPUTS
from tests.gateway.media import kinds, seeing
from tests.trainer.verl import rows, vision

SIZES = (
    (1, 1), (2, 1), (27, 29), (56, 56), (57, 55), (112, 28), (28, 112), (63, 1), (1, 63), (200, 100), (100, 200),
    (333, 777), (1024, 768), (1999, 11), (11, 1999), (4000, 1), (1, 4000), (3001, 2003),
)  # fmt: skip
STRIPS = {(4000, 1), (1, 4000)}
NARROW: dict[str, set[tuple[int, int]]] = {
    "pixtral": {*STRIPS, (1999, 11), (11, 1999)},
    "mistral3": {*STRIPS, (1999, 11), (11, 1999)},
    "qwen3_vl": STRIPS,
    "glm4v": {*STRIPS, (1999, 11), (11, 1999), (63, 1), (1, 63)},
    "glm46v": {*STRIPS, (1999, 11), (11, 1999), (63, 1), (1, 63)},
}
"""What the gateway refuses, as the processor cannot take it, or would resize it once more when it sees it again."""
PICTURES = {size: vision.picture(*size) for size in SIZES}

Said = list[tuple[str, list[Any]]]
A, B, C = PICTURES[56, 56], PICTURES[333, 777], PICTURES[200, 100]
CONVERSATIONS: dict[str, Said] = {
    "no picture": [("user", ["hello"])],
    "one picture": [("user", [A])],
    "before words": [("user", [A, "what is it?"])],
    "in the middle of words": [("user", ["left ", B, " right"])],
    "behind words that end in a new line": [("user", ["look:\n", C])],
    "before words that begin with one": [("user", [C, "\nlook"])],
    "side by side": [("user", [A, B])],
    "five": [("user", ["q", A, "w", B, "e", C, A, B])],
    "several turns": [("user", [B, "what?"]), ("assistant", ["A cat."]), ("user", ["and?", C])],
    "other alphabets": [("user", ["你好 🙂", C, "naïve café"])],
}


@pytest.fixture(scope="module", autouse=True)
def counting() -> None:
    """SmolVLM's processor wants num2words, for videos, and fails without."""
    from transformers.models.smolvlm import processing_smolvlm  # type: ignore[import-not-found]

    processing_smolvlm.num2words = processing_smolvlm.num2words or str


@pytest.fixture(scope="module")
def processors() -> dict[str, Any]:
    return {name: AutoProcessor.from_pretrained(kinds.folder(name)) for name in kinds.KINDS}


@functools.cache
def exact(name: str) -> Any:
    """The image processor that resizes with Pillow, as the models were trained."""
    return AutoImageProcessor.from_pretrained(kinds.folder(name), backend="pil")


def processed(processor: Any, name: str, pictures: Sequence[Any]) -> Any:
    more: dict[str, Any] = {}
    if kinds.KINDS[name].image["image_processor_type"] == "PixtralImageProcessor":
        told = kinds.KINDS[name].processor
        more = {"patch_size": told["patch_size"] * told.get("spatial_merge_size", 1)}
    return processor(images=list(pictures), return_tensors="pt", **more)


def ours(said: Said) -> list[Message]:
    return [Message(role, tuple(map(part_of, parts))) for role, parts in said]  # type: ignore[arg-type]


def part_of(part: Any) -> TextPart | ImagePart:
    return TextPart(part) if isinstance(part, str) else ImagePart(seeing.data_url(seeing.encoded(part)))


def theirs(processor: Any, said: Said) -> Any:
    conversation = [
        {"role": role, "content": [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
            for part in parts
        ]}
        for role, parts in said
    ]  # fmt: skip
    return processor.apply_chat_template(
        conversation, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )


@pytest.mark.parametrize("case", CONVERSATIONS)
@pytest.mark.parametrize("name", kinds.KINDS)
def test_ids_are_those_of_transformers_processor(name: str, case: str, processors: dict[str, Any]) -> None:
    said, seen = CONVERSATIONS[case], kinds.vision(name)
    messages = ours(said)
    pictures = Pictures(seen.rule).of(messages)
    ids, spans = expand(kinds.codec(name).render(messages, ()), seen, pictures)
    wanted = theirs(processors[name], said)
    assert ids.tolist() == wanted["input_ids"][0].tolist()
    assert len(spans) == len(pictures)
    if "image_grid_thw" in wanted:
        assert [list(one.grid) for one in pictures] == wanted["image_grid_thw"].tolist()
    if "image_sizes" in wanted:
        assert [[one.height, one.width] for one in pictures] == wanted["image_sizes"].tolist()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", kinds.KINDS)
def test_pixels_are_those_of_the_processor_on_the_picture_itself(name: str, size: tuple[int, int]) -> None:
    raw, rule = seeing.encoded(PICTURES[size]), kinds.vision(name).rule
    if size in NARROW.get(name, ()):
        with pytest.raises(InvalidBody, match="too narrow"):
            read(raw, rule)
        return
    png = Image.open(io.BytesIO(read(raw, rule).png))
    processor = exact(name)
    seen, wanted = (processed(processor, name, [image]) for image in (png, PICTURES[size]))
    assert seen.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(torch.as_tensor(seen[key]), torch.as_tensor(value)), key


@pytest.mark.parametrize("name", kinds.KINDS)
def test_torchvision_has_nothing_to_resize_either(name: str) -> None:
    """What engines and trainers run, if torchvision is there, sees the same pixels."""
    raw, rule = seeing.encoded(B), kinds.vision(name).rule
    png = Image.open(io.BytesIO(read(raw, rule).png))
    fast = AutoImageProcessor.from_pretrained(kinds.folder(name), backend="torchvision")
    seen, wanted = (processed(one, name, [png]) for one in (fast, exact(name)))
    pixels, told = seen["pixel_values"], wanted["pixel_values"]
    if rule.kind == "tiles":  # the last is the picture as a whole, which each of them resizes
        pixels, told = pixels[:, :-1], told[:, :-1]
    assert pixels.shape == told.shape
    assert float((pixels - told).abs().max()) < 1e-5


def test_a_picture_that_is_not_square_is_not_squeezed_by_llava() -> None:
    pixels = np.zeros((56, 112, 3), np.uint8)
    pixels[:, 28:84] = 255
    made = read(seeing.encoded(Image.fromarray(pixels)), kinds.vision("llava").rule)
    assert np.asarray(Image.open(io.BytesIO(made.png))).min() == 255


def of_a_gateway(name: str, case: str) -> tuple[Any, Said]:
    """A row of a conversation as a gateway records it, and the conversation with the pictures as its engine was sent
    them."""
    said, seen = CONVERSATIONS[case], kinds.vision(name)
    pictures = Pictures(seen.rule).of(ours(said))
    ids, spans = expand(kinds.codec(name).render(ours(said), ()), seen, pictures)
    kept = packed(spans, {picture.digest: picture for picture in pictures})
    shown = iter([Image.open(io.BytesIO(picture.png)) for picture in pictures])
    again = [
        (role, [part if isinstance(part, str) else next(shown) for part in parts]) for role, parts in said
    ]
    return rows.row(prompt_ids=ids, multimodal=kept), again


@pytest.mark.parametrize("case", ["no picture", "in the middle of words", "five", "several turns"])
@pytest.mark.parametrize("name", kinds.KINDS)
def test_rows_have_what_the_processor_makes_of_the_conversation(
    name: str, case: str, processors: dict[str, Any]
) -> None:
    row, said = of_a_gateway(name, case)
    wanted = {key: value for key, value in theirs(processors[name], said).items() if key not in NOT_INPUTS}
    data = to_dataproto([row, rows.short(1)], Lengths(4096, 8), processor=processors[name])
    mine, none = data.non_tensor_batch["multi_modal_inputs"]
    mine.pop("images_seqlens", None)
    assert set(mine) == set(wanted)
    assert all(
        torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(value)) for key, value in wanted.items()
    )
    assert none == {}


@pytest.mark.parametrize(
    ("name", "other"),
    [("gemma3", "llava"), ("llava", "llava with siglip"), ("pixtral", "mistral3"), ("idefics3", "llava")],
)
def test_another_models_processor_is_refused(name: str, other: str, processors: dict[str, Any]) -> None:
    row, _ = of_a_gateway(name, "five")
    with pytest.raises(InvalidBody, match="other patches than the gateway did"):
        to_dataproto([row], Lengths(4096, 8), processor=processors[other])
