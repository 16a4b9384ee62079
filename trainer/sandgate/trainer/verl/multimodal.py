"""Images and videos of a row: what the model's processor made of them, and its M-RoPE positions.

A record carries them in `multimodal`, a safetensors file: no pickle. Those that a gateway writes have the pictures as
the engine was sent them, as PNGs of the size that the processor gives them, and what it says of their sizes. The
processor is run on them here, as verl's agent loops run it, and must come to the same. Those that `pack` writes have
all outputs of the processor, by its own names (pixel_values, image_grid_thw, pixel_values_videos, ...).
Rows hold one placeholder token per merged patch, as the engine saw them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.verl.videos import VideoInputs, engine_positions, video_inputs, videos_in

NOT_INPUTS = frozenset({"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"})
"""Of a processor's outputs: made of the prompt alone. A row has its own ids, and verl computes the rest from them."""
MEMBER, VERSION, PNG = "sandgate", 2, "png."
"""Of files that gateways write: metadata that tells the pictures, its version, and the names of their tensors
(docs/reference/records.md)."""
KINDS = {"image": ("image_grid_thw", 1), "video": ("video_grid_thw", 2)}
"""Placeholder -> the processor's grid (t, h, w in patches, a line each), and its number in mm_token_type_ids."""


def inputs_of(row: Trajectory, processor: Any = None) -> dict[str, Any]:
    """verl's multi_modal_inputs: tensors by name, with images_seqlens as verl adds it; {} for a row of text. Without
    `processor`, pictures are left out. Raises CorruptRecord for bytes that are no safetensors, InvalidBody for a
    processor that is not of the row's model."""
    if row.multimodal is None:
        return {}
    import torch  # type: ignore[import-not-found]
    from safetensors import SafetensorError  # type: ignore[import-not-found]
    from safetensors.torch import load  # type: ignore[import-not-found]

    try:
        found = {name: value for name, value in load(row.multimodal).items() if name not in NOT_INPUTS}
        videos = videos_in(row.multimodal)
        told = None if videos else pictures_in(row.multimodal)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(
            f"session {row.session_id}: multimodal is no safetensors file: {error}"
        ) from error
    for name, _ in KINDS.values():
        grid = found.get(name)
        if grid is not None and (grid.dim() != 2 or grid.shape[1] != 3):
            raise CorruptRecord(
                f"session {row.session_id}: multimodal.{name} is {tuple(grid.shape)}, not [n, 3]"
            )
    if videos is not None:
        found = video_inputs(row, found, videos, processor)
    if told is not None:
        kind, images = told
        found = (_processed if kind == "grid" else _seen)(row, found, images, processor)
    grid = found.get("image_grid_thw")
    if grid is not None:
        found["images_seqlens"] = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    return found


def pictures_in(multimodal: bytes) -> tuple[str, list[dict[str, Any]]] | None:
    """What a gateway says of a row's pictures: the kind of their processor; and of each digest, start and length of the
    ids that stand for it, in their order. None for a file of another writer. Raises ValueError, KeyError, TypeError,
    CorruptRecord."""
    size = int.from_bytes(multimodal[:8], "little")
    told = json.loads(multimodal[8 : 8 + size]).get("__metadata__", {}).get(MEMBER)
    if told is None:
        return None
    about = json.loads(told)
    if about["version"] > VERSION:
        raise CorruptRecord(f"multimodal is of version {about['version']}; version {VERSION} is understood")
    images: list[dict[str, Any]] = about["images"]
    return about.get("kind", "grid"), images


def _processed(
    row: Trajectory, found: Mapping[str, Any], images: Sequence[Mapping[str, Any]], processor: Any
) -> dict[str, Any]:
    """The processor's outputs for a row's pictures, of grids."""
    import torch

    grid = found.get("image_grid_thw")
    if grid is None or len(grid) != len(images):
        raise CorruptRecord(f"session {row.session_id}: multimodal lacks pictures that it names")
    pictures = _pictures(row, found, images)
    if processor is None:
        return {"image_grid_thw": grid}
    made = _run(row, lambda: processor.image_processor(images=pictures, return_tensors="pt"))
    if "image_grid_thw" not in made or not torch.equal(made["image_grid_thw"], grid):
        raise _other_processor(row)
    return made


def _seen(
    row: Trajectory, found: Mapping[str, Any], images: Sequence[Mapping[str, Any]], processor: Any
) -> dict[str, Any]:
    """The same of other kinds: by the whole processor, as some tell their image processor what it does not know, on a
    text of placeholders. It must put as many of them as the row has."""
    import torch

    sizes = found.get("image_sizes")
    pictures = _pictures(row, found, images)
    if processor is None:
        return {} if sizes is None else {"image_sizes": sizes}
    word = getattr(processor, "boi_token", None) or processor.image_token
    made = _run(
        row, lambda: processor(images=pictures, text=[word * len(pictures)], return_tensors="pt"), all_of=True
    )
    token = _token(processor, "image")
    ids = torch.tensor([*row.prompt_ids, *row.response_ids])
    have = sum(int((ids[one["start"] : one["start"] + one["length"]] == token).sum()) for one in images)
    if (
        token is None
        or have != int((made["input_ids"] == token).sum())
        or have != int((ids == token).sum())
        or (sizes is not None and not torch.equal(torch.as_tensor(made.get("image_sizes")), sizes))
    ):
        raise _other_processor(row)
    return {name: value for name, value in made.items() if name not in NOT_INPUTS}


def _pictures(row: Trajectory, found: Mapping[str, Any], images: Sequence[Mapping[str, Any]]) -> list[Any]:
    from PIL import Image

    names = [f"{PNG}{one['digest']}" for one in images]
    if any(name not in found for name in names):
        raise CorruptRecord(f"session {row.session_id}: multimodal lacks pictures that it names")
    try:
        return [Image.open(BytesIO(found[name].numpy().tobytes())) for name in names]
    except (OSError, ValueError) as error:
        raise _broken(row, error) from error


def _run(row: Trajectory, work: Callable[[], Mapping[str, Any]], *, all_of: bool = False) -> dict[str, Any]:
    try:
        made = work()
    except (OSError, ValueError) as error:
        raise _broken(row, error) from error
    return {name: value for name, value in made.items() if all_of or name not in NOT_INPUTS}


def _broken(row: Trajectory, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"session {row.session_id}: multimodal has a broken picture: {error}")


def _other_processor(row: Trajectory) -> InvalidBody:
    return InvalidBody(
        f"session {row.session_id}: the processor cuts its pictures in other patches than the gateway did; is it "
        "this model's, with its settings?",
        field="multimodal",
    )


def pack(outputs: Mapping[str, Any]) -> bytes:
    """A processor's outputs (torch tensors by name) as a record carries them."""
    from safetensors.torch import save

    kept = {name: value.contiguous() for name, value in outputs.items() if name not in NOT_INPUTS}
    made: bytes = save(kept)
    return made


def has_rope(processor: Any) -> bool:
    """Are positions of this model M-RoPE? verl's `hf_processor` binds the model's own `get_rope_index` if so."""
    return processor is not None and hasattr(processor, "get_rope_index")


def check_placeholders(processor: Any, ids: Any, inputs: Mapping[str, Any], row: Trajectory) -> None:
    """Raises InvalidBody unless each merged patch has its token: a row that was cut, or another model's. Those of
    pictures without grids were counted by `inputs_of`."""
    gridded = row.multimodal is None or isinstance(inputs, VideoInputs)
    told = None if gridded else pictures_in(row.multimodal or b"")
    counted = told is not None and told[0] != "grid"
    for kind, (name, _) in KINDS.items():
        token = _token(processor, kind)
        grid = inputs.get(name)
        if token is None or (kind == "image" and counted):
            continue
        merged = _merged(processor, kind)
        wanted = int((grid.prod(-1) // merged).sum()) if grid is not None else 0
        have = int((ids == token).sum())
        if have != wanted:
            raise InvalidBody(
                f"session {row.session_id}: {have} {kind} tokens, but {name} stands for {wanted}",
                field="multimodal",
            )


def misplaced(processor: Any) -> Callable[[Trajectory], bool] | None:
    """For `CreditRules`: whether a row's response has placeholders outside of what stands for its pictures. A policy
    may sample one, and neither the trainer's forward pass nor M-RoPE has a picture for it. None without a processor."""
    tokens = [] if processor is None else [_token(processor, kind) for kind in KINDS]
    wanted = np.array([token for token in tokens if token is not None], np.int64)
    return (lambda row: _misplaced(wanted, row)) if wanted.size else None


def _misplaced(tokens: Any, row: Trajectory) -> bool:
    found = np.isin(np.frombuffer(row.response_ids, np.int32), tokens)
    if not found.any():
        return False
    if row.multimodal is not None:
        try:
            videos, told = videos_in(row.multimodal), pictures_in(row.multimodal)
        except (ValueError, KeyError, TypeError, CorruptRecord):
            return False  # it says itself what is wrong with it
        if videos or told is None:
            return False  # it does not say where they stand: their number is checked
        for one in told[1]:
            start = one["start"] - len(row.prompt_ids)
            found[max(0, start) : max(0, start + one["length"])] = False
    return bool(found.any())


def rope_positions(processor: Any, ids: Any, attention: Any, inputs: Mapping[str, Any], *, pad: int) -> Any:
    """int64 [4, length]: positions in the text, then temporal, height and width, by the model's own `get_rope_index`.
    `ids`, `attention`: int64 [length]. Where attention is 0: `pad` in the text's, 0 in the others."""
    import torch

    valid = attention.bool()
    text = torch.full_like(ids, pad)
    text[valid] = torch.arange(int(valid.sum()))
    vision = torch.zeros((3, len(ids)), dtype=text.dtype)
    if isinstance(inputs, VideoInputs):
        tokens = {kind: _token(processor, kind) for kind in KINDS}
        vision[:, valid] = engine_positions(processor, ids[valid], inputs, tokens)
    else:
        vision = _by_model(processor, ids, attention, inputs).to(text.dtype)
    return torch.cat([text.unsqueeze(0), vision])


def _by_model(processor: Any, ids: Any, attention: Any, inputs: Mapping[str, Any]) -> Any:
    """int64 [3, length], by the model's own `get_rope_index`."""
    import torch

    given: dict[str, Any] = {name: inputs.get(name) for name, _ in KINDS.values()}
    if "mm_token_type_ids" in inspect.signature(processor.get_rope_index).parameters:
        kinds = torch.zeros_like(ids)
        for kind, (_, number) in KINDS.items():
            token = _token(processor, kind)
            if token is not None:
                kinds[ids == token] = number
        given["mm_token_type_ids"] = kinds.unsqueeze(0)
    more = getattr(processor, "get_rope_index_kwargs", None)
    if more is not None:
        given |= more(inputs)
    made, _ = processor.get_rope_index(
        input_ids=ids.unsqueeze(0), attention_mask=attention.unsqueeze(0), **given
    )
    return made[:, 0]


def _token(processor: Any, kind: str) -> int | None:
    from verl.utils.tokenizer import get_processor_token_id  # type: ignore[import-not-found]

    found: int | None = get_processor_token_id(processor, kind)
    return found


def _merged(processor: Any, kind: str) -> int:
    part = getattr(processor, f"{kind}_processor", None)
    return int(getattr(part, "merge_size", 1)) ** 2
