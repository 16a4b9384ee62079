"""Whether a folder is a whole checkpoint, as far as a trainer can see it. An engine that fails to load one loses the
weights that it has; and vLLM says nothing of tensors that are not there: whole layers keep their old values, and the
missing part of one that is loaded in parts (q_proj of q, k and v) is whatever was in memory."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.client.weight_files import (
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    SAFETENSORS,
    Model,
    Numbers,
    files_of,
    parts_away,
    tensors_of,
    unlike,
    wrong_in,
)

log = logging.getLogger(__name__)

WEIGHTS = (SAFETENSORS, ".bin", ".pt", ".pth", ".gguf", ".tensors")
"""Ends of names of files that engines load."""
NO_WEIGHTS = re.compile(
    r"adapter_model\..+|(training_args|optimizer|scheduler|scaler|rng_state).*"
    r"|.*_optim_states\.pt|.*_model_states\.pt|(model|optim|extra_state)_world_size_\d+_rank_\d+\.pt"
)
"""What trainers save beside a model, and the parts of it that each rank of FSDP or DeepSpeed has."""
ADAPTER = "adapter_config.json"
INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
MISTRAL = "consolidated"
"""Begins the names of files in Mistral's own format, which some folders have beside the other; engines read one."""
NOT_ASKED = "no engine was asked to load it, and all have the weights that they had"
OTHER = "If that folder is another model on this host than on the engine's, say `check=False`"
WRITTEN = "Is it still being written? Save under another name, and rename the folder when all of it is there"


def check_checkpoint(path: str, like: Iterable[str] = (), *, partial: bool = False) -> None:
    """Raises InvalidBody for a folder that is no whole checkpoint: without weights, or with files that are missing, cut
    short or of two saves, or without tensors that are in one of the models `like` (unless it is `partial`), or with
    other sizes of them. `like`: folders, and names of Hugging Face of which there is one snapshot here. A path that is
    not here, or may not be read, is left to the engines: they may be on other hosts. So is what cannot be compared."""
    folder = Path(path)
    try:
        if not folder.is_dir():
            _say(path)
            return
        wrong, model = _look(folder)
        others = [(one, _known(one)) for one in like if model is not None]
    except FileNotFoundError as error:
        wrong, model, others = (
            f"{error.filename} is not there: a link to nothing, or removed meanwhile",
            None,
            [],
        )
    except OSError as error:
        log.warning("%s cannot be read here (%s): whether it is whole is left to the engines", path, error)
        return
    if wrong:
        raise InvalidBody(f"path: {path}: {wrong}; {NOT_ASKED}", field="path")
    for one, other in others:
        if model is not None and other is not None and (wrong := unlike(model, other, partial=partial)):
            said = f"path: {path}: unlike {one}, which an engine has its weights from, {wrong}; {NOT_ASKED}. {OTHER}"
            raise InvalidBody(said, field="path")


@functools.cache
def _say_once() -> None:
    log.warning(
        "a weight update loads a folder that is not on this host: whether it is a whole checkpoint is left to the"
        " engines, which load a part of one without a word"
    )


def _say(path: str) -> None:
    log.info("%s is not on this host, and is not looked at", path)
    _say_once()


def _look(folder: Path) -> tuple[str, Model | None]:
    """What is wrong with it, and its tensors if it is of safetensors and nothing is. Raises OSError."""
    names = {
        one.name for one in folder.iterdir() if not one.name.startswith(".")
    }  # engines read no hidden files
    weights = {name for name in names if name.endswith(WEIGHTS) and not NO_WEIGHTS.fullmatch(name)}
    index = INDEX if INDEX in names else BIN_INDEX if not any(map(_safe, weights)) else ""
    try:
        indexed = files_of((folder / index).read_bytes()) if index in names else None
    except ValueError as error:
        return f"{index}: {error}", None
    if not weights:
        return _without_weights(names), None
    wanted = set(indexed.values()) if indexed is not None else set[str]()
    if lacks := sorted(wanted - names):
        return f"it lacks {', '.join(lacks)}, which {index} names. {WRITTEN}", None
    read = wanted or {name for name in names if _safe(name)} or weights
    if indexed is None and (lacks := parts_away(read)):
        return f"it lacks {', '.join(lacks)}, and has other parts. {WRITTEN}", None
    files: dict[str, dict[str, Numbers]] = {}
    for name in sorted(filter(_safe, read)):
        try:
            files[name] = _tensors(folder / name)
        except ValueError as error:
            return f"{name} is cut short, or no safetensors file: {error}. {WRITTEN}", None
    if empty := sorted(name for name in read if not (folder / name).stat().st_size):
        return f"{', '.join(empty)} is empty. {WRITTEN}", None
    config = _config(folder)
    wrong = wrong_in(files, indexed, config)
    if indexed and index == INDEX and not wrong:
        wrong = _old_index(folder, names - wanted, indexed)
    if wrong or not files or any(name.startswith(MISTRAL) for name in weights):
        return wrong, None
    return "", Model({name: one for each in files.values() for name, one in each.items()}, config)


def _without_weights(names: set[str]) -> str:
    if ADAPTER in names:
        return "it is an adapter of peft, and no model: merge it in, or let engines load it as an adapter"
    ends = ", ".join("*" + end for end in WEIGHTS)
    return f"it has no weights of a model in it ({ends}). Parts that ranks have of one are gathered first"


def _old_index(folder: Path, others: set[str], indexed: dict[str, str]) -> str:
    """Engines read what the index names. A model that was saved since, into a file of another name, is passed over."""
    written = (folder / INDEX).stat().st_mtime_ns
    for name in sorted(filter(_safe, others)):
        if (folder / name).stat().st_mtime_ns <= written:
            continue
        try:
            same = _tensors(folder / name).keys() & indexed.keys()
        except ValueError:
            continue
        if same:
            return f"{INDEX} is older than {name}, and names other files for the same tensors: remove what is old"
    return ""


def _known(name: str) -> Model | None:
    """The model that an engine was started with; None if it is not here, or not whole."""
    folders = [Path(name)] if os.path.isabs(name) else _snapshots(name, os.environ)
    if len(folders) != 1:
        return None
    try:
        stats = [(one.name, one.stat()) for one in folders[0].iterdir()]
        return _looked_at(
            folders[0], tuple(sorted((name, one.st_size, one.st_mtime_ns) for name, one in stats))
        )
    except OSError:
        return None


@functools.lru_cache(maxsize=4)
def _looked_at(folder: Path, files: tuple[tuple[str, int, int], ...]) -> Model | None:
    """For as long as its files are the same: of a thousand, on a file system of a network, headers take a minute."""
    wrong, model = _look(folder)
    return None if wrong else model


def _snapshots(name: str, env: Mapping[str, str]) -> list[Path]:
    """That a cache of huggingface_hub has of a name."""
    if name.count("/") != 1:
        return []
    home = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface")
    hub = Path(env.get("HF_HUB_CACHE") or Path(env.get("HF_HOME") or home, "hub"))
    return list((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob("*"))


def _safe(name: str) -> bool:
    return name.endswith(SAFETENSORS)


def _tensors(path: Path) -> dict[str, Numbers]:
    """Raises ValueError for a file that is not whole, and OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size  # of the open file: NFS may know an older one by its name
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        behind = size - LENGTH_BYTES - length
        if behind < 0 or length > HEADER_BYTES_MAX:
            raise ValueError(f"it ends in its header, after {size:,} bytes")
        return tensors_of(file.read(length), behind)


def _config(folder: Path) -> dict[str, Any]:
    try:
        read = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}
