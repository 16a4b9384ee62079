"""Runs in AReaL's environment: AReaL's own agents by their path, as its controller names them, through a gateway that
is told AReaL's versions.

python check_agent.py ORIGIN KEY SERVER
"""

from __future__ import annotations

import json
import sys

from areal.api.cli_args import InferenceEngineConfig  # type: ignore[import-not-found]
from areal.engine.vllm_remote import RemotevLLMEngine  # type: ignore[import-not-found]


def main(origin: str, key: str, server: str) -> None:
    config = InferenceEngineConfig(
        experiment_name="shop", trial_name="ci", max_concurrent_rollouts=2, consumer_batch_size=1
    )
    rollout = RemotevLLMEngine(config)
    rollout.initialize(addr=[server], train_data_parallel_size=1)
    for version in (0, 5):
        if version:
            rollout.pause()
            rollout.set_version(version)
            rollout.resume()
        (batch,) = rollout.rollout_batch(
            [{"prompt": "hi"}],
            workflow="sandgate.trainer.areal.job.AgentWorkflow",
            workflow_kwargs={
                "agent": "tests.trainer.areal.agents.Inline",
                "agent_kwargs": {"reward": 0.5},
                "proxy_addr": origin,
                "admin_api_key": key,
                "trainer": "run-7",
            },
        )
        versions = sorted(set(batch["versions"][batch["loss_mask"] == 1].tolist()))
        said = {"versions": versions, "rewards": batch["rewards"].tolist()}
        print("CHECK", json.dumps({str(version): said}), flush=True)
    rollout.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
