"""What is no whole checkpoint, and what is one, by the files of its folder."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.client import checkpoint
from sandgate.trainer.client.checkpoint import check_checkpoint
from tests.trainer.made_checkpoint import Tensors, index, packed, tensors, write

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
LAYERS = {f"model.layers.{at}.{name}.weight": [8, 4] for at in range(2) for name in ("q_proj", "k_proj")}
SHAPES = {"model.embed_tokens.weight": [16, 4], **LAYERS, "model.norm.weight": [4], "lm_head.weight": [16, 4]}
WHOLE = tensors(SHAPES)
FIRST = {name: one for name, one in WHOLE.items() if ".1." not in name and "head" not in name}
SECOND = {name: one for name, one in WHOLE.items() if name not in FIRST}
HEAD = WHOLE["lm_head.weight"]
BOTH = index({ONE: FIRST, TWO: SECOND})
LORA = tensors({"base_model.model.model.layers.0.q_proj.lora_A.weight": [2, 4]})
Files = Mapping[str, bytes]

ALONE: Mapping[str, tuple[Files, str]] = {
    "one file is whole": ({"model.safetensors": packed(WHOLE)}, ""),
    "parts with an index are whole": ({ONE: packed(FIRST), TWO: packed(SECOND), INDEX: BOTH}, ""),
    "parts without an index are whole": ({ONE: packed(FIRST), TWO: packed(SECOND)}, ""),
    "what no index names is not looked at": (
        {ONE: packed(FIRST), TWO: packed(SECOND), INDEX: BOTH, "extra.safetensors": b"?"},
        "",
    ),
    "torch's own files are not looked into": ({"pytorch_model.bin": b"?", "training_args.bin": b""}, ""),
    "a file of torch's is empty": ({"pytorch_model.bin": b""}, "pytorch_model.bin is empty"),
    "hidden files are not read by engines": (
        {"model.safetensors": packed(WHOLE), ".model.safetensors": b"", "._model.safetensors": packed(FIRST)},
        "",
    ),
    "hidden files are no weights": ({".model.safetensors": packed(WHOLE)}, "has no weights of a model"),
    "a part that its index names is away": ({ONE: packed(FIRST), INDEX: BOTH}, f"lacks {TWO}, which {INDEX}"),
    "a part is away, and no index is there yet": ({ONE: packed(FIRST)}, f"lacks {TWO}, and has other parts"),
    "a part of torch's is away": (
        {"pytorch_model-00001-of-00003.bin": b"", "pytorch_model-00003-of-00003.bin": b""},
        "lacks pytorch_model-00002-of-00003.bin",
    ),
    "a part that torch's index names is away": (
        {"pytorch_model.bin": b"", "pytorch_model.bin.index.json": b'{"weight_map": {"a": "b.bin"}}'},
        "lacks b.bin, which pytorch_model.bin.index.json",
    ),
    "a part ends in its tensors": (
        {ONE: packed(FIRST), TWO: packed(SECOND)[:-4], INDEX: BOTH},
        f"{TWO} is cut short",
    ),
    "a file ends in its header": (
        {"model.safetensors": packed(WHOLE)[:40]},
        "model.safetensors is cut short.*in its header, after 40",
    ),
    "a file is empty": ({"model.safetensors": b""}, "model.safetensors is cut short"),
    "a file was made in its length, and not filled": ({"model.safetensors": bytes(4096)}, "cut short"),
    "a file is a page of an error": ({"model.safetensors": b"<html>" * 50}, "no safetensors file"),
    "a header has a list for a tensor": (
        {"model.safetensors": (8).to_bytes(8, "little") + b'{"a":[]}'},
        "not one of safetensors",
    ),
    "an index is of another save than a part": (
        {ONE: packed(FIRST), TWO: packed(tensors({"lm_head.weight": [16, 4]})), INDEX: BOTH},
        f"{TWO} lacks model.layers.1.q_proj.weight, which the index says",
    ),
    "an index may name what is left out on purpose": (
        {
            ONE: packed(FIRST),
            TWO: packed(SECOND),
            INDEX: index({ONE: FIRST, TWO: {**SECOND, **tensors({"mtp.a": [1], "model.visual.b": [1]})}}),
        },
        "",
    ),
    "an index may name a head that is tied": (
        {ONE: packed(FIRST), TWO: packed(SECOND), INDEX: index({ONE: {**FIRST, "lm_head.weight": HEAD}})},
        "",
    ),
    "an index names a head that is not tied": (
        {
            ONE: packed(FIRST),
            INDEX: index({ONE: {**FIRST, "lm_head.weight": HEAD}}),
            "config.json": b'{"tie_word_embeddings": false}',
        },
        f"{ONE} lacks lm_head.weight",
    ),
    "an index is cut": ({ONE: packed(FIRST), INDEX: BOTH[:40]}, f"{INDEX}: "),
    "an index is none": ({ONE: packed(FIRST), INDEX: b"[]"}, f"{INDEX}: weight_map is no map"),
    "there are no weights": ({"config.json": b"{}", "optimizer.txt": b""}, "has no weights of a model"),
    "two files have a tensor, and no index says which is meant": (
        {"model.safetensors": packed(WHOLE), "old.safetensors": packed(FIRST)},
        "both have model.embed_tokens.weight",
    ),
    "an adapter is no model": (
        {"adapter_model.safetensors": packed(LORA), "adapter_config.json": b"{}", "training_args.bin": b""},
        "adapter of peft, and no model",
    ),
    "an adapter lies beside the model": (
        {"model.safetensors": packed(WHOLE), "adapter_model.safetensors": packed(LORA)},
        "adapter_model.safetensors has base_model.model",
    ),
    "the parts of FSDP's ranks": (
        {"model_world_size_2_rank_0.pt": b"", "__0_0.distcp": b"", "optimizer.pt": b"", "rng_state_0.pth": b""},
        "no weights of a model",
    ),
    "the parts of DeepSpeed's ranks": (
        {"mp_rank_00_model_states.pt": b"", "zero_pp_rank_0_mp_rank_00_optim_states.pt": b""},
        "no weights of a model",
    ),
} | {
    f"the names of {wrapper} are not the model's": (
        {"model.safetensors": packed({wrapper + name: one for name, one in WHOLE.items()})},
        "a name within a wrapper",
    )
    for wrapper in ("module.", "_orig_mod.", "base_model.model.", "model._fsdp_wrapped_module.")
}  # fmt: skip


@pytest.mark.parametrize(("files", "words"), ALONE.values(), ids=ALONE)
def test_a_folder_alone(tmp_path: Path, files: Files, words: str) -> None:
    _check(write(tmp_path / "v2", files), words)


def _check(folder: Path, words: str, like: tuple[str, ...] = (), *, partial: bool = False) -> None:
    if not words:
        check_checkpoint(str(folder), like, partial=partial)
        return
    with pytest.raises(InvalidBody, match=words) as caught:
        check_checkpoint(str(folder), like, partial=partial)
    assert caught.value.field == "path"
    assert "no engine was asked to load it" in str(caught.value)


def _without(*names: str) -> Tensors:
    return {name: one for name, one in WHOLE.items() if not name.startswith(names)}


def _with(**shapes: list[int]) -> Tensors:
    return {**WHOLE, **tensors({name.replace("__", "."): shape for name, shape in shapes.items()})}


UNTIED: dict[str, object] = {"tie_word_embeddings": False, "num_hidden_layers": 2}
TIED: dict[str, object] = {"tie_word_embeddings": True, "num_hidden_layers": 2}
EIGHT_BITS: dict[str, object] = {**UNTIED, "quantization_config": {"quant_method": "fp8"}}
INNER = {name.replace("model.", "model.language_model."): one for name, one in WHOLE.items()}
SEES = {**INNER, **tensors({"model.visual.blocks.0.weight": [4, 4], "model.visual.merger.weight": [4]})}
LIKE: dict[str, tuple[Tensors, Tensors, dict[str, object], str]] = {
    "the same tensors are whole": (WHOLE, WHOLE, UNTIED, ""),
    "another dtype is whole": (tensors(SHAPES, "BF16"), WHOLE, UNTIED, ""),
    "a tensor is away": (
        _without("model.layers.1.q_proj"), WHOLE, UNTIED,
        "unlike .*start, which .*lacks model.layers.1.q_proj.weight of 7 tensors.*partial=True",
    ),
    "frozen layers are left out": (
        _without("model.layers.0", "model.embed"), WHOLE, UNTIED, "lacks model.embed_tokens.weight and 2 more"
    ),
    "an output head with weights of its own is away": (
        _without("lm_head"), WHOLE, UNTIED, "lacks lm_head.weight"
    ),
    "an output head of a model of pictures is away": (
        _without("lm_head"), WHOLE, {"text_config": {"tie_word_embeddings": False}}, "lacks lm_head.weight"
    ),
    "keys and values that a layer takes from an earlier one are left out": (
        WHOLE,
        {**WHOLE, **tensors({"model.layers.1.self_attn.k_proj.weight": [2]})},
        {**UNTIED, "num_hidden_layers": 2, "num_kv_shared_layers": 1},
        "",
    ),
    "keys of a layer that has its own are away": (
        WHOLE,
        {**WHOLE, **tensors({"model.layers.0.self_attn.k_proj.weight": [2]})},
        {**UNTIED, "num_hidden_layers": 2, "num_kv_shared_layers": 1},
        "lacks model.layers.0.self_attn.k_proj.weight",
    ),
    "a tied output head is left out": (_without("lm_head"), WHOLE, TIED, ""),
    "an output head is left out, and nobody says whether it is tied": (_without("lm_head"), WHOLE, {}, ""),
    "a tied output head is there": (WHOLE, _without("lm_head"), TIED, ""),
    "tied embeddings are away": (_without("model.embed"), WHOLE, TIED, "lacks model.embed_tokens.weight"),
    "a head that the engine ties and the trainer unties hides nothing": (
        _without("model.norm"), _without("lm_head"), TIED, "lacks model.norm.weight"
    ),
    "another width": (
        _with(model__norm__weight=[8]), WHOLE, UNTIED, "model.norm.weight has 8 numbers instead of 4"
    ),
    "a larger vocabulary": (
        _with(lm_head__weight=[20, 4]), WHOLE, UNTIED, "lm_head.weight has 80 numbers instead of 64"
    ),
    "a tensor that lies the other way round is the engine's to turn": (
        _with(lm_head__weight=[4, 16]), WHOLE, UNTIED, ""
    ),
    "buffers are left out": (
        WHOLE, _with(model__layers__0__rotary_emb__inv_freq=[2], model__layers__0__attn__masked_bias=[1]), UNTIED, ""
    ),
    "masks and counters are left out": (WHOLE, {**WHOLE, **tensors({"position_ids": [9]}, "I64")}, UNTIED, ""),
    "layers that predict further tokens are left out": (
        WHOLE, _with(mtp__fc__weight=[4], model__layers__2__eh__weight=[4], model__mtp_norm__weight=[4]), UNTIED, ""
    ),
    "other names for all are the engine's to map": (
        {f"model.language_model.{name}": one for name, one in FIRST.items()}, WHOLE, UNTIED, ""
    ),
    "other names for some are, too": (
        {**_without("model.layers.1"), **tensors({"model.layers.1.qk_proj.weight": [16, 4]})}, WHOLE, UNTIED, ""
    ),
    "a language model is saved without what sees": (INNER, SEES, UNTIED, ""),
    "a part of what sees is away": (
        {name: one for name, one in SEES.items() if "merger" not in name}, SEES, UNTIED, "lacks model.visual.merger"
    ),
    "a language model is saved without what Gemma 3n and InternVL see by": (
        WHOLE, _with(model__embed_vision__embedding__weight=[4], mlp1__0__weight=[4], mlp1__1__bias=[4]), UNTIED, ""
    ),
    "what gpt-oss calls mlp1 is no eye": (
        WHOLE, _with(block__0__mlp__mlp1_weight=[4]), UNTIED, "lacks block.0.mlp.mlp1_weight"
    ),
    "a quantized model is not compared": (_without("model.norm"), WHOLE, EIGHT_BITS, ""),
    "nor one that only its tensors say it of": (
        WHOLE, _with(model__layers__0__q_proj__weight_scale=[8], model__layers__0__k_proj__input_scale=[1]), UNTIED, ""
    ),
    "nor one of eight bits": (
        _without("model.norm"), {**WHOLE, **tensors({"lm_head.weight": [32, 4]}, "F8_E4M3")}, UNTIED, ""
    ),
}  # fmt: skip


@pytest.mark.parametrize(("new", "old", "config", "words"), LIKE.values(), ids=LIKE)
def test_a_folder_beside_the_engines(
    tmp_path: Path, new: Tensors, old: Tensors, config: dict[str, object], words: str
) -> None:
    said = json.dumps(config).encode()
    like = write(tmp_path / "start", {"model.safetensors": packed(old), "config.json": said})
    folder = write(tmp_path / "v2", {"model.safetensors": packed(new)})
    _check(folder, words, (str(like),))
    _check(folder, words if "numbers" in words else "", (str(like),), partial=True)
    _check(like, "", (str(like),))


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": b"{}"},
        {"model.safetensors": packed(WHOLE)[:-1]},
        {"model.safetensors": packed(WHOLE), "consolidated.safetensors": packed(tensors({"tok": [4]}))},
    ],
    ids=["has no weights", "is half downloaded", "has them in two formats"],
)
def test_a_folder_is_not_compared_to_one_that(tmp_path: Path, files: Files) -> None:
    like = write(tmp_path / "start", files)
    folder = write(tmp_path / "v2", {"model.safetensors": packed(_without("model.norm"))})
    _check(folder, "", (str(like), "", "Qwen/Qwen3-0.6B", str(tmp_path / "elsewhere")))


@pytest.mark.parametrize(("count", "words"), [(1, "lacks model.norm.weight"), (2, "")], ids=["one", "two"])
def test_an_engine_s_name_of_hugging_face_with_snapshots_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, words: str
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for at in range(count):
        place = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / str(at)
        write(place, {"model.safetensors": packed(WHOLE)})
    folder = write(tmp_path / "v2", {"model.safetensors": packed(_without("model.norm"))})
    _check(folder, words, ("Qwen/Qwen3-0.6B",))


def test_a_file_that_is_newer_than_an_index_of_the_same_tensors(tmp_path: Path) -> None:
    """Engines read what the index names: the save before."""
    files = {ONE: packed(FIRST), TWO: packed(SECOND), INDEX: BOTH, "model.safetensors": packed(WHOLE)}
    folder = write(tmp_path / "v2", files)
    os.utime(folder / INDEX, (1000, 1000))
    _check(folder, f"{INDEX} is older than model.safetensors")
    os.utime(folder / "model.safetensors", (1000, 1000))
    _check(folder, "")


def test_a_folder_that_is_not_here_is_left_to_the_engines_which_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for path in (str(tmp_path / "v1"), str(tmp_path / "v2"), "Qwen/Qwen3-0.6B"):
            check_checkpoint(path, (str(tmp_path),))
    (said,) = caplog.records
    assert "is left to the engines" in said.message


@pytest.mark.parametrize(
    ("engines", "trainers", "words"),
    [
        (TIED, UNTIED, "its lm_head.weight would not be loaded: .*tie_word_embeddings"),
        (TIED, TIED, ""),
        (TIED, {}, ""),
        ({}, UNTIED, ""),
        ({"text_config": TIED}, {"text_config": UNTIED}, "its lm_head.weight would not be loaded"),
    ],
    ids=[
        "is dropped in silence",
        "of a model that ties it",
        "may be",
        "may not be",
        "in a model of pictures",
    ],
)
def test_a_head_of_its_own_beside_an_engine_that_ties_it(
    tmp_path: Path, engines: dict[str, object], trainers: dict[str, object], words: str
) -> None:
    old = {"model.safetensors": packed(_without("lm_head")), "config.json": json.dumps(engines).encode()}
    new = {"model.safetensors": packed(WHOLE), "config.json": json.dumps(trainers).encode()}
    like, folder = write(tmp_path / "start", old), write(tmp_path / "v2", new)
    _check(folder, words, (str(like),))
    _check(folder, words, (str(like),), partial=True)


@pytest.mark.parametrize("name", ["model.safetensors", INDEX, TWO])
def test_a_link_to_nothing_is_named(tmp_path: Path, name: str) -> None:
    files = {ONE: packed(FIRST), TWO: packed(SECOND), INDEX: BOTH}
    folder = write(tmp_path / "v2", {one: content for one, content in files.items() if one != name})
    if name == "model.safetensors":
        (folder / INDEX).unlink()
    (folder / name).symlink_to(tmp_path / "removed")
    _check(folder, f"{name} is not there: a link to nothing")


def test_a_file_that_cannot_be_read_here_is_left_to_the_engines_which_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "v2", {})
    (folder / "model.safetensors").mkdir()  # root reads any file
    with caplog.at_level(logging.WARNING):
        check_checkpoint(str(folder))
    (said,) = caplog.records
    assert "v2 cannot be read here" in said.message


def test_the_engines_folder_is_read_once_while_its_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, tensors_in = list[Path](), checkpoint._tensors

    def counted(path: Path) -> object:
        read.append(path)
        return tensors_in(path)

    monkeypatch.setattr(checkpoint, "_tensors", counted)
    like = write(tmp_path / "start", {"model.safetensors": packed(WHOLE)})
    folders = [write(tmp_path / f"v{at}", {"model.safetensors": packed(WHOLE)}) for at in range(3)]
    for folder in folders:
        _check(folder, "", (str(like),))
    assert [path.parent.name for path in read] == ["v0", "start", "v1", "v2"]
    (like / "model.safetensors").write_bytes(packed(_with(model__more__weight=[4])))
    _check(folders[-1], "lacks model.more.weight", (str(like),))
