"""A tiny Qwen2.5-VL on disk: its config, processors and a tokenizer of words; no weights, nothing downloaded."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.verl.multimodal import pack
from tests.trainer.verl.rows import row

WORDS = ["<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
FIRST = 90
PAD, START, END, IMAGE, VIDEO = range(FIRST, FIRST + len(WORDS))
"""Ids of WORDS; those below are plain words."""
PIXELS = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16}
"""A merged patch is 28 x 28 pixels: pictures of one to sixteen tokens."""


def write(folder: Path) -> Path:
    """What verl's `hf_processor` reads."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import (  # type: ignore[import-not-found]
        PreTrainedTokenizerFast,
        Qwen2_5_VLConfig,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    words = {word: at for at, word in enumerate([*(f"w{at}" for at in range(FIRST)), *WORDS])}
    inner = Tokenizer(WordLevel(words, WORDS[0]))
    inner.pre_tokenizer = Split(" ", "removed")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=WORDS[0], additional_special_tokens=WORDS[1:]
    )
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(**PIXELS), tokenizer, Qwen2VLVideoProcessor(**PIXELS), chat_template=template
    ).save_pretrained(folder)
    text: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": len(words),
    }
    text |= {"bos_token_id": None, "eos_token_id": PAD}
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config={"depth": 1}, image_token_id=IMAGE, video_token_id=VIDEO
    )
    config.save_pretrained(folder)
    return folder


def picture(width: int, height: int) -> Any:
    """Noise, the same each time."""
    from PIL import Image

    pixels = np.random.default_rng(width).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def film(frames: int, width: int, height: int) -> Any:
    """Frames [n, 3, height, width] and what verl knows of them."""
    import torch  # type: ignore[import-not-found]

    pixels = np.random.default_rng(frames).integers(0, 255, (frames, 3, height, width), np.uint8)
    seen = {"fps": 2.0, "total_num_frames": frames, "frames_indices": list(range(frames))}
    return torch.from_numpy(pixels), seen


def processed(processor: Any, **media: Any) -> dict[str, Any]:
    """The processor's outputs for pictures and films without any words."""
    from verl.utils.tokenizer import build_multimodal_processor_inputs  # type: ignore[import-not-found]

    _, _, _, image, video = WORDS
    kinds = [(image, media.get("images")), (video, media.get("videos"))]
    text = " ".join(word for word, given in kinds for _ in given or ())
    made = build_multimodal_processor_inputs(processor, text=[text], **media)
    return dict(made.convert_to_tensors("pt"))


def seen(processor: Any, session: int = 0, *, spare: int = 0, **media: Any) -> Trajectory:
    """A row whose prompt shows the media, with a placeholder for each merged patch, and `spare` too many."""
    import torch

    outputs = processed(processor, **media)
    counts = [(IMAGE, outputs.get("image_grid_thw")), (VIDEO, outputs.get("video_grid_thw"))]
    ids = [5]
    for token, grid in counts:
        for line in grid.tolist() if grid is not None else ():
            ids += [START, *[token] * (line[0] * line[1] * line[2] // 4 + spare), END]
    tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    return row(session, prompt_ids=array("i", [*ids, 6]), multimodal=pack(tensors))
