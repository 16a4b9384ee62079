"""Weights of a model with adapters (peft), as engines load them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from peft import (  # type: ignore[import-not-found]
    LNTuningConfig,
    LoraConfig,
    PeftType,
    PrefixTuningConfig,
    get_peft_model,
)
from safetensors.torch import load_file  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.trl import FolderWeights
from sandgate.trainer.trl.adapters import check_adapters, plain

SOME = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 4, "init_lora_weights": False}
ADAPTERS: dict[str, dict[str, Any]] = {
    "of some layers": SOME,
    "of all linear layers": {**SOME, "target_modules": "all-linear"},
    "with a scale of each rank's root": {**SOME, "use_rslora": True},
    "of magnitude and direction": {**SOME, "use_dora": True},
    "beside a head that is trained whole": {**SOME, "modules_to_save": ["lm_head"]},
    "of the embedding": {**SOME, "target_modules": ["embed_tokens", "o_proj"]},
    "beside single tokens": {**SOME, "trainable_token_indices": [3, 4]},
    "beside a layer that is trained whole": {
        **SOME,
        "target_modules": ["q_proj"],
        "modules_to_save": ["mlp"],
    },
}
PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
EXPERTS = {**SOME, "target_modules": ["q_proj"], "target_parameters": PARAMETERS}
"""One adapter around the other, both around the experts' module."""
ROUTER = {**EXPERTS, "target_parameters": [*PARAMETERS, "mlp.router.weight"]}
IDS = torch.arange(40).reshape(2, 20)


def model(*, tied: bool, dtype: Any) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(dtype).eval()


def experts(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).to(dtype).eval()


def gpt_oss() -> Any:
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16,
    )  # fmt: skip
    return GptOssForCausalLM(config).eval()


def dense(tied: bool = False) -> Any:
    return model(tied=tied, dtype=torch.float32)


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


# -- of every shape: what is published is what peft's own merge makes of it, and what the model computes -----------


def second(adapted: Any, **told: Any) -> None:
    """Another adapter beside the first, both in use."""
    adapted.add_adapter("second", LoraConfig(**{**SOME, **told}))
    adapted.base_model.set_adapter(["default", "second"])
    changed(adapted)


SHAPES: dict[str, tuple[Callable[[], Any], Any, Callable[[Any], Any]]] = {
    "two parameters of a mixture's experts": (experts, LoraConfig(**EXPERTS), changed),
    "three of GPT-OSS, in two modules": (gpt_oss, LoraConfig(**ROUTER), changed),
    "the same of two adapters": (experts, LoraConfig(**EXPERTS), lambda one: second(one, **EXPERTS)),
    "the same, merged by its user": (experts, LoraConfig(**EXPERTS), lambda one: one.merge_adapter()),
    "two adapters of several layers": (
        dense,
        LoraConfig(**SOME),
        lambda one: second(one, target_modules=["q_proj"]),
    ),
    "a head, and an adapter beside it": (
        dense,
        LoraConfig(**ADAPTERS["beside a head that is trained whole"]),
        lambda one: second(one, target_modules=["q_proj"]),
    ),
    "tokens, and an adapter beside them": (
        dense,
        LoraConfig(**ADAPTERS["beside single tokens"]),
        lambda one: second(one, target_modules=["q_proj"]),
    ),
    "tokens of a tied embedding": (
        lambda: dense(True),
        LoraConfig(**ADAPTERS["beside single tokens"]),
        changed,
    ),
    "a tied embedding that is trained whole": (
        lambda: dense(True),
        LoraConfig(**SOME, modules_to_save=["embed_tokens"], ensure_weight_tying=True),
        changed,
    ),
    "norms, which are put in the others' place": (dense, LNTuningConfig(target_modules=["norm"]), changed),
}


@pytest.mark.parametrize(("make", "config", "then"), SHAPES.values(), ids=SHAPES)
def test_what_is_published_is_what_peft_merges(make: Any, config: Any, then: Any) -> None:
    adapted = changed(get_peft_model(make(), copy.deepcopy(config))).eval()
    then(adapted)
    before = bits(adapted.eval())
    places = {name: one.data_ptr() for name, one in adapted.named_parameters()}
    check_adapters(adapted)
    _, state = plain(adapted)
    assert all(torch.equal(before[key], one) for key, one in bits(adapted).items())
    assert places == {name: one.data_ptr() for name, one in adapted.named_parameters()}
    loaded = make()
    loaded.load_state_dict(state)
    with torch.no_grad():
        logits = adapted(IDS).logits
        assert torch.allclose(loaded(IDS).logits, logits, atol=2e-5)
        assert not torch.allclose(make()(IDS).logits, logits, atol=1e-2)
    whole = bits(adapted.merge_and_unload())
    assert set(whole) == set(state)
    assert all(torch.equal(whole[key], one) for key, one in state.items())


def test_experts_reach_the_folder_that_engines_load(tmp_path: Path) -> None:
    """Their names on disk are others, of each expert, than in the model."""
    adapted = changed(get_peft_model(experts(), LoraConfig(**EXPERTS))).eval()
    FolderWeights(tmp_path).save(adapted, 3)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "v3").eval()
    with torch.no_grad():
        assert torch.allclose(loaded(IDS).logits, adapted(IDS).logits, atol=2e-5)


def test_adapters_that_are_switched_off_are_not_published() -> None:
    """What the model computes is what engines sample from."""
    adapted = changed(get_peft_model(experts(), LoraConfig(**EXPERTS, modules_to_save=["lm_head"]))).eval()
    adapted.base_model.disable_adapter_layers()
    _, state = plain(adapted)
    assert all(torch.equal(state[name], one) for name, one in experts().state_dict().items())
    adapted.base_model.enable_adapter_layers()
    adapted.merge_adapter()
    adapted.base_model.disable_adapter_layers()
    before = bits(adapted)
    _, state = plain(adapted)
    # unmerged by peft, which leaves rounding behind, as the model's next forward pass would
    assert all(torch.allclose(state[name], one, atol=1e-6) for name, one in experts().state_dict().items())
    assert all(torch.equal(before[key], one) for key, one in bits(adapted).items())


# -- what is refused, when a trainer is attached --------------------------------------------------------------------


def quantized() -> Any:
    """As transformers marks one."""
    found = dense()
    found.is_quantized = True
    return found


def of_bytes() -> Any:
    """Quantized by other means."""
    found = dense()
    for layer in found.model.layers:
        layer.self_attn.q_proj.weight = torch.nn.Parameter(
            layer.self_attn.q_proj.weight.to(torch.float8_e4m3fn), requires_grad=False
        )
    return found


def within() -> Any:
    return get_peft_model(dense(), LoraConfig(**SOME))


REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "over a quantized model": (quantized, LoraConfig(**SOME), "quantized"),
    "over layers of bytes": (
        of_bytes,
        LoraConfig(r=4, target_modules=["q_proj"]),
        r"layers.0.self_attn.q_proj: .* quantized",
    ),
    "that are a prefix": (
        dense,
        PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
        "adapters of PREFIX_TUNING are not weights of a layer",
    ),
    "that begin at a token": (
        dense,
        LoraConfig(**SOME, alora_invocation_tokens=[3, 4]),
        r"model.layers.0.self_attn.q_proj: adapters of peft.tuners.lora.layer.Linear .* aLoRA",
    ),
    "over others": (within, LoraConfig(**SOME), "one model of peft is within another"),
    "of a tied embedding alone": (
        lambda: dense(True),
        LoraConfig(r=4, target_modules=["embed_tokens"]),
        "tie_word_embeddings",
    ),
    "of a tied embedding and its head": (
        lambda: dense(True),
        LoraConfig(r=4, target_modules=["embed_tokens", "lm_head"]),
        "tie_word_embeddings",
    ),
}


@pytest.mark.parametrize(("make", "config", "match"), REFUSED.values(), ids=REFUSED)
def test_adapters_that_cannot_be_published_are_refused_at_once(make: Any, config: Any, match: str) -> None:
    adapted = get_peft_model(make(), copy.deepcopy(config))
    before = bits(adapted)
    with pytest.raises(InvalidBody, match=match):
        check_adapters(adapted)
    assert all(torch.equal(before[key], one) for key, one in bits(adapted).items())
    assert not any(getattr(one, "merged_adapters", None) for one in adapted.modules())


def test_adapters_that_are_mixed_for_each_token_are_refused() -> None:
    adapted = get_peft_model(dense(), LoraConfig(**SOME))
    adapted.peft_config["default"].peft_type = PeftType.XLORA
    with pytest.raises(InvalidBody, match="adapters of XLORA are not weights of a layer"):
        check_adapters(adapted)


def test_a_model_of_several_methods_is_refused() -> None:
    with pytest.raises(InvalidBody, match="several methods of peft"):
        check_adapters(get_peft_model(dense(), LoraConfig(**SOME), mixed=True))


def test_adapters_that_transformers_added_are_refused() -> None:
    found = dense()
    found.add_adapter(LoraConfig(**SOME))
    with pytest.raises(InvalidBody, match="add_adapter"):
        check_adapters(found)


def test_a_quantized_model_is_not_merged_by_a_publication_either(tmp_path: Path) -> None:
    adapted = changed(get_peft_model(quantized(), LoraConfig(**SOME)))
    before = bits(adapted)
    with pytest.raises(InvalidBody, match="quantized"):
        FolderWeights(tmp_path).save(adapted, 3)
    assert all(torch.equal(before[key], one) for key, one in bits(adapted).items())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", TWO)
def test_adapters_that_untie_a_weight_are_refused(tmp_path: Path, name: str) -> None:
    adapted = changed(get_peft_model(model(tied=True, dtype=torch.float32), LoraConfig(**ADAPTERS[name])))
    with pytest.raises(InvalidBody, match="tie_word_embeddings"):
        FolderWeights(tmp_path).save(adapted, 3)
