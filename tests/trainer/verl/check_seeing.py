"""Prompts with pictures have the ids of transformers' own processor, and its pixels."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from PIL import Image
from transformers import (  # type: ignore[import-not-found]
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.media.placing import expand
from tests.gateway.media import seeing
from tests.trainer.verl import vision

SIZES = {"shortest_edge": seeing.RULE.min_pixels, "longest_edge": seeing.RULE.max_pixels}
NOISE = [vision.picture(*size) for size in ((56, 56), (200, 100), (31, 97), (1024, 768), (28, 400), (3, 3))]

Said = list[tuple[str, list[Any]]]
CONVERSATIONS: dict[str, Said] = {
    "one picture": [("user", [NOISE[0]])],
    "words around it": [("user", ["left ", NOISE[1], " right"])],
    "all sizes": [("user", [part for picture in NOISE for part in ("and", picture)])],
    "side by side": [("user", [NOISE[0], NOISE[2]])],
    "several turns": [
        ("system", ["Be brief."]), ("user", [NOISE[3], "what?"]), ("assistant", ["A cat."]), ("user", ["?", NOISE[0]]),
    ],
    "other alphabets": [("user", ["你好 🙂", NOISE[5], "naïve café"])],
}  # fmt: skip


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = seeing.write(tmp_path_factory.mktemp("seeing"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<|endoftext|>"
    )
    return Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=SIZES),
        tokenizer,
        Qwen2VLVideoProcessor(size=SIZES),
        chat_template=seeing.TEMPLATE,
    )


def ours(said: Said) -> list[Message]:
    return [Message(role, tuple(map(part_of, parts))) for role, parts in said]  # type: ignore[arg-type]


def part_of(part: Any) -> TextPart | ImagePart:
    if isinstance(part, str):
        return TextPart(part)
    return ImagePart("data:image/png;base64," + base64.b64encode(seeing.encoded(part)).decode())


def theirs(processor: Any, said: Said) -> Any:
    """Through the processor's own chat template and its call, on the pictures as they are."""
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
def test_ids_are_those_of_transformers_processor(case: str, processor: Any) -> None:
    said = CONVERSATIONS[case]
    messages = ours(said)
    pictures = Pictures(seeing.RULE).of(messages)
    ids, spans = expand(seeing.codec().render(messages, ()), seeing.vision(), pictures)
    wanted = theirs(processor, said)
    assert ids.tolist() == wanted["input_ids"][0].tolist()
    assert [list(picture.grid) for picture in pictures] == wanted["image_grid_thw"].tolist()
    assert sum(span.length for span in spans) == int((wanted["input_ids"] == seeing.placeholder()).sum())


@pytest.mark.parametrize("at", range(len(NOISE)))
def test_pixels_are_those_of_the_processor_on_the_picture_itself(at: int, tmp_path: Path) -> None:
    pil = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processor = pil.Qwen2VLImageProcessorPil(size=SIZES)
    (picture,) = Pictures(seeing.RULE).of(ours([("user", [NOISE[at]])]))
    (tmp_path / "p.png").write_bytes(picture.png)
    seen, wanted = (
        processor(images=[image], return_tensors="pt")
        for image in (Image.open(tmp_path / "p.png"), NOISE[at])
    )
    assert torch.equal(seen["image_grid_thw"], wanted["image_grid_thw"])
    assert torch.equal(seen["pixel_values"], wanted["pixel_values"])
