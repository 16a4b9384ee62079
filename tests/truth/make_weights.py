"""Random weights, made by the engine environment's Python. Stdin: {"folder", "config": a class, "settings"}."""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """See the module."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    asked = json.load(sys.stdin)
    torch.manual_seed(0)
    config = getattr(transformers, asked["config"])(**asked["settings"])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(asked["folder"])


if __name__ == "__main__":
    main()
