"""The rest of config.json of the checkpoints of `kinds`, as an engine wants it: the sizes of tiny models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4096,
}  # fmt: skip
EYES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [8, 4, 4]}}
SIGLIP = {"model_type": "siglip_vision_model", **EYES}
CLIP = {"model_type": "clip_vision_model", **EYES, "image_size": 56, "patch_size": 14}
PIXTRAL = {"model_type": "pixtral", **EYES, **ROPE}
DEEP = {
    "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64, "num_heads": 2,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
GLM = {"model_type": "glm4v_vision", **DEEP, "patch_size": 14, "image_size": 56}
QWEN3 = {**DEEP, "patch_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}


def body(architecture: str, text: str, eyes: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """Of one model."""
    return {
        "architectures": [f"{architecture}ForConditionalGeneration"],
        "text_config": {"model_type": text, **TEXT, **rope},
        "vision_config": dict(eyes),
    }


BODIES: dict[str, dict[str, Any]] = {
    "gemma3": body("Gemma3", "gemma3_text", {**SIGLIP, "image_size": 56, "patch_size": 14}, {}),
    "pixtral": body("Llava", "mistral", {**PIXTRAL, "image_size": 64, "patch_size": 16}, ROPE)
    | {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    "mistral3": body("Mistral3", "mistral", {**PIXTRAL, "image_size": 140, "patch_size": 14}, ROPE)
    | {"vision_feature_layer": -1},
    "llava": body("Llava", "llama", CLIP, ROPE) | {"vision_feature_select_strategy": "default"},
    "llava with siglip": body("Llava", "llama", {**SIGLIP, "image_size": 48, "patch_size": 16}, ROPE)
    | {"vision_feature_select_strategy": "full"},
    "qwen3_vl": body("Qwen3VL", "qwen3_vl_text", QWEN3, MROPE),
    "glm4v": body("Glm4v", "glm4v_text", GLM, MROPE),
    "glm46v": body("Glm46V", "glm4v_text", GLM, MROPE),
    "idefics3": body("Idefics3", "llama", {**EYES, "image_size": 28, "patch_size": 7}, ROPE),
    "smolvlm": body("SmolVLM", "llama", {**EYES, "image_size": 28, "patch_size": 7}, ROPE),
}
