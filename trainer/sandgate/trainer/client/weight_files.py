"""What the files of a checkpoint hold, by safetensors' headers, and what one lacks that another has. (pure)"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SAFETENSORS = ".safetensors"
LENGTH_BYTES = 8
"""Of the number, little endian, that a file begins with: the bytes of its header, which is JSON."""
HEADER_BYTES_MAX = 100_000_000
"""Of safetensors itself."""
FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
"""Of weights that are not quantized. Other tensors are masks and counters, or the halves of a byte."""
PARTS = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)(?P<end>\.safetensors|\.bin)")
WRAPPED = re.compile(
    r"(module|base_model\.model|(.+\.)?(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module))\."
)
"""What DataParallel, peft, torch.compile and FSDP put before a model's names. vLLM 0.32 ends at them, with all weights
lost; an engine that passes over names that it does not know loads nothing."""
SPARE = re.compile(
    r"((.+\.)?(inv_freq|masked_bias|attn\.bias|attention\.bias|(cos|sin)_cached|freqs_cis)"
    r"|(.+\.)?rotary_(pos_)?emb\..+|(.+\.)?mtp.*|.*\bnextn\b.*)"
)
"""Tensors that some checkpoints of a model have and others have not: what is computed from config.json, and layers that
predict further tokens, which transformers leaves out."""
QUANTIZED = re.compile(
    r".*(\b|_)(scale_inv|(weight|input|k|v)_scale(_2)?|qweight|qzeros|weight_packed|absmax)"
)
SENSES = re.compile(
    r"(.+\.)?(visual|vision|audio|image|img|video|speech|multi_?modal|mm_|modality|connector|projector|talker|token2wav"
    r"|code2wav|embed_(vision|audio)|mlp1\.\d+\.).*"
)
"""What models of pictures and sounds have beside a language model, which is trained and saved without them."""
LAYER = re.compile(r"(?:.+\.)?layers\.(\d+)\..+")
SHARED = re.compile(r"(.+\.)?self_attn\.[kv]_(proj|norm)\..+")
"""What the last layers of Gemma 3n and 4 take from earlier ones: original checkpoints still have it, transformers does
not save it, and vLLM drops it."""
PARTIAL = "Save all of the model, or say `partial=True` if what it lacks is to stay as engines have it"
HEADS = ("lm_head.weight", "embed_out.weight", "output_layer.weight", "proj_out.weight")


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of a tensor, as a header says it."""

    dtype: str
    count: int
    """How many."""


@dataclass(frozen=True, slots=True)
class Model:
    """The tensors of a checkpoint that engines read, and its config.json."""

    tensors: Mapping[str, Numbers]
    config: Mapping[str, Any] = field(default_factory=dict)


def tensors_of(header: bytes, behind: int) -> dict[str, Numbers]:
    """The tensors that a header names. `behind`: bytes of the file that follow it. Raises ValueError if it is none, or
    the file is not as long as it says."""
    read = json.loads(header)  # not msgspec: a trainer's environment may have none
    if not isinstance(read, dict):
        raise ValueError("its header is no object")
    read.pop("__metadata__", None)
    found, end = dict[str, Numbers](), 0
    try:
        for name, one in read.items():
            count = 1
            for size in one["shape"]:
                count *= int(size)
            found[name] = Numbers(str(one["dtype"]), count)
            end = max(end, int(one["data_offsets"][1]))
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"its header is not one of safetensors: {error!r}") from error
    if behind != end:
        raise ValueError(f"it has {behind:,} bytes of tensors, and its header says {end:,}")
    return found


def files_of(index: bytes) -> dict[str, str]:
    """The file of each tensor that an index names. Raises ValueError if it is none."""
    read = json.loads(index)
    files = read.get("weight_map") if isinstance(read, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError("weight_map is no map from tensors to files")
    return files


def parts_away(names: Iterable[str]) -> list[str]:
    """What is missing of `model-00001-of-00002.safetensors` and its like."""
    there: dict[tuple[str, str, str], dict[int, int]] = {}
    for name in names:
        if named := PARTS.fullmatch(name):
            key = (named["stem"], named["count"], named["end"])
            there.setdefault(key, {})[int(named["number"])] = len(named["number"])
    away = []
    for (stem, count, end), found in there.items():
        first, digits = (0 if 0 in found else 1), max(found.values())
        numbers = range(first, first + int(count)) if len(found) < int(count) else ()
        away += [f"{stem}-{one:0{digits}}-of-{count}{end}" for one in numbers if one not in found]
    return away


def wrong_in(
    files: Mapping[str, Mapping[str, Numbers]],
    indexed: Mapping[str, str] | None,
    config: Mapping[str, Any],
) -> str:
    """What engines could not load of these, which they read, or would load otherwise than it was meant; empty if
    nothing is known. `indexed`: the index, if there is one; some name what was left out on purpose."""
    seen: dict[str, str] = {}
    for file, tensors in files.items():
        for name in tensors:
            if WRAPPED.match(name):
                return (
                    f"{file} has {name}, which is a name within a wrapper (DataParallel, torch.compile, FSDP, peft) and"
                    " none of the model: save the model itself, with adapters merged in"
                )
            if indexed is None and name in seen:
                return f"{seen[name]} and {file} both have {name}, and no index says which is meant"
            seen[name] = file
    for name, file in (indexed or {}).items():
        needed = _is_needed(name, config) and not SENSES.fullmatch(name)
        if needed and file in files and name not in files[file]:
            return f"{file} lacks {name}, which the index says it has: they are of two saves"
    return ""


def unlike(new: Model, like: Model, *, partial: bool = False) -> str:
    """What tells that `new` is not the whole of the model that an engine was started with; empty if nothing does.
    Compared is what both name alike: names and sizes of quantized weights say little, and other names for all are the
    engine's to map."""
    if _quantized(new) or _quantized(like):
        return ""
    for name, tensor in new.tensors.items():
        other = like.tensors.get(name, tensor)
        if tensor.count != other.count and {tensor.dtype, other.dtype} <= FLOATS:
            return f"its {name} has {tensor.count:,} numbers instead of {other.count:,}"
    if (heads := sorted(_heads(new) - _heads(like))) and _untied(new.config) and _tied(like.config):
        return f"its {heads[0]} would not be loaded: the engine's model has none of its own (tie_word_embeddings)"
    mine, whole = _needed(new, like.config), _needed(like, like.config)
    if partial or not mine <= whole:
        return ""
    if not any(map(SENSES.fullmatch, mine)):
        whole = {name for name in whole if not SENSES.fullmatch(name)}
    if not (lacks := sorted(whole - mine)):
        return ""
    more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    return f"it lacks {lacks[0]}{more} of {len(whole)} tensors. {PARTIAL}"


def _quantized(model: Model) -> bool:
    told = ("quantization_config", "compression_config")
    if any(name in config for name in told for config in (model.config, _text(model.config))):
        return True
    return any(one.dtype.startswith("F8") or QUANTIZED.fullmatch(name) for name, one in model.tensors.items())


def _needed(model: Model, config: Mapping[str, Any]) -> set[str]:
    """The tensors that every checkpoint of this model has. `config`: of the engine's."""
    return {name for name, one in model.tensors.items() if one.dtype in FLOATS and _is_needed(name, config)}


def _is_needed(name: str, config: Mapping[str, Any]) -> bool:
    layers = config.get("num_hidden_layers", _text(config).get("num_hidden_layers"))
    layer = LAYER.fullmatch(name)
    beyond = layer is not None and isinstance(layers, int) and int(layer[1]) >= layers
    tied = name.endswith(HEADS) and not _untied(config)
    return not beyond and not tied and not SPARE.fullmatch(name) and not _is_shared(name, config)


def _is_shared(name: str, config: Mapping[str, Any]) -> bool:
    """Of a layer that takes its keys and values from an earlier one."""
    text = {**config, **_text(config)}
    layer, layers, shared = (
        LAYER.fullmatch(name),
        text.get("num_hidden_layers"),
        text.get("num_kv_shared_layers"),
    )
    if layer is None or not isinstance(layers, int) or not isinstance(shared, int):
        return False
    return int(layer[1]) >= layers - shared and SHARED.fullmatch(name) is not None


def _heads(model: Model) -> set[str]:
    return {name for name in model.tensors if name.endswith(HEADS)}


def _untied(config: Mapping[str, Any]) -> bool:
    """Whether the output head is known to have weights of its own."""
    return _said_tied(config) == {False}


def _tied(config: Mapping[str, Any]) -> bool:
    """Whether it is known to have none."""
    return _said_tied(config) == {True}


def _said_tied(config: Mapping[str, Any]) -> set[Any]:
    return {one.get("tie_word_embeddings") for one in (config, _text(config))} - {None}


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the language model in a model of pictures."""
    found = config.get("text_config")
    return found if isinstance(found, dict) else {}
