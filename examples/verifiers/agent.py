"""One episode of a verifiers environment, as the agent of a RolloutJob. It knows no environment: env.toml names one.

Every model call of the episode goes to the session's endpoint; its reward and metrics are the session's. For any image
that has verifiers and the environment in it.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found, unused-ignore]

CONFIG = "env.toml"
RESULT_BYTES = 4096
"""A termination log is cut there, as in Kubernetes; metrics that do not fit are left out."""


def load(path: str = CONFIG) -> Any:
    """The environment: what stands under `[env]` in a config of verifiers' own `eval`."""
    return vf.load_environment(vf.resolve_env_config(tomllib.loads(Path(path).read_text("utf-8"))["env"]))


def task_of(env: Any, told: dict[str, Any]) -> Any:
    """The task that make_tasks.py wrote down: by its place, and by its key, as a taskset may change."""
    idx, key = told["data"]["public"]["idx"], told["data"]["public"]["key"]
    for task in env.taskset.include(idx=[f"{idx}:{idx + 1}"]):
        if task.key == key:
            return task
    sys.exit(f"task {told['uid']}: {idx} of the taskset is not {key}; make tasks.jsonl anew")


async def play(env: Any, task: Any) -> Any:
    """An `Episode`."""
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    ctx = vf.ModelContext(client=client, model=os.environ["SANDGATE_MODEL"], sampling=vf.SamplingConfig())
    async with env.serving():
        return await env.run_episode(task, ctx)


def result(episode: Any) -> str:
    """A session has one reward: of several agents, the mean of those that are trained."""
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    if not trained:
        sys.exit("no agent of the episode is trainable: it has no reward")
    reward = sum(trace.reward for trace in trained) / len(trained)
    told = {name: value for trace in trained for name, value in trace.metrics.items()}
    told |= {name: one.value for trace in trained for name, one in trace.rewards.items() if one}
    finite = {name: value for name, value in told.items() if value is not None and math.isfinite(value)}
    text = json.dumps({"reward": reward, "reward_info": finite})
    return text if len(text) <= RESULT_BYTES else json.dumps({"reward": reward})


def main() -> None:
    env = load()
    task = task_of(env, json.loads(Path(os.environ["SANDGATE_TASK_FILE"]).read_text("utf-8")))
    episode = asyncio.run(play(env, task))
    if not episode.ok:  # no reward: what the session sampled is masked
        wrong = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        sys.exit("\n".join(f"{one.type}: {one.message}" for one in wrong) or "the episode is not ok")
    Path(os.environ["SANDGATE_TERMINATION_LOG"]).write_text(result(episode), "utf-8")


if __name__ == "__main__":
    main()
