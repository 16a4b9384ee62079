"""The pictures of a training row: its `multimodal` bytes, a safetensors file, which needs no library to write. (pure)

Version 1 (member `sandgate` of its metadata, as JSON):

* `images`: for each picture, in the order of the ids, `digest` (hex), and `start` and `length` of its placeholders in
  prompt_ids + response_ids;
* tensor `image_grid_thw`, int64 [pictures, 3]: the processor's own output;
* tensor `png.DIGEST`, uint8: each picture once, as the engine was sent it: a PNG in RGB that already has the size
  that the processor gives it, so that the processor has nothing left to resize.

What else the processor makes (`pixel_values`) takes a dozen times the room and follows from the PNG: trainers run the
processor. A file without this member has all of the processor's outputs as tensors, and no PNGs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from sandgate.contract.errors import CorruptRecord
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.spans import Spans

VERSION = 1
MEMBER = "sandgate"
ALIGNED = 8
"""safetensors files begin their data at a multiple of it."""


def packed(spans: Spans, pictures: Mapping[bytes, Picture]) -> bytes | None:
    """The bytes for a row with these spans (offsets in prompt_ids + response_ids); None for a row of text. Raises
    CorruptRecord for a picture that is missing."""
    if not spans:
        return None
    for span in spans:
        if span.digest not in pictures:
            raise CorruptRecord(f"the picture {span.digest.hex()} of this row was never recorded")
    images = [{"digest": span.digest.hex(), "start": span.start, "length": span.length} for span in spans]
    grids = b"".join(struct.pack("<3q", *pictures[span.digest].grid) for span in spans)
    tensors = {"image_grid_thw": ("I64", [len(spans), 3], grids)}
    for digest in dict.fromkeys(span.digest for span in spans):
        png = pictures[digest].png
        tensors[f"png.{digest.hex()}"] = ("U8", [len(png)], png)
    about = json.dumps({"version": VERSION, "images": images}, separators=(",", ":"))
    return _file(tensors, {MEMBER: about})


def _file(tensors: Mapping[str, tuple[str, list[int], bytes]], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % ALIGNED)
    return b"".join((struct.pack("<Q", len(head)), head, *(raw for _, _, raw in tensors.values())))
