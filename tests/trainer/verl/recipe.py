"""A recipe over verl's own config files, as users write them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

RECIPE = """\
hydra:
  searchpath: ["file://{configs}"]
defaults: [ppo_trainer, _self_]
actor_rollout_ref:
  model:
    path: {model}
  rollout:
    name: vllm
    n: 8
    agent:
      agent_loop_manager_class: sandgate.trainer.verl.AgentFrameworkRolloutAdapter
    custom:
      agent_framework:
        gateway_count: 8
        agent_runners:
          deepeyes:
            runner_fqn: my_recipe.runners.deepeyes_runner
            runner_kwargs:
              max_turns: 8
            dispatch_mode: inline_async
            max_concurrent_sessions: 0
          swe:
            runner_fqn: my_recipe.runners.swe_runner
            runner_kwargs:
              image: swe-agent-image
            dispatch_mode: ray_task
            max_concurrent_sessions: 16
"""
"""From the pull request, but for the class of the manager."""


def composed(folder: Path, *overrides: str) -> Any:
    """What verl's main_ppo gets; the model is in `folder`."""
    import verl  # type: ignore[import-not-found]
    from hydra import compose, initialize_config_dir  # type: ignore[import-not-found]

    configs = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    (folder / "recipe.yaml").write_text(RECIPE.format(configs=configs, model=folder))
    with initialize_config_dir(str(folder), version_base=None):
        return compose("recipe", overrides=list(overrides))
