"""A row is what it was when it was sampled, whatever rows it shares a batch with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from sandgate.trainer import tinymodel
from sandgate.trainer.client.fleet import fleet
from sandgate.trainer.trl import Rollouts
from sandgate.trainer.trl.positions import count_from_first
from tests.trainer.trl.tiny import TASKS

HERE = Path(__file__).parent
SHOP = HERE.parents[2] / "examples" / "shop" / "model"
PADDINGS = (0, 1, 2, 3, 64)


def learned() -> Any:
    """Its positions are a table: others are other numbers altogether."""
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": tinymodel.VOCAB_SIZE, "n_positions": 256}
    size |= {
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": tinymodel.END,
        "eos_token_id": tinymodel.END,
    }
    return GPT2LMHeadModel(GPT2Config(**size)).float()


@pytest.fixture
def attached(tmp_path: Path) -> Callable[..., Any]:
    def made(model: Path, **told: Any) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(tinymodel.write_tiny_model(tmp_path / "model"))
        tokenizer.pad_token = "<|endoftext|>"
        rollouts = Rollouts(fleet({"g": "http://g"}, "key"), TASKS, job="job")
        trainer = GRPOTrainer(
            model=str(model),
            args=GRPOConfig(
                output_dir=str(tmp_path),
                use_cpu=True,
                bf16=False,
                report_to="none",
                num_generations=2,
                **told,
            ),
            processing_class=tokenizer,
            train_dataset=rollouts.dataset(),
            reward_funcs=[lambda prompts, **_: [0.0] * len(prompts)],
            rollout_func=rollouts,
        )
        rollouts.attach(trainer)
        return trainer

    return made


def logprobs(trainer: Any, model: Any, prompt: list[int], response: list[int], padding: int) -> Any:
    """As TRL computes them, of a row whose prompt is shorter than another's by `padding`."""
    ids = torch.tensor([[0] * padding + prompt + response, [1] * (padding + len(prompt) + len(response))])
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    with torch.no_grad():
        found, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, mask, len(response))
    return found[0]


def test_a_model_that_learned_its_positions_is_given_those_of_the_engine(
    attached: Callable[..., Any], tmp_path: Path
) -> None:
    plain = learned().eval()
    plain.save_pretrained(tmp_path / "learned")
    prompt, response = list(range(20, 40)), list(range(60, 70))
    with torch.no_grad():
        logits = plain(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    truth = logits.log_softmax(-1)[range(len(response)), response]
    trainer = attached(tmp_path / "learned", beta=0.1)
    for model in (trainer.model.eval(), trainer.ref_model.eval()):
        for padding in PADDINGS:
            found = logprobs(trainer, model, prompt, response, padding)
            assert (found - truth).abs().max() < 1e-5, f"{padding} tokens of padding"


def test_a_nonsense_token_that_the_engine_sampled_has_its_captured_logprob_under_any_padding(
    attached: Callable[..., Any],
) -> None:
    row = json.loads((HERE / "nonsense.json").read_text())
    captured, sampled = torch.tensor(row["logprobs"]), torch.tensor(row["env_mask"]).bool()
    trainer = attached(SHOP)
    for padding in PADDINGS:
        found = logprobs(trainer, trainer.model, row["prompt_ids"], row["completion_ids"], padding)
        off = (found - captured)[sampled].abs().max()
        assert off < 3e-5, f"{padding} tokens of padding: off by {off:.1e}"


def test_a_model_of_images_goes_on_numbering_for_itself() -> None:
    small: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "intermediate_size": 16, "num_key_value_heads": 1, "vocab_size": 64}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2}
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision))
    count_from_first(model)
    assert not model._forward_pre_hooks
