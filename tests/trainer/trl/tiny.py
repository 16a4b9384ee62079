"""A model of 20k parameters, its tasks, and an agent of two turns."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found]
from openai import AsyncOpenAI
from transformers import Qwen3Config, Qwen3ForCausalLM  # type: ignore[import-not-found]

from sandgate.contract.job import Task
from sandgate.contract.session import SessionHandle
from sandgate.trainer import tinymodel

TASKS = [Task(uid=f"q{one}", prompt=[{"role": "user", "content": f"say {one}"}]) for one in range(5)]


async def agent(*, session: SessionHandle, raw_prompt: Any, sample_index: int, **_: Any) -> float:
    """Two turns with a word of the environment between them. The first sample is worth 1, the second 0."""
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        messages = list(raw_prompt)
        for _turn in range(2):
            said = await client.chat.completions.create(model="tiny", messages=messages)
            messages += [said.choices[0].message.model_dump(exclude_none=True)]
            messages += [{"role": "user", "content": "go on"}]
    return 1.0 - sample_index


def model() -> Any:
    """The same each time."""
    config = Qwen3Config(
        vocab_size=tinymodel.VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).float()
