"""A small model that sees, as a folder: a trained tokenizer, a template like Qwen2.5-VL's with tools, its processor."""

from __future__ import annotations

import functools
import io
import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.vision import Vision
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.load import load_codec
from tests.gateway.tokens import lab
from tests.support import folders

SPECIAL = (
    *lab.CHATML,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
SIDE = 28
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "min_pixels": SIDE * SIDE,
    "max_pixels": SIDE * SIDE * 16,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "resample": 3,
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""Pictures of one to sixteen placeholders."""
RULE = GridRule(14, 2, SIDE * SIDE, SIDE * SIDE * 16, 3)
TEMPLATE = """{% macro said(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif part.type == 'video' %}\
<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}{% endmacro %}\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call>{"name": "", "arguments": {}}</tool_call><|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ said(message.content) }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.role == 'system' and message.content is not string %}{% for part in message.content %}\
{{ part.text }}{% endfor %}{% else %}{{ said(message.content) }}{% endif %}\
{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A system message shows no images, as in Qwen3-VL's."""


def write(folder: Path, template: str = TEMPLATE, **processor: Any) -> Path:
    """The folder of a checkpoint, without weights."""
    raw = lab.train("qwen", SPECIAL, lab.QWEN_PLAIN)
    lab.write_model(folder, raw, template)
    ids = {token["content"]: token["id"] for token in json.loads(raw)["added_tokens"]}
    config = {
        "model_type": "qwen2_5_vl",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "eos_token_id": ids["<|im_end|>"],
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **processor}), "utf-8")
    return folder


@functools.cache
def folder() -> Path:
    return write(folders.kept("seeing"))


@functools.cache
def codec(**more: Any) -> TemplateCodec:
    made = load_codec(folder(), **more)
    assert isinstance(made, TemplateCodec)
    assert made.vision is not None
    return made


def vision() -> Vision:
    found = codec().vision
    assert found is not None
    return found


def placeholder() -> int:
    return vision().placeholder


def picture(color: Any = "red", size: tuple[int, int] = (56, 56)) -> Image.Image:
    """One colour, with a corner of another, so that turning it shows."""
    made = Image.new("RGB", size, color)
    made.paste("blue", (0, 0, size[0] // 2, size[1] // 4))
    return made


def encoded(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def url(color: Any = "red", size: tuple[int, int] = (56, 56), kind: str = "PNG") -> str:
    return data_url(encoded(picture(color, size), kind), f"image/{kind.lower()}")


def data_url(raw: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(raw).decode()}"


def shown(*parts: str) -> dict[str, Any]:
    """A user's message of chat completions; data URLs and addresses are images."""
    return {"role": "user", "content": [chat_part(part) for part in parts]}


def chat_part(part: str) -> dict[str, Any]:
    if part.startswith(("data:", "http://", "https://")):
        return {"type": "image_url", "image_url": {"url": part}}
    return {"type": "text", "text": part}


def ids(text: str) -> Sequence[int]:
    return codec().vocab.encode_whole(text)
