"""The configuration that uni-agent's pull request shows, in a recipe over verl's own config files."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl.utils.config import omega_conf_to_dataclass  # type: ignore[import-not-found]
from verl.utils.import_utils import load_class_from_fqn  # type: ignore[import-not-found]

from sandgate.contract.errors import BadManifest
from sandgate.trainer.verl import AgentFrameworkRolloutAdapter, framework_settings
from tests.trainer.verl.recipe import composed


def test_it_means_here_what_it_means_there(tmp_path: Path) -> None:
    config = composed(tmp_path)
    settings = framework_settings(config)
    swe, deepeyes = settings.runners["swe"], settings.runners["deepeyes"]
    assert (settings.gateway_count, settings.n) == (8, 8)
    assert (deepeyes.runner_fqn, deepeyes.runner_kwargs) == (
        "my_recipe.runners.deepeyes_runner",
        {"max_turns": 8},
    )
    assert (deepeyes.dispatch_mode, deepeyes.max_concurrent_sessions) == ("inline_async", 0)
    assert (swe.dispatch_mode, swe.max_concurrent_sessions) == ("ray_task", 16)
    assert swe.runner_kwargs == {"image": "swe-agent-image"}
    rollout = config.actor_rollout_ref.rollout
    assert settings.lengths.prompt == rollout.prompt_length
    assert settings.sampling == {"temperature": 1.0, "top_p": 1}  # verl's own defaults
    assert settings.validation_sampling == {"temperature": 0, "top_p": 1.0}


def test_verl_itself_takes_it(tmp_path: Path) -> None:
    rollout = composed(tmp_path).actor_rollout_ref.rollout
    typed = omega_conf_to_dataclass(rollout)
    found = load_class_from_fqn(typed.agent.agent_loop_manager_class, "AgentLoopManager")
    assert found is AgentFrameworkRolloutAdapter
    assert typed.custom["agent_framework"]["gateway_count"] == 8


SECTION = "actor_rollout_ref.rollout.custom.agent_framework"
WRONG: dict[str, tuple[str, type[Exception], str]] = {
    "the legacy shape": (
        f"+{SECTION}.agent_runner_fqn=my_recipe.runners.old",
        BadManifest,
        "agent_framework.agent_runner_fqn: one runner per config is no longer supported",
    ),
    "no gateway_count": (
        f"~{SECTION}.gateway_count",
        ValueError,
        "agent_framework.gateway_count is required in the configuration",
    ),
    "a backend that there is none of": (
        f"{SECTION}.agent_runners.swe.dispatch_mode=subprocess",
        BadManifest,
        "'subprocess' is not inline_async or ray_task",
    ),
    "no section": (
        "~actor_rollout_ref.rollout.custom",
        ValueError,
        "custom.agent_framework is required in the configuration",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    override, error, why = WRONG[case]
    with pytest.raises(error, match=why):
        framework_settings(composed(tmp_path, override))
