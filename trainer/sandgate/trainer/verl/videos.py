"""Videos of a gateway's row: their frames, given to the model's own processor as the engine's was given them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Trajectory

MEMBER, VERSION = "sandgate", 3
FRAMES_PER_SECOND = 1.0
"""As vLLM counts frames that it is sent."""
GRIDS = {"images": "image_grid_thw", "videos": "video_grid_thw"}
SECONDS = "second_per_grid_ts"


def videos_in(multimodal: bytes) -> dict[str, Any] | None:
    """What a gateway says of a row with videos; None for any other. Raises ValueError, KeyError, TypeError."""
    size = int.from_bytes(multimodal[:8], "little")
    told = json.loads(multimodal[8 : 8 + size]).get("__metadata__", {}).get(MEMBER)
    about: dict[str, Any] = json.loads(told) if told is not None else {}
    return about if about.get("version") == VERSION else None


def video_inputs(
    row: Trajectory, found: Mapping[str, Any], about: Mapping[str, Any], processor: Any
) -> dict[str, Any]:
    """The processor's outputs for a row's images and videos; without a processor, what it says of their sizes. Raises
    CorruptRecord, and InvalidBody for a processor that is not of the row's model."""
    import torch  # type: ignore[import-not-found]

    sizes = {name: found[name] for name in (*GRIDS.values(), SECONDS) if name in found}
    for kind, name in GRIDS.items():
        if len(sizes.get(name, ())) != len(about[kind]):
            raise CorruptRecord(f"session {row.session_id}: multimodal lacks {kind} that it names")
    if processor is None:
        return sizes
    made: dict[str, Any] = {}
    if about["images"]:
        images = [_png(row, found, f"png.{one['digest']}") for one in about["images"]]
        made |= processor.image_processor(images=images, return_tensors="pt")
    made |= _processed(row, found, about["videos"], processor.video_processor)
    if any(not torch.equal(made[name], sizes[name]) for name in GRIDS.values() if name in sizes):
        raise InvalidBody(
            f"session {row.session_id}: the processor cuts its images or videos in other patches than the gateway did; "
            "is it this model's, with its settings?",
            field="multimodal",
        )
    return VideoInputs(made | sizes)


class VideoInputs(dict[str, Any]):
    """The inputs of a gateway's row with videos: its positions are the engine's."""


def engine_positions(processor: Any, ids: Any, inputs: VideoInputs, tokens: Mapping[str, int | None]) -> Any:
    """int64 [3, length]: temporal, height and width, as Qwen2.5-VL was trained and vLLM counts them: what follows goes
    on behind the largest position of a video. transformers 5 goes on behind its sides alone, and so gives text other
    positions than it was sampled at. `tokens`: the ids of `image` and `video`."""
    import torch

    merge = processor.image_processor.merge_size
    per_second = getattr(processor.config.vision_config, "tokens_per_second", 1)
    seconds = inputs.get(SECONDS)
    grids = {
        tokens[kind]: [(line.tolist(), 1.0 if kind == "image" or seconds is None else float(seconds[at]))
                       for at, line in enumerate(inputs.get(f"{kind}_grid_thw", ()))]
        for kind in ("image", "video")
    }  # fmt: skip
    marked = (
        torch.isin(ids, torch.tensor([token for token in grids if token is not None])).nonzero().flatten()
    )
    out, done, position, at = [], 0, 0, 0
    while at < len(marked):
        start = int(marked[at])
        token = int(ids[start])
        (moments, high, wide), interval = grids[token].pop(0)
        factor = interval * per_second if token == tokens["video"] else 1
        out.append(torch.arange(start - done).expand(3, -1) + position)
        position += start - done
        times = (torch.arange(moments) * factor).long()
        sides = torch.arange(high // merge), torch.arange(wide // merge)
        seen = torch.stack(torch.meshgrid(times, *sides, indexing="ij")).reshape(3, -1)
        out.append(seen + position)
        position += int(seen.max()) + 1
        at += seen.shape[1]
        done = start + seen.shape[1]
    out.append(torch.arange(len(ids) - done).expand(3, -1) + position)
    return torch.cat(out, dim=1)


def _processed(
    row: Trajectory, found: Mapping[str, Any], videos: Sequence[Mapping[str, Any]], processor: Any
) -> dict[str, Any]:
    import numpy as np

    frames, metadata = [], []
    for video in videos:
        many = video["frames"]
        pngs = [_png(row, found, f"png.{video['digest']}.{number}") for number in range(many)]
        frames.append(np.stack([np.asarray(png) for png in pngs]))
        metadata.append(
            {
                "total_num_frames": many,
                "fps": FRAMES_PER_SECOND,
                "frames_indices": list(range(many)),
                "duration": many / FRAMES_PER_SECOND,
            }
        )
    made = processor(videos=frames, video_metadata=metadata, do_sample_frames=False, return_tensors="pt")
    return {name: made[name] for name in ("pixel_values_videos", "video_grid_thw")}


def _png(row: Trajectory, found: Mapping[str, Any], name: str) -> Any:
    from PIL import Image

    if name not in found:
        raise CorruptRecord(f"session {row.session_id}: multimodal lacks {name}")
    try:
        return Image.open(BytesIO(found[name].numpy().tobytes())).convert("RGB")
    except (OSError, ValueError) as error:
        raise CorruptRecord(f"session {row.session_id}: multimodal has a broken picture: {error}") from error
