"""The pictures of a training row: its `multimodal` bytes, a safetensors file, which needs no library to write. (pure)

Member `sandgate` of its metadata, as JSON:

* `version`: 1 of grids, 2 of other kinds of processors, which name themselves in `kind`: `square`, `rows`, `tiles`;
* `images`: for each picture, in the order of the ids, `digest` (hex), and `start` and `length` in prompt_ids +
  response_ids of the ids that stand for it: its placeholders, and what the processor puts between and around them.

Tensors:

* `image_grid_thw` of grids, int64 [pictures, 3], or `image_sizes` of rows, int64 [pictures, 2]: the processor's own;
* `png.DIGEST`, uint8: each picture once, as the engine was sent it: a PNG in RGB that already has the size that the
  processor gives it, so that the processor has nothing left to resize. (Of tiles, it still makes the small picture of
  the whole.)

Version 3, of rows with videos, has `videos`, too, each with `frames`, how many it has; tensors `video_grid_thw`, int64
[videos, 3], `png.DIGEST.N` for each frame, from 0, and `second_per_grid_ts`, float32 [videos], where positions count
seconds.

What else the processor makes (`pixel_values`) takes a dozen times the room and follows from the PNG: trainers run the
processor. A file without this member has all of the processor's outputs as tensors, and no PNGs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sandgate.contract.errors import CorruptRecord
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.spans import Spans

VERSION, VERSION_OF_KINDS, VERSION_OF_VIDEOS = 1, 2, 3
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
    if any(pictures[span.digest].frames for span in spans):
        return _with_videos(spans, pictures)
    images = [{"digest": span.digest.hex(), "start": span.start, "length": span.length} for span in spans]
    shown = [pictures[span.digest] for span in spans]
    kind = shown[0].kind
    if any(picture.kind != kind for picture in shown):
        raise CorruptRecord("the pictures of this row were made for several models")
    tensors = _sizes(kind, shown)
    for digest in dict.fromkeys(span.digest for span in spans):
        png = pictures[digest].png
        tensors[f"png.{digest.hex()}"] = ("U8", [len(png)], png)
    head = {"version": VERSION} if kind == "grid" else {"version": VERSION_OF_KINDS, "kind": kind}
    about = json.dumps({**head, "images": images}, separators=(",", ":"))
    return _file(tensors, {MEMBER: about})


def _sizes(kind: str, shown: Sequence[Picture]) -> dict[str, tuple[str, list[int], bytes]]:
    """What the processor says of the pictures' sizes, by its own name."""
    if kind == "grid":
        grids = b"".join(struct.pack("<3q", *picture.grid) for picture in shown)
        return {"image_grid_thw": ("I64", [len(shown), 3], grids)}
    if kind == "rows":
        sizes = b"".join(struct.pack("<2q", picture.height, picture.width) for picture in shown)
        return {"image_sizes": ("I64", [len(shown), 2], sizes)}
    return {}


def _with_videos(spans: Spans, pictures: Mapping[bytes, Picture]) -> bytes:
    told: dict[str, list[dict[str, Any]]] = {"images": [], "videos": []}
    grids = {"images": b"", "videos": b""}
    seconds, pngs = list[float](), dict[str, bytes]()
    for span in spans:
        shown, name = pictures[span.digest], span.digest.hex()
        kind = "videos" if shown.frames else "images"
        about = {"digest": name, "start": span.start, "length": span.length}
        grids[kind] += struct.pack("<3q", *shown.grid)
        if shown.frames:
            about["frames"] = len(shown.frames)
            seconds.append(shown.seconds)
            pngs |= {f"png.{name}.{number}": png for number, png in enumerate(shown.frames)}
        else:
            pngs[f"png.{name}"] = shown.png
        told[kind].append(about)
    tensors = {
        name: ("I64", [len(told[kind]), 3], grids[kind])
        for kind, name in (("images", "image_grid_thw"), ("videos", "video_grid_thw"))
        if told[kind]
    }
    if all(seconds):
        tensors["second_per_grid_ts"] = ("F32", [len(seconds)], struct.pack(f"<{len(seconds)}f", *seconds))
    tensors |= {name: ("U8", [len(png)], png) for name, png in pngs.items()}
    about_all = json.dumps({"version": VERSION_OF_VIDEOS, **told}, separators=(",", ":"))
    return _file(tensors, {MEMBER: about_all})


def _file(tensors: Mapping[str, tuple[str, list[int], bytes]], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % ALIGNED)
    return b"".join((struct.pack("<Q", len(head)), head, *(raw for _, _, raw in tensors.values())))
