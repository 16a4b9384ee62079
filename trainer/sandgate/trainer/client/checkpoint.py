"""Whether a folder is a checkpoint, as far as a trainer can see it: an engine that fails to load one loses the weights
that it has."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sandgate.contract.errors import InvalidBody

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors")
"""Ends of names of files that engines load."""
INDEX = "model.safetensors.index.json"
NOT_ASKED = "no engine was asked to load it, and all have the weights that they had"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    """By tensor: the file that has it."""


def check_checkpoint(path: str) -> None:
    """Raises InvalidBody for a folder without weights, and for one that lacks files that its index names. A path that
    is not here, or cannot be read, is left to the engines: they may be on other hosts."""
    folder = Path(path)
    try:
        names = {one.name for one in folder.iterdir()}
        index = _Index({})
        if INDEX in names:
            index = msgspec.json.decode((folder / INDEX).read_bytes(), type=_Index)
    except OSError:
        return
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"path: {folder / INDEX}: {error}; {NOT_ASKED}", field="path") from error
    if not any(name.endswith(WEIGHTS) for name in names):
        ends = ", ".join("*" + end for end in WEIGHTS)
        raise InvalidBody(f"path: {path} has no weights in it ({ends}); {NOT_ASKED}", field="path")
    if lacks := sorted(set(index.weight_map.values()) - names):
        raise InvalidBody(
            f"path: {path} lacks {', '.join(lacks)}, which {INDEX} names; {NOT_ASKED}", field="path"
        )
