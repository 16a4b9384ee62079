"""Runs in AReaL's environment: its own rollout engine, executor and `prepare_batch`, told a workflow by its path, train
on a RolloutJob whose agents are local processes. Its own
`FSDPPPOActor` makes two updates, and gives its weights to its servers.

python check_job.py WORKFLOW_AND_KWARGS OUT MODEL SERVER...
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from sandgate.trainer.areal.job import JobWorkflow
from tests.trainer.areal import cpu_actor

from areal.api.cli_args import InferenceEngineConfig, NameResolveConfig  # type: ignore[import-not-found]  # isort: skip
from areal.api.io_struct import WeightUpdateMeta  # type: ignore[import-not-found]  # isort: skip
from areal.engine.vllm_remote import RemotevLLMEngine  # type: ignore[import-not-found]  # isort: skip
from areal.utils import name_resolve  # type: ignore[import-not-found]  # isort: skip
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found]  # isort: skip

WORKFLOW = f"{JobWorkflow.__module__}.{JobWorkflow.__name__}"
EXPERIMENT = f"sandgate-{os.getpid()}"
"""AReaL keeps names of experiments in a folder of the machine."""
STEPS, PROMPTS = 2, 2


def config() -> Any:
    return InferenceEngineConfig(
        experiment_name=EXPERIMENT,
        trial_name="ci",
        max_concurrent_rollouts=4,
        consumer_batch_size=PROMPTS,
        max_head_offpolicyness=0,
        check_trajectory_format=True,
        setup_timeout=30,
        request_timeout=60,
        pause_grace_period=0.0,
    )


def tell(name: str, value: Any) -> None:
    print("CHECK", json.dumps({name: value}), flush=True)


def rows(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row without its padding."""
    out = []
    for group in batch:
        assert {name: str(one.dtype) for name, one in group.items()} == {
            "input_ids": "torch.int64",
            "loss_mask": "torch.int64",
            "versions": "torch.int64",
            "logprobs": "torch.float32",
            "rewards": "torch.float32",
            "attention_mask": "torch.bool",
        }
        for number in range(len(group["input_ids"])):
            length = int(group["attention_mask"][number].sum())
            one = {
                name: group[name][number][:length].tolist()
                for name in ("input_ids", "loss_mask", "logprobs", "versions")
            }
            out.append(one | {"advantage": float(group["rewards"][number])})
    return out


def main(said: str, out: str, model: str, *servers: str) -> None:
    """The body of AReaL's own loop (trainer/rl_trainer.py, `train`), without its logs, checkpoints and evaluation."""
    told = json.loads(said)
    assert told["workflow"] == WORKFLOW
    name_resolve.reconfigure(NameResolveConfig(type="nfs", nfs_record_root=f"{out}/names"))
    rollout = RemotevLLMEngine(config())
    rollout.initialize(addr=list(servers), train_data_parallel_size=1)
    data = [{"uid": f"q{number}", "prompt": f"say {number}", "level": number} for number in range(8)]
    loader = StatefulDataLoader(data, batch_size=PROMPTS, collate_fn=list)
    actor = cpu_actor.actor(model, EXPERIMENT)
    meta = WeightUpdateMeta(
        type="disk", path=f"{out}/weights/weight_update", clear_checkpoint_after_load=False
    )
    actor.connect_engine(rollout, meta)
    for step in range(STEPS):
        batch = actor.prepare_batch(
            loader,
            **told,
        )
        tell(f"batch {step}", rows(batch))
        before = cpu_actor.weights(actor)
        actor.ppo_update(actor.compute_advantages(batch))
        tell(f"moved {step}", bool((before != cpu_actor.weights(actor)).any()))
        rollout.pause()
        actor.update_weights(meta.with_version(step + 1))
        actor.set_version(step + 1)
        rollout.set_version(step + 1)
        rollout.resume()
    tell("stats", rollout.export_stats())
    rollout.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
