"""What vLLM's own processors make of prompts with pictures, by the engine environment's Python; no model is run.

Stdin: [{"folder", "asks": [{"ids", "pngs"}]}]. Stdout: for each folder, for each ask {"ids", "images"}.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from base64 import b64decode
from typing import Any


def main() -> None:
    """See the module."""
    with contextlib.redirect_stdout(sys.stderr):  # what vLLM says
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        registry._run_in_subprocess = lambda work: work()  # else one that imports vLLM for each model
        smol: Any = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
        smol.num2words = smol.num2words or str  # of videos; it fails without
        told = [_made(one["folder"], one["asks"]) for one in json.load(sys.stdin)]
    print(json.dumps(told))


def _made(folder: str, asks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    config, multimodal = importlib.import_module("vllm.config"), importlib.import_module("vllm.multimodal")
    inputs = importlib.import_module("vllm.multimodal.processing.inputs")
    image, timing = (
        importlib.import_module("PIL.Image"),
        importlib.import_module("vllm.multimodal.processing.context"),
    )
    model = config.ModelConfig(folder, tokenizer=folder, dtype="float32", max_model_len=4096)
    processor = multimodal.MULTIMODAL_REGISTRY.create_processor(model)
    out = []
    for ask in asks:
        pictures = [image.open(io.BytesIO(b64decode(png))) for png in ask["pngs"]]
        items = processor.info.parse_mm_data({"image": pictures} if pictures else {})
        made = processor.apply(inputs.ProcessorInputs(ask["ids"], items), timing.TimingContext(enabled=False))
        places = [[at.offset, at.length] for at in made["mm_placeholders"].get("image", ())]
        out.append({"ids": list(made["prompt_token_ids"]), "images": places})
    return out


if __name__ == "__main__":
    main()
