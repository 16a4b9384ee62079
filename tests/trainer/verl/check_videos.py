"""Videos of a gateway: ids and pixels of transformers' own processor; verl's rows at the engine's positions."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import numpy as np
import pytest
import torch  # type: ignore[import-not-found]
from PIL import Image
from transformers import (  # type: ignore[import-not-found]
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from verl.models.transformers.qwen2_vl import (  # type: ignore[import-not-found]
    get_rope_index as original_rule,
)
from verl.utils.tokenizer import hf_processor  # type: ignore[import-not-found]

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, VideoPart
from sandgate.gateway.conversation.shown import Pictures
from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.placing import expand
from sandgate.gateway.media.record import packed
from sandgate.gateway.media.spans import Span
from sandgate.gateway.media.videos import VideoRule, read_video
from sandgate.trainer.verl import Lengths, to_dataproto
from sandgate.trainer.verl.multimodal import inputs_of
from tests.gateway.media import seeing
from tests.trainer.verl import vision
from tests.trainer.verl.rows import row

SIZES = {"shortest_edge": seeing.RULE.min_pixels, "longest_edge": seeing.RULE.max_pixels}


def frames(many: int, width: int, height: int) -> list[Image.Image]:
    """Noise, the same each time."""
    pixels = np.random.default_rng(many).integers(0, 255, (many, height, width, 3), np.uint8)
    return [Image.fromarray(one) for one in pixels]


CLIPS: dict[str, list[Image.Image]] = {
    "one frame": frames(1, 56, 56),
    "two": frames(2, 84, 56),
    "an odd number": frames(5, 28, 56),
    "as many as are taken": frames(32, 28, 28),
}
RESIZED: dict[str, list[Image.Image]] = {"large frames": frames(3, 300, 200), "small ones": frames(2, 20, 20)}
ALL = CLIPS | RESIZED


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


def data_url(image: Image.Image) -> str:
    return "data:image/png;base64," + base64.b64encode(seeing.encoded(image)).decode()


def ours(clip: list[Image.Image]) -> tuple[Any, Any, Any]:
    """(ids, spans, what is shown)."""
    image = ImagePart(data_url(frames(1, 56, 56)[0]))
    parts = (TextPart("left "), VideoPart(tuple(map(data_url, clip))), TextPart(" right "), image)
    messages = [Message("user", parts)]
    seen = seeing.vision()
    shown = Pictures(seen.rule, seen.video).of(messages)
    ids, spans = expand(seeing.codec().render(messages, ()), seen, shown)
    return ids, spans, shown


def theirs(processor: Any, clip: list[Image.Image]) -> Any:
    content = [
        {"type": "text", "text": "left "},
        {"type": "video"},
        {"type": "text", "text": " right "},
        {"type": "image"},
    ]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    told = {"total_num_frames": len(clip), "fps": 1.0, "frames_indices": list(range(len(clip)))}
    return processor(
        text=[text],
        images=frames(1, 56, 56),
        videos=[np.stack([np.asarray(one) for one in clip])],
        video_metadata=[told],
        do_sample_frames=False,
        return_tensors="pt",
    )


@pytest.mark.parametrize("case", ALL)
def test_ids_and_grids_are_those_of_transformers_processor(case: str, processor: Any) -> None:
    clip = ALL[case]
    ids, _, (video, _) = ours(clip)
    wanted = theirs(processor, clip)
    assert ids.tolist() == wanted["input_ids"][0].tolist()
    assert [list(video.grid)] == wanted["video_grid_thw"].tolist()
    assert [video.seconds] == list(wanted["second_per_grid_ts"])


@pytest.mark.parametrize("case", ALL)
def test_a_rows_pixels_are_those_of_the_processor(case: str, processor: Any) -> None:
    """On frames of a size that it keeps, of the very frames; on others, of the frames as the engine is sent them."""
    clip = ALL[case]
    ids, spans, shown = ours(clip)
    made = inputs_of(row(0, prompt_ids=ids, multimodal=packed(spans, _by_digest(shown))), processor)
    wanted = theirs(processor, clip)
    for name in ("image_grid_thw", "video_grid_thw", "pixel_values"):
        assert torch.equal(made[name], wanted[name]), name
    assert made["second_per_grid_ts"].tolist() == [2.0]
    if case in CLIPS:
        assert torch.equal(made["pixel_values_videos"], wanted["pixel_values_videos"])
    else:
        assert made["pixel_values_videos"].shape == wanted["pixel_values_videos"].shape


def _by_digest(shown: Any) -> dict[bytes, Any]:
    return {one.digest: one for one in shown}


def test_a_processor_of_other_settings_is_refused(processor: Any) -> None:
    ids, spans, shown = ours(CLIPS["two"])
    one = row(0, prompt_ids=ids, multimodal=packed(spans, _by_digest(shown)))
    other = Qwen2_5_VLProcessor(
        processor.image_processor,
        processor.tokenizer,
        Qwen2VLVideoProcessor(size=SIZES, temporal_patch_size=1),
        chat_template=seeing.TEMPLATE,
    )
    with pytest.raises(InvalidBody, match="other patches"):
        inputs_of(one, other)


def test_a_row_that_lacks_a_frame_is_refused(processor: Any) -> None:
    ids, spans, shown = ours(CLIPS["two"])
    raw = packed(spans, _by_digest(shown))
    assert raw is not None
    name = f"png.{shown[0].digest.hex()}.1".encode()
    one = row(0, prompt_ids=ids, multimodal=raw.replace(name, name[:-1] + b"7"))
    with pytest.raises(CorruptRecord, match="lacks png"):
        inputs_of(one, processor)


# -- verl's rows -----------------------------------------------------------------------------------------------------


def test_positions_are_those_that_the_engine_counted(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As verl's own copy of the rule that Qwen2.5-VL was trained with has them, which goes on behind a video's largest
    position, as vLLM does; transformers 5 goes on behind its sides (huggingface/transformers#45400 and after)."""
    processor = hf_processor(str(vision.write(tmp_path_factory.mktemp("verl"))))
    of = VideoRule(vision.VIDEO, "<|video_pad|>", GridRule(14, 2, 784, 784 * 16), 2, timed=True)
    clips = [[seeing.encoded(one) for one in frames(many, 56, 28)] for many in (6, 3)]
    videos = [read_video(clip, of, 1 << 20)[0] for clip in clips]
    still = Pictures(of.frame).of([Message("user", (ImagePart(data_url(frames(1, 84, 56)[0])),))])[0]
    ids, spans = array("i", [5]), []
    runs = [of.run(videos[0]), array("i", [vision.IMAGE]) * 6, of.run(videos[1])]
    for seen, run in zip((videos[0], still, videos[1]), runs, strict=True):
        ids.append(vision.START)
        spans.append(Span(len(ids), len(run), seen.digest))
        ids += run + array("i", [vision.END, 6])
    shown = _by_digest([*videos, still])
    one = row(0, prompt_ids=ids, multimodal=packed(tuple(spans), shown))
    batch = to_dataproto([one], Lengths(64, 16), processor=processor).batch
    mask = batch["attention_mask"][0].bool()
    made, all_ids = batch["position_ids"][0][:, mask], batch["input_ids"][0][mask]
    per_second = processor.config.vision_config.tokens_per_second  # verl's copy counts 2
    wanted = original_rule(
        processor,
        all_ids,
        image_grid_thw=torch.tensor([still.grid]),
        video_grid_thw=torch.tensor([video.grid for video in videos]),
        second_per_grid_ts=torch.tensor([2.0 * per_second / 2] * 2),
    )
    assert torch.equal(made[1:], wanted)
    assert made[0].tolist() == list(range(len(all_ids)))
