"""Checkpoint folders, made for tests without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I64": 8, "U8": 1}
Tensors = Mapping[str, tuple[str, list[int], bytes]]
"""By name: dtype, shape, content."""


def tensors(shapes: Mapping[str, list[int]], dtype: str = "F32") -> Tensors:
    """Of zeros."""
    return {name: (dtype, shape, bytes(SIZES[dtype] * math.prod(shape))) for name, shape in shapes.items()}


def read(path: Path) -> Tensors:
    """What is in a file."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, one in header.items():
        begin, end = one["data_offsets"]
        found[name] = (one["dtype"], one["shape"], content[start + begin : start + end])
    return found


def packed(content: Tensors) -> bytes:
    """A safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in content.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in content.values())


def index(files: Mapping[str, Tensors]) -> bytes:
    """Of these files."""
    named = {name: file for file, content in files.items() for name in content}
    return json.dumps({"metadata": {}, "weight_map": named}).encode()


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The folder, which is made."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
