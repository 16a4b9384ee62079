"""Weights of a model with adapters (peft), as engines load them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]
from safetensors.torch import load_file  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM  # type: ignore[import-not-found]

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.trl import FolderWeights

SOME = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 4, "init_lora_weights": False}
ADAPTERS: dict[str, dict[str, Any]] = {
    "of some layers": SOME,
    "of all linear layers": {**SOME, "target_modules": "all-linear"},
    "with a scale of each rank's root": {**SOME, "use_rslora": True},
    "of magnitude and direction": {**SOME, "use_dora": True},
    "beside a head that is trained whole": {**SOME, "modules_to_save": ["lm_head"]},
    "of the embedding": {**SOME, "target_modules": ["embed_tokens", "o_proj"]},
}
IDS = torch.arange(40).reshape(2, 20)


def model(*, tied: bool, dtype: Any) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(dtype).eval()


def changed(found: Any) -> Any:
    """As training does: every trainable weight."""
    torch.manual_seed(1)
    with torch.no_grad():
        for one in found.parameters():
            if one.requires_grad:
                one += 0.05 * torch.randn_like(one)
    return found


def bits(found: Any) -> dict[str, Any]:
    return {name: one.detach().clone() for name, one in found.state_dict().items()}


TWO = ("beside a head that is trained whole", "of the embedding")
"""They make two weights of what a tied model has as one."""
CASES = [
    (name, tied) for name, tied in itertools.product(ADAPTERS, (False, True)) if not tied or name not in TWO
]


@pytest.mark.parametrize(("name", "tied"), CASES, ids=[f"{a}, tied {b}" for a, b in CASES])
def test_an_engine_loads_what_is_trained(tmp_path: Path, name: str, tied: bool) -> None:
    adapted = changed(get_peft_model(model(tied=tied, dtype=torch.float32), LoraConfig(**ADAPTERS[name])))
    adapted.eval()
    FolderWeights(tmp_path).save(adapted, 3)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "v3").eval()
    plain = model(tied=tied, dtype=torch.float32)
    assert set(loaded.state_dict()) == set(plain.state_dict())
    with torch.no_grad():
        assert torch.allclose(loaded(IDS).logits, adapted(IDS).logits, atol=2e-5)
        assert not torch.allclose(loaded(IDS).logits, plain(IDS).logits, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ADAPTERS)
def test_saving_changes_no_bit_of_the_model(tmp_path: Path, name: str, dtype: Any) -> None:
    adapted = changed(get_peft_model(model(tied=False, dtype=dtype), LoraConfig(**ADAPTERS[name])))
    before = bits(adapted)
    weights = FolderWeights(tmp_path)
    for version in range(3):
        weights.save(adapted, version)
    assert all(torch.equal(before[key], one) for key, one in bits(adapted).items())
    assert set(before) == set(adapted.state_dict())
    with torch.no_grad():
        assert torch.equal(adapted(IDS).logits, adapted(IDS).logits)


def test_an_adapter_that_is_not_active_is_no_part_of_it(tmp_path: Path) -> None:
    """TRL keeps a copy of a pretrained adapter beside the one that it trains, as "ref"."""
    config = LoraConfig(**ADAPTERS["beside a head that is trained whole"])
    adapted = changed(get_peft_model(model(tied=False, dtype=torch.float32), config)).eval()
    adapted.add_adapter("ref", config)
    FolderWeights(tmp_path).save(adapted, 3)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "v3").eval()
    with torch.no_grad():
        assert torch.allclose(loaded(IDS).logits, adapted(IDS).logits, atol=2e-5)
    saved = load_file(tmp_path / "v3" / "model.safetensors")
    assert set(saved) <= set(model(tied=False, dtype=torch.float32).state_dict())


def test_adapters_that_are_merged_already_stay_so(tmp_path: Path) -> None:
    adapted = changed(get_peft_model(model(tied=False, dtype=torch.float32), LoraConfig(**SOME))).eval()
    adapted.merge_adapter()
    before = bits(adapted)
    FolderWeights(tmp_path).save(adapted, 3)
    assert all(torch.equal(before[key], one) for key, one in bits(adapted).items())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "v3").eval()
    with torch.no_grad():
        assert torch.allclose(loaded(IDS).logits, adapted(IDS).logits, atol=2e-5)


@pytest.mark.parametrize("name", TWO)
def test_adapters_that_untie_a_weight_are_refused(tmp_path: Path, name: str) -> None:
    adapted = changed(get_peft_model(model(tied=True, dtype=torch.float32), LoraConfig(**ADAPTERS[name])))
    with pytest.raises(InvalidBody, match="tie_word_embeddings"):
        FolderWeights(tmp_path).save(adapted, 3)
