"""Random weights of a tiny model that sees, by the engine environment's Python. argv[1]: a folder of `seeing.write`, or
of `kinds.write`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def settings(folder: Path) -> dict[str, Any]:
    """Of transformers' Qwen2_5_VLConfig."""
    told = json.loads((folder / "config.json").read_text("utf-8"))
    tokens = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128,
        "fullatt_block_indexes": [1], "window_size": 56,
    }  # fmt: skip
    text = {
        "vocab_size": max(token["id"] for token in tokens) + 1, "hidden_size": 128, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10_000.0},
        "bos_token_id": None, "eos_token_id": told["eos_token_id"], "pad_token_id": None,
    }  # fmt: skip
    return {**told, "text_config": text, "vision_config": vision}


def main() -> None:
    """See the module."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    if "text_config" in json.loads((folder / "config.json").read_text("utf-8")):
        config = transformers.AutoConfig.from_pretrained(folder)
    else:
        told = settings(folder)
        told.pop("model_type")
        config = transformers.Qwen2_5_VLConfig(**told)
    transformers.AutoModelForImageTextToText.from_config(config).to(torch.float32).save_pretrained(folder)


if __name__ == "__main__":
    main()
