"""GRPO by TRL's own trainer, on rollouts of an example's agent through Sandgate: what all train.py share.

`demo.py` starts engine and gateway and then an example's train.py, which may be killed at any time: started again, it
goes on from its last checkpoint. What happens is one JSON line per step in OUT/steps.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch  # type: ignore[import-not-found, unused-ignore]  # only in TRL's environment
from transformers import AutoTokenizer  # type: ignore[import-not-found, unused-ignore]
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]

from sandgate.contract.job import Task
from sandgate.trainer import fleet
from sandgate.trainer.trl import FolderWeights, Rollouts, env_reward, last_checkpoint

HTTP = httpx.Client(limits=httpx.Limits(max_connections=64), timeout=120, trust_env=False)
"""One pool for all agents: an OpenAI client of its own costs 30 ms, most of it certificates that nobody needs here."""
SERVED = "LEARNING_SERVED"
"""Environment variable with `{"origins", "key"}` of the job's gateways."""


def tasks_of(path: Path) -> list[Task]:
    return [Task(**json.loads(line)) for line in path.read_text().splitlines()]


@dataclass(frozen=True, kw_only=True)
class Example:
    """What is trained: an agent, its tasks, its model."""

    job: str
    model: Path
    agent: Callable[..., Any]
    tasks: Sequence[Task]
    held_out: Sequence[Task] = ()
    """Evaluated on, never trained on; none: `tasks` are."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further ones of GRPOConfig."""


class Steps:
    """What is drawn and checked: a line per step, from rewards and from TRL's own log."""

    def __init__(self, path: Path) -> None:
        self.path, self.began = path, time.time()

    def tell(self, **said: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"at": round(time.time(), 2), **said}) + "\n")


class Trainer(GRPOTrainer):  # type: ignore[misc, unused-ignore]
    """GRPOTrainer that also writes its log to `steps`."""

    steps: Steps

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        wanted = {
            "reward": "reward",
            "solved/mean": "solved",
            "solved": "solved",
            "sampling/sampling_logp_difference/max": "logp_difference_max",
            "sampling/importance_sampling_ratio/mean": "ratio_mean",
            "rollout/versions_behind_max": "behind_max",
            "rollout/masked": "masked",
            "completions/mean_length": "sampled_mean",
            "eval_reward": "eval_reward",
            "eval_solved": "eval_solved",
            "step_time": "train_s",
        }
        found = {short: logs[name] for name, short in wanted.items() if name in logs}
        if found:
            self.steps.tell(step=self.state.global_step, **found)


def solved(prompts: list[Any], env_reward: list[float | None], **columns: Any) -> list[float | None]:
    """Weight 0: only a number for the log, the share of episodes that were wholly right."""
    known = [one == 1.0 for one in env_reward if one is not None]
    columns["log_metric"]("solved", sum(known) / max(1, len(known)))
    return [None if one is None else float(one == 1.0) for one in env_reward]


def config(told: argparse.Namespace, **further: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(told.out / "checkpoints"),
        "max_steps": told.steps,
        "num_generations": told.samples,
        "per_device_train_batch_size": told.batch,
        "per_device_eval_batch_size": told.batch,
        "num_generations_eval": 2,
        "learning_rate": told.rate,
        "lr_scheduler_type": "constant",
        "temperature": 1.0,
        "loss_type": "dapo",
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
        "seed": told.seed,
        "save_strategy": "steps",
        "save_steps": told.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        "reward_weights": [1.0, 0.0],
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
    if told.evaluate and told.evaluate_every:
        settings |= {"eval_strategy": "steps", "eval_steps": told.evaluate_every}
    return GRPOConfig(**(settings | further))


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", help="its name among the job's runs; default: seed-SEED")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--ahead", type=int, default=0, help="steps whose rollouts start early")
    parser.add_argument("--samples", type=int, default=8, help="of each task: the group that GRPO compares")
    parser.add_argument("--batch", type=int, default=64, help="samples of an optimizer step")
    parser.add_argument("--evaluate", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--evaluate-every", type=int, default=0, help="steps; 0: only before and after the training"
    )
    parser.add_argument("--save-every", type=int, default=1)
    return parser


def train(
    told: argparse.Namespace, example: Example, rollouts_of: Callable[..., Rollouts] = Rollouts
) -> None:
    """`rollouts_of`: makes what TRL calls; takes what Rollouts takes."""
    served = json.loads(os.environ[SERVED])
    torch.set_num_threads(1)
    (told.out / "weights").mkdir(parents=True, exist_ok=True)
    settings = config(told, **example.settings)
    gateways = fleet(served["origins"], served["key"], job=example.job)
    every = [*example.tasks, *example.held_out]
    run = told.run or f"seed-{told.seed}"
    with rollouts_of(
        gateways, every, job=example.job, agent=example.agent, run=run, ahead=told.ahead
    ) as rollouts:
        trainer = Trainer(
            model=str(example.model),
            args=settings,
            processing_class=AutoTokenizer.from_pretrained(example.model),
            train_dataset=rollouts.dataset(told.steps * told.batch // told.samples, tasks=example.tasks),
            eval_dataset=rollouts.dataset(tasks=example.held_out or example.tasks),
            reward_funcs=[env_reward, solved],
            rollout_func=rollouts,
        )
        trainer.steps = Steps(told.out / "steps.jsonl")
        rollouts.attach(trainer, FolderWeights(told.out / "weights"))
        checkpoint = last_checkpoint(settings.output_dir)
        trainer.steps.tell(began=time.time(), checkpoint=checkpoint)
        if checkpoint is None and told.evaluate:
            trainer.evaluate()
        trainer.train(resume_from_checkpoint=checkpoint)
        if told.evaluate and not (told.evaluate_every and told.steps % told.evaluate_every == 0):
            trainer.evaluate()
        trainer.steps.tell(done=True)
