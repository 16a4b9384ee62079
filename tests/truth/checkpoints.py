"""Writes the checkpoint of an architecture: random weights, a small tokenizer, its family's real template."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.gateway.tokens.zoo import zoo
from tests.support.vllm import engine_python
from tests.truth.architectures import SMALL, Architecture

MAKE = Path(__file__).with_name("make_weights.py")


def checkpoint(made: Architecture, folder: Path) -> Path:
    """In `folder`, which is made."""
    folder.mkdir(parents=True)
    one = zoo()[made.template]
    vocab = one.vocab
    ends = {"eos_token_id": list(one.eos_ids), "bos_token_id": vocab.ids[one.bos], "pad_token_id": None}
    settings = {**SMALL, **made.settings, **ends, "vocab_size": vocab.size}
    asked = json.dumps({"folder": str(folder), "config": made.config, "settings": settings})
    subprocess.run([engine_python(), MAKE], input=asked, text=True, check=True, timeout=120)
    (folder / "tokenizer.json").write_bytes(one.tokenizer)
    (folder / "chat_template.jinja").write_text(one.source, "utf-8")
    named: dict[str, Any] = {"bos_token": one.bos, "eos_token": one.ends[0]}
    named |= {"backend": "tokenizers", "tokenizer_class": "TokenizersBackend", "model_max_length": 4096}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**named, "clean_up_tokenization_spaces": False})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends["eos_token_id"]}))
    return folder
