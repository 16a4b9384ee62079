"""Checkpoints that see, one for each kind of image processor, as folders that transformers reads, too; no weights."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandgate.gateway.media.vision import Vision
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.load import load_codec
from tests.gateway.media.bodies import BODIES
from tests.gateway.tokens import lab
from tests.support import folders

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
USUAL = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
}


@dataclass(frozen=True)
class Kind:
    """What makes a checkpoint of a kind."""

    model: Mapping[str, Any]
    """config.json; values that are a token's text become its id."""
    image: Mapping[str, Any]
    """preprocessor_config.json."""
    processor: Mapping[str, Any]
    """processor_config.json."""
    tokens: tuple[str, ...]
    template: str
    end: str
    """What ends a turn."""
    plain: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    """Tokens that the processor asks its tokenizer for by name."""


def said(image: str, words: str = "{{ part.text }}") -> str:
    """What a message says, in parts or not."""
    return (
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        f"{{% if part.type == 'image' %}}{image}{{% else %}}{words}{{% endif %}}{{% endfor %}}{{% endif %}}"
    )


def turns(begin: str, image: str, end: str, words: str = "{{ part.text }}") -> str:
    """A template of turns with roles."""
    return (
        f"{{% for message in messages %}}{begin}{{{{ message.role }}}}\n{said(image, words)}{end}\n{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{begin}assistant\n{{% endif %}}"
    )


FIRST_IMAGES = (
    "{% for message in messages %}{{ message.role | upper }}: {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}{% endif %}"
    "{% if message.role == 'assistant' %}</s>{% else %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
"""As LLaVA's: the images of a message stand before its words."""
INST = (
    "<s>{% for message in messages %}{% if message.role == 'user' %}[INST]" + said("[IMG]") + "[/INST]"
    "{% else %}" + said("") + "</s>{% endif %}{% endfor %}"
)
VISION = "<|vision_start|><|image_pad|><|vision_end|>"
CELLS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))

KINDS: dict[str, Kind] = {
    "gemma3": Kind(
        {
            "model_type": "gemma3", "boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>",
            "image_token_index": "<image_soft_token>", "mm_tokens_per_image": 16,
        },
        {
            "image_processor_type": "Gemma3ImageProcessor", **USUAL, **HALF, "do_convert_rgb": None,
            "do_pan_and_scan": None, "resample": 2, "size": {"height": 56, "width": 56},
        },
        {"processor_class": "Gemma3Processor", "image_seq_length": 16},
        ("<pad>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        turns("<start_of_turn>", "<start_of_image>", "<end_of_turn>", "{{ part.text | trim }}"),
        "<end_of_turn>",
        tuple("\n" * count for count in range(1, 8)),
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    ),
    "pixtral": Kind(
        {"model_type": "llava", "image_token_index": "[IMG]"},
        {
            "image_processor_type": "PixtralImageProcessor", **USUAL, "size": {"longest_edge": 64},
            "patch_size": {"height": 16, "width": 16}, "resample": 3,
        },
        {"processor_class": "PixtralProcessor", "patch_size": 16},
        ("<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        INST,
        "</s>",
    ),
    "mistral3": Kind(
        {"model_type": "mistral3", "image_token_index": "[IMG]", "spatial_merge_size": 2},
        {
            "image_processor_type": "PixtralImageProcessor", **USUAL, "size": {"longest_edge": 140},
            "patch_size": 14, "resample": 3,
        },
        {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
        ("<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        INST,
        "</s>",
    ),
    "llava": Kind(
        {"model_type": "llava", "image_token_index": "<image>"},
        {
            "image_processor_type": "CLIPImageProcessor", **USUAL, "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56}, "do_center_crop": True, "resample": 3,
        },
        {
            "processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        ("<s>", "</s>", "<image>"),
        FIRST_IMAGES,
        "</s>",
    ),
    "llava with siglip": Kind(
        {"model_type": "llava", "image_token_index": "<image>"},
        {
            "image_processor_type": "SiglipImageProcessor", **USUAL, **HALF, "size": {"height": 48, "width": 48},
            "resample": 3,
        },
        {"processor_class": "LlavaProcessor", "patch_size": 16, "vision_feature_select_strategy": "full"},
        ("<s>", "</s>", "<image>"),
        FIRST_IMAGES,
        "</s>",
    ),
    "qwen3_vl": Kind(
        {
            "model_type": "qwen3_vl", "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
            "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
        },
        {
            "image_processor_type": "Qwen2VLImageProcessorFast", **USUAL, **HALF, "patch_size": 16,
            "temporal_patch_size": 2, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 16384},
        },
        {"processor_class": "Qwen3VLProcessor"},
        (*lab.CHATML, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        turns("<|im_start|>", VISION, "<|im_end|>"),
        "<|im_end|>",
    ),
    "glm4v": Kind(
        {"model_type": "glm4v", "image_token_id": "<|image|>", "video_token_id": "<|video|>"},
        {
            "image_processor_type": "Glm4vImageProcessor", **USUAL, "patch_size": 14, "temporal_patch_size": 2,
            "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 25088},
        },
        {"processor_class": "Glm4vProcessor"},
        (
            "<|endoftext|>", "<|user|>", "<|assistant|>", "<|image|>", "<|video|>", "<|begin_of_image|>",
            "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
        ),
        "{% for message in messages %}<|{{ message.role }}|>\n" + said("<|begin_of_image|><|image|><|end_of_image|>")
        + "{% if message.role == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|endoftext|>",
    ),
    "glm46v": Kind(
        {"model_type": "glm46v", "image_token_id": "<|image|>", "video_token_id": "<|video|>"},
        {
            "image_processor_type": "Glm46VImageProcessor", **USUAL, "patch_size": 14, "temporal_patch_size": 2,
            "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 25088},
        },
        {"processor_class": "Glm46VProcessor"},
        (
            "<|endoftext|>", "<|user|>", "<|assistant|>", "<|image|>", "<|video|>", "<|begin_of_image|>",
            "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
        ),
        "{% for message in messages %}<|{{ message.role }}|>\n" + said("<|begin_of_image|><|image|><|end_of_image|>")
        + "{% if message.role == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|endoftext|>",
    ),
    "idefics3": Kind(
        {"model_type": "idefics3", "image_token_id": "<image>"},
        {
            "image_processor_type": "Idefics3ImageProcessor", **USUAL, **HALF, "do_pad": True, "resample": 1,
            "do_image_splitting": True, "size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 28},
        },
        {"processor_class": "Idefics3Processor", "image_seq_len": 4},
        ("<|im_start|>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *CELLS),
        turns("<|im_start|>", "<image>", "<end_of_utterance>"),
        "<end_of_utterance>",
    ),
    "smolvlm": Kind(
        {"model_type": "smolvlm", "image_token_id": "<image>"},
        {
            "image_processor_type": "SmolVLMImageProcessor", **USUAL, **HALF, "do_pad": True, "resample": 1,
            "do_image_splitting": True, "size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 28},
        },
        {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
        ("<|im_start|>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *CELLS),
        turns("<|im_start|>", "<image>", "<end_of_utterance>"),
        "<end_of_utterance>",
    ),
}  # fmt: skip


def write(folder: Path, name: str, *, image: Any = None, processor: Any = None, model: Any = None) -> Path:
    """The folder of a checkpoint of the kind; what else is given changes its files."""
    kind = KINDS[name]
    raw = lab.train("qwen", kind.tokens, kind.plain)
    ids = {token["content"]: token["id"] for token in json.loads(raw)["added_tokens"]}
    lab.write_model(
        folder, raw, kind.template, eos=kind.end, tokenizer_class="PreTrainedTokenizerFast", pad_token=kind.tokens[0],
        extra_special_tokens=dict(kind.names),
    )  # fmt: skip
    config = {key: ids.get(value, value) for key, value in kind.model.items()} | {
        "eos_token_id": ids[kind.end]
    }
    files = {
        "config.json": {**BODIES[name], **config, **(model or {})},
        "preprocessor_config.json": {**kind.image, **(image or {})},
        "processor_config.json": {**kind.processor, **(processor or {})},
    }
    for file, value in files.items():
        kept = {key: one for key, one in value.items() if one is not ...}
        (folder / file).write_text(json.dumps(kept), "utf-8")
    return folder


@functools.cache
def folder(name: str) -> Path:
    return write(folders.kept("seeing"), name)


@functools.cache
def codec(name: str, **more: Any) -> TemplateCodec:
    made = load_codec(folder(name), **more)
    assert isinstance(made, TemplateCodec)
    return made


def vision(name: str) -> Vision:
    found = codec(name).vision
    assert found is not None, name
    return found
