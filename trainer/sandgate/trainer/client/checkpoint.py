"""Whether a folder is a checkpoint, as far as a trainer can see it: an engine that fails to load one loses the weights
that it has."""

from __future__ import annotations

import json
from pathlib import Path

from sandgate.contract.errors import InvalidBody

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors")
"""Ends of names of files that engines load."""
INDEX = "model.safetensors.index.json"
NOT_ASKED = "no engine was asked to load it, and all have the weights that they had"


def check_checkpoint(path: str) -> None:
    """Raises InvalidBody for a folder without weights, and for one that lacks files that its index names. A path that
    is not here, or cannot be read, is left to the engines: they may be on other hosts."""
    folder = Path(path)
    try:
        names = {one.name for one in folder.iterdir()}
        wanted = _indexed((folder / INDEX).read_bytes()) if INDEX in names else set()
    except OSError:
        return
    except ValueError as error:
        raise InvalidBody(f"path: {folder / INDEX}: {error}; {NOT_ASKED}", field="path") from error
    if not any(name.endswith(WEIGHTS) for name in names):
        ends = ", ".join("*" + end for end in WEIGHTS)
        raise InvalidBody(f"path: {path} has no weights in it ({ends}); {NOT_ASKED}", field="path")
    if lacks := sorted(wanted - names):
        raise InvalidBody(
            f"path: {path} lacks {', '.join(lacks)}, which {INDEX} names; {NOT_ASKED}", field="path"
        )


def _indexed(index: bytes) -> set[str]:
    """The files that an index names. Raises ValueError if it is none."""
    read = json.loads(index)  # not msgspec: a trainer's environment may have none
    files = read.get("weight_map") if isinstance(read, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError("weight_map is no map from tensors to files")
    return set(files.values())
