"""examples/verl/train.sh as small as it goes: two steps of GRPO, without a GPU. Imports nothing of verl's."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / "examples" / "verl" / "train.sh"
ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "cpu_verl",
    "VERL_PLATFORM": "cpu",
    # Its FSDP engine is registered for accelerators alone; so verl is told to take it all the same.
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_ENGINE_VENDOR": "nvidia",
    "OMP_NUM_THREADS": "1",
}
"""Loads `cpu_verl`, a platform and an engine."""
N, PROMPTS, STEPS = 2, 2, 2
SMALL = [
    "trainer.device=cpu",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32}",
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"actor_rollout_ref.rollout.n={N}",
    f"data.train_batch_size={PROMPTS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
    "data.dataloader_num_workers=0",
    "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "ray_kwargs.ray_init.num_cpus=12",
    "+ray_kwargs.ray_init.resources.NPU=1",
    "+ray_kwargs.ray_init.include_dashboard=False",
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
]
"""Overrides of the recipe: less of everything, and no GPU."""


def steps(said: str) -> list[str]:
    """What verl logs of each step."""
    return [line for line in said.splitlines() if re.search(r"\bstep:\d+ - ", line)]


def metric(line: str, name: str) -> float:
    """Of a step."""
    found = re.search(rf"{re.escape(name)}:([^ ]+)", line)
    assert found, f"{name} is not logged: {line}"
    return float(found[1].removeprefix("np.float64(").removeprefix("np.float32(").rstrip(")"))


def captured_is_recomputed(line: str) -> bool:
    """Importance ratios of every token are 1: what was captured is what the trainer recomputes."""
    ratios = [metric(line, f"rollout_corr/rollout_is_{end}") for end in ("max", "min")]
    return all(abs(ratio - 1.0) < 1e-4 for ratio in ratios)
