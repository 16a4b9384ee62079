"""One process of a training run in several: `check_processes.py` starts it under torchrun, and reads what it wrote."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import AutoTokenizer  # type: ignore[import-not-found]
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from sandgate.trainer.client.fleet import fleet
from sandgate.trainer.trl import FolderWeights, Rollouts, env_reward, last_checkpoint
from sandgate.trainer.trl import rollouts as of_rollouts

TOLD = json.loads(os.environ["TOLD"])
FOLDER = Path(TOLD["folder"])
RANK = int(os.environ["RANK"])


def polite(prompts: Any, **_: Any) -> list[float]:
    """Another reward function, which has a word for all."""
    return [1.0] * len(prompts)


def kept(reward: float, sample: int) -> float:
    """Its agent's reward, unless this sample is to be lost."""
    if sample == TOLD.get("lost"):
        raise ValueError("lost")
    return reward


def main() -> None:
    sys.modules["tests"] = ModuleType("tests")  # as in conftest.py
    sys.modules["tests"].__path__ = [str(Path(__file__).parents[2])]
    from tests.trainer.trl.tiny import TASKS, agent, model

    async def slow(*, sample_index: int, **told: Any) -> float:
        reward = await agent(sample_index=sample_index, **told)
        await asyncio.sleep(TOLD["agent_s"] if sample_index == 0 else 0.0)
        return kept(reward, sample_index)

    columns: list[dict[str, Any]] = []
    advantages: list[list[float]] = []

    def reward(prompts: Any, **told: Any) -> list[float | None]:
        names = ("uid", "sandgate_sample", "sandgate_version", "sandgate_versions", "completion_ids")
        columns.append({"prompts": prompts, **{name: told[name] for name in names if name in told}})
        return env_reward(prompts, **told)

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            advantages.append(inputs["advantages"].tolist())
            return super()._compute_loss(model, inputs)

    tokenizer = AutoTokenizer.from_pretrained(TOLD["model"])
    tokenizer.pad_token = "<|endoftext|>"
    found: dict[str, Any] = {"columns": columns, "advantages": advantages, "error": None}
    args = GRPOConfig(
        output_dir=str(FOLDER / "out"), use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
        gradient_checkpointing=False, logging_steps=1, learning_rate=1e-2, save_strategy="steps", save_steps=1,
        vllm_importance_sampling_mode="token_truncate", **TOLD["config"],
    )  # fmt: skip
    of_rollouts.LOOK_S = 0.5
    connection = fleet({"g": TOLD["origin"]}, TOLD["key"], job=TOLD["job"])
    try:
        with Rollouts(connection, TASKS, job=TOLD["job"], agent=slow, **TOLD["options"]) as rollouts:
            trainer = Trainer(
                model=model(),
                args=args,
                processing_class=tokenizer,
                train_dataset=rollouts.dataset(TOLD["groups"]),
                eval_dataset=rollouts.dataset(tasks=TASKS[:4]),
                reward_funcs=[reward, polite] if TOLD.get("polite") else [reward],
                rollout_func=rollouts,
            )
            trainer.args.ddp_timeout = TOLD["timeout_s"]
            rollouts.attach(trainer, FolderWeights(FOLDER / "weights", kept=9))
            if TOLD.get("evaluate_first"):
                trainer.evaluate()
            trainer.train(resume_from_checkpoint=last_checkpoint(FOLDER / "out"))
            rollouts.publish(trainer)
            found["evaluated"] = [
                one["eval_reward"] for one in trainer.state.log_history if "eval_reward" in one
            ]
            found["version"] = rollouts.version(trainer)
            weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
            found["weights"] = {name: float(one.double().sum()) for name, one in weights.items()}
    except Exception as error:  # noqa: BLE001 - the test reads it
        found["error"] = f"{type(error).__name__}: {error}"
    (FOLDER / f"{TOLD['name']}-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
