"""A real vLLM, and checkpoints that are not the whole model: it takes them without a word, so it is never asked to."""

from __future__ import annotations

import array
import shutil
from pathlib import Path

import httpx
import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.client.weight_update import controls, weight_update
from tests.support.vllm import Vllm
from tests.trainer.made_checkpoint import Tensors, packed, read, write

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]
FILE = "model.safetensors"
PARTS = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def _scaled(content: Tensors) -> Tensors:
    """Other weights: each nine tenths of what it was."""
    found = {}
    for name, (dtype, shape, data) in content.items():
        numbers = array.array("f", (one * 0.9 for one in array.array("f", data)))
        found[name] = (dtype, shape, numbers.tobytes())
    return found


async def _logprob(vllm: Vllm) -> float:
    """Of a prompt."""
    asked = {"model": vllm.model, "prompt": list(range(20, 40)), "max_tokens": 1, "prompt_logprobs": 0}
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{vllm.url}/v1/completions", json=asked, timeout=60)
    told = answer.raise_for_status().json()["choices"][0]["prompt_logprobs"]
    return float(sum(logprob["logprob"] for one in told[1:] for logprob in one.values()))


async def _load(vllm: Vllm, path: Path | str, version: int, *, partial: bool = False) -> float:
    """The prompt's logprob after that."""
    async with controls([vllm.url]) as engines, weight_update({}, version, engines=engines) as update:
        await update.reload(str(path), partial=partial)
    return await _logprob(vllm)


async def test_a_checkpoint_that_lacks_a_tensor_is_served_by_vllm_and_refused_by_an_update(
    vllm: Vllm, tmp_path: Path
) -> None:
    old = await _logprob(vllm)
    model = read(vllm.folder / FILE)
    new = _scaled(model)
    whole = write(tmp_path / "whole", {FILE: packed(new)})
    lacks = {name: one for name, one in new.items() if name != "lm_head.weight"}
    part = write(tmp_path / "part", {FILE: packed(lacks)})
    away = write(tmp_path / "away", {PARTS[0]: packed(lacks)})
    cut = write(tmp_path / "cut", {FILE: packed(new)[:-1]})
    names = write(tmp_path / "names", {FILE: packed({"module." + name: one for name, one in new.items()})})
    wide = {**new, "lm_head.weight": ("F32", [1032, 128], bytes(4 * 1032 * 128))}
    wider = write(tmp_path / "wider", {FILE: packed(wide)})
    refused = {
        part: "lacks lm_head.weight of 25 tensors",
        away: f"lacks {PARTS[1]}",
        cut: f"{FILE} is cut short",
        names: "a name within a wrapper",
        wider: "lm_head.weight has 132,096 numbers instead of 131,072",
    }
    try:
        for folder, words in refused.items():
            with pytest.raises(InvalidBody, match=words):
                await _load(vllm, folder, 2)
            assert await _logprob(vllm) == pytest.approx(old, abs=1e-3), "it goes on with the old weights"
        loaded = await _load(vllm, whole, 2)
        assert loaded != pytest.approx(old, abs=1)
        await _load(vllm, vllm.folder, 3)
        mixed = await _load(vllm, part, 4, partial=True)
        assert mixed != pytest.approx(loaded, abs=1), "vLLM says nothing of what is not there"
        assert mixed != pytest.approx(old, abs=1)
    finally:
        assert await _load(vllm, vllm.folder, 5) == pytest.approx(old, abs=1e-3)
        async with controls([vllm.url]) as engines:
            await engines[vllm.url].update_weight_version("default")
        shutil.rmtree(tmp_path)
