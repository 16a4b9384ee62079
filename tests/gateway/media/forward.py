"""Logprobs of a row's response by transformers' own forward pass, by the engine environment's Python.

argv[1]: the folder. Stdin: {"prompt", "response", "pngs", "videos"}; a video is the PNGs of its frames, one a
second. Stdout: a logprob per response id.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import sys
from base64 import b64decode


def main() -> None:
    """See the module."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    image = importlib.import_module("PIL.Image")
    asked, folder = json.load(sys.stdin), sys.argv[1]
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pictures = [image.open(io.BytesIO(b64decode(png))) for png in asked["pngs"]]
    seen = processor(images=pictures, return_tensors="pt") if pictures else {}
    if asked.get("videos"):
        numpy = importlib.import_module("numpy")
        videos = [
            numpy.stack([numpy.asarray(image.open(io.BytesIO(b64decode(png)))) for png in frames])
            for frames in asked["videos"]
        ]
        of_videos = transformers.AutoVideoProcessor.from_pretrained(folder)
        seen |= of_videos(videos=videos, do_sample_frames=False, return_tensors="pt")
        seen.pop("video_metadata", None)
        seen["second_per_grid_ts"] = torch.tensor([2.0] * len(videos))
    ids = torch.tensor([asked["prompt"] + asked["response"]])
    kinds = (ids == model.config.image_token_id).to(torch.int32)
    kinds += 2 * (ids == getattr(model.config, "video_token_id", -1)).to(torch.int32)
    if asked.get("positions"):  # of the trainer's rows: transformers' own are others behind a video
        seen["position_ids"] = torch.tensor(asked["positions"]).unsqueeze(1)
    taken = inspect.signature(model.forward).parameters
    more = {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in taken}
    with torch.no_grad():
        logits = model(input_ids=ids, **more, **{name: seen[name] for name in seen if name in taken}).logits[
            0
        ]
    logprobs = torch.log_softmax(logits.float(), -1)
    first = len(asked["prompt"])
    print(json.dumps([logprobs[at - 1, ids[0, at]].item() for at in range(first, ids.shape[1])]))


if __name__ == "__main__":
    main()
