"""Tiny random checkpoints of many architectures, each with a template of its family. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
"""Large weights, for distributions that are far from even."""
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Architecture:
    """What to make."""

    config: str
    """The class in transformers."""
    template: str
    """In tests/gateway/tokens/zoo.py."""
    settings: dict[str, Any]
    """Of the config, over SMALL."""
    differs: bool = False
    """vLLM and transformers compute something else; why has not been found."""


ARCHITECTURES: dict[str, Architecture] = {
    "Qwen 2": Architecture("Qwen2Config", "trl/qwen2_5", {}),
    "Qwen 3": Architecture("Qwen3Config", "trl/qwen3", {}),
    "Qwen 3 MoE": Architecture("Qwen3MoeConfig", "trl/qwen3", {**EXPERTS, "num_experts": 4}),
    "Llama 3": Architecture("LlamaConfig", "trl/llama3_1", {}),
    "Mistral": Architecture("MistralConfig", "axolotl/mistral_v3_tekken", {"sliding_window": None}),
    "Gemma 2": Architecture(
        "Gemma2Config",
        "trl/gemma",
        {"sliding_window": 32, "query_pre_attn_scalar": 32, "tie_word_embeddings": True},
    ),
    "Gemma 3": Architecture(
        "Gemma3TextConfig", "trl/gemma3", {"sliding_window": 32, "query_pre_attn_scalar": 32}
    ),
    "GLM 4": Architecture("Glm4Config", "trl/glm4moe", {}),
    "Phi 3": Architecture("Phi3Config", "trl/phi3", {}),
    "gpt-oss": Architecture(
        "GptOssConfig", "trl/gptoss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32}
    ),
    "DeepSeek V3": Architecture(
        "DeepseekV3Config",
        "vllm/tool_chat_template_deepseekv31",
        {
            **EXPERTS,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 64,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "head_dim": 64,
            "qk_nope_head_dim": 64,
            "v_head_dim": 64,
            "num_key_value_heads": 2,
            "topk_method": "noaux_tc",
            "initializer_range": 0.05,  # larger ones saturate the router, and experts are chosen by rounding
        },
        differs=True,
    ),
    "Granite": Architecture(
        "GraniteConfig",
        "vllm/tool_chat_template_granite",
        {"logits_scaling": 2.0, "attention_multiplier": 0.2},
    ),
    "OLMo 2": Architecture("Olmo2Config", "axolotl/chatml", {}),
    "Command R": Architecture(
        "Cohere2Config", "llama.cpp/Cohere2MoE", {"sliding_window": 32, "logit_scale": 0.5}
    ),
    "EXAONE 4": Architecture(
        "Exaone4Config", "axolotl/exaone4", {"sliding_window": 32, "sliding_window_pattern": 2}
    ),
    "MiniMax M2": Architecture(
        "MiniMaxM2Config", "llama.cpp/MiniMax-M2", {"num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "LFM 2": Architecture(
        "Lfm2Config", "llama.cpp/LFM2.5-8B-A1B", {"layer_types": ["conv", "full_attention"]}
    ),
}
