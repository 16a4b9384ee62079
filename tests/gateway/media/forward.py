"""Logprobs of a row's response by transformers' own forward pass, by the engine environment's Python.

argv[1]: the folder. Stdin: {"prompt", "response", "pngs"}. Stdout: a logprob per response id.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from base64 import b64decode


def main() -> None:
    """See the module."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    image = importlib.import_module("PIL.Image")
    asked, folder = json.load(sys.stdin), sys.argv[1]
    model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pictures = [image.open(io.BytesIO(b64decode(png))) for png in asked["pngs"]]
    seen = processor(images=pictures, return_tensors="pt")
    ids = torch.tensor([asked["prompt"] + asked["response"]])
    kinds = (ids == model.config.image_token_id).to(torch.int32)
    with torch.no_grad():
        logits = model(input_ids=ids, mm_token_type_ids=kinds, **seen).logits[0]
    logprobs = torch.log_softmax(logits.float(), -1)
    first = len(asked["prompt"])
    print(json.dumps([logprobs[at - 1, ids[0, at]].item() for at in range(first, ids.shape[1])]))


if __name__ == "__main__":
    main()
