"""Runs in TRL's environment: GRPOTrainer trains a step on an exported data set, as what its rollout_func returns.

python trl_step.py FILE
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-not-found]
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (  # type: ignore[import-not-found]
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

VOCABULARY = 64
cache = tempfile.mkdtemp()
rows = Dataset.from_parquet(sys.argv[1], cache_dir=cache)
seen: dict[str, Any] = {}


def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
    """The file's rows, one for each entry."""
    found: dict[str, list[Any]] = rows[: len(prompts)]
    return found


def reward(prompts: list[Any], env_reward: list[float], **columns: Any) -> list[float]:
    """What was told with the rollout."""
    seen.update(columns, env_reward=env_reward)
    return env_reward


words = Tokenizer(WordLevel({str(number): number for number in range(VOCABULARY)}, "0"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="63", eos_token="62", unk_token="0")
torch.manual_seed(0)
model = Qwen3ForCausalLM(
    Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    )
)  # fmt: skip
before = [one.detach().clone() for one in model.parameters()]
trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward,
    rollout_func=rollout_func,
    processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"prompt": ["1 2 3"] * 4}),
    args=GRPOConfig(
        output_dir=cache, use_cpu=True, bf16=False, report_to="none", save_strategy="no", max_steps=1,
        per_device_train_batch_size=4, num_generations=4, gradient_checkpointing=False, learning_rate=1e-2,
        disable_tqdm=True, logging_strategy="no",
    ),
)  # fmt: skip
trainer.train()
assert seen["env_reward"] == [1.0, 0.0, 0.0, 1.0], seen["env_reward"]
assert seen["sandgate_session"] == rows["sandgate_session"][:4]
assert seen["sandgate_versions"][0] == [7, 7, -1, -1, 8]
moved = [not torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True)]
assert any(moved)
print("trained")
