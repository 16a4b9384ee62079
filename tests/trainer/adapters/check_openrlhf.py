"""OpenRLHF's own experiences and advantages of what `to_responses` makes."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch  # type: ignore[import-not-found]

STAND_INS = {name: MagicMock() for name in ("vllm", "vllm.inputs", "vllm.utils")}
"""Its modules import them at the top; nothing that runs here calls them."""
sys.modules |= STAND_INS

from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # type: ignore[import-not-found]  # noqa: E402

for name in STAND_INS:
    del sys.modules[name]  # others ask whether it is installed

from sandgate.contract.errors import Conflict  # noqa: E402
from sandgate.trainer.credit.counters import RowCounters  # noqa: E402
from sandgate.trainer.credit.group_advantages import prepare  # noqa: E402
from sandgate.trainer.credit.lengths import Lengths  # noqa: E402
from sandgate.trainer.credit.reasons import CreditRules  # noqa: E402
from sandgate.trainer.openrlhf import to_responses  # noqa: E402
from tests.gateway.trajectories.forest import T  # noqa: E402
from tests.trainer.groups import random_group, session, trained  # noqa: E402

SEEDS = range(60)


def experience(response: dict[str, Any], max_len: int = 2048) -> Any:
    """By its own code, which needs no generator."""
    return SamplesGenerator._process_response_into_experience(SimpleNamespace(), response, max_len=max_len)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_openrlhf_trains_is_what_was_sampled_on_the_main_path(seed: int) -> None:
    group, counters = random_group(seed, fails=(0.0, 0.3, 0.7, 1.0)[seed % 4]), RowCounters()
    made = to_responses(group.forked, group.sessions, prompt="p", label="l", counters=counters)
    assert group.sessions == counters.taught + sum(counters.left_out.values())
    assert len(made) == (group.sessions if group.rewards else 0), (
        "of a group that teaches nothing there is nothing"
    )
    plain = prepare(group.plain, scale=False)
    rewards = torch.tensor([response["reward"] for response in made])
    for number, response in enumerate(made):
        name, found = f"s{number}", experience(response)
        ids, mask = found.sequences[0].tolist(), [0, *found.action_mask[0].tolist()]
        assert ids == response["observation_tokens"]
        assert found.rollout_log_probs[0].tolist() == pytest.approx(response["rollout_log_probs"][1:])
        if name in group.rewards:
            assert found.rewards.item() == pytest.approx(group.rewards[name])
            assert set(group.main_turns[name]) & set(trained(ids, mask))
            assert sum(one % 1000 >= 500 for one in ids) == sum(mask)
            # Its `dr_grpo`: experience_maker.py, `rewards - rewards.mean(-1)`.
            assert (rewards[number] - rewards.mean()).item() == pytest.approx(
                group.rewards[name] - plain.mean, abs=1e-6
            )
        else:
            assert not any(mask)
            assert found.info["sandgate_taught"].item() == 0.0


def test_ranges_are_the_turns_and_nothing_between_them() -> None:
    (row,) = session(0, [T("a", role="main"), T("b", "a", role="main")], (1.0, None, None))
    (response,) = to_responses([row], 1)
    before = len(row.prompt_ids)
    ends = [before + end for end in row.turn_ends]
    assert response["action_ranges"] == [(end - 3, end) for end in ends]


def test_what_openrlhf_would_cut_is_masked_instead() -> None:
    (row,) = session(0, [T("a", role="main")], (1.0, None, None))
    size = len(row.prompt_ids) + len(row.response_ids)
    fits, cut = (Lengths(1000, 1000, total=most) for most in (size, size - 1))
    assert to_responses([row], 1, rules=CreditRules(lengths=fits))[0]["action_ranges"]
    counters = RowCounters()
    assert not to_responses([row], 1, rules=CreditRules(lengths=cut), counters=counters)
    assert counters.left_out == {"too_long": 1}


def test_a_session_that_left_nothing_is_one_masked_token_with_the_groups_mean() -> None:
    rows = session(0, [T("a", role="main")], (1.0, None, None))
    made = to_responses(rows, 2, pad_token_id=7)
    assert (made[1]["observation_tokens"], made[1]["action_ranges"], made[1]["reward"]) == ([7, 7], [], 1.0)
    experience(made[1])


def test_a_truncated_episode_that_is_masked_is_not_scored_anew() -> None:
    """OpenRLHF's `reward.stop_properly_penalty_coef` sets the reward of what it is told was truncated."""
    ends = [(1.0, None, None), (0.0, None, None), (0.0, "policy", "TurnLimit")]
    rows = [row for number, end in enumerate(ends) for row in session(number, [T("a", role="main")], end)]
    made = to_responses(rows, 3, rules=CreditRules(truncated="mask"))
    assert [response["truncated"] for response in made] == [False, False, False]
    assert [response["reward"] for response in made] == [1.0, 0.0, 0.5]


def test_a_group_that_is_larger_than_the_trainers_is_refused() -> None:
    with pytest.raises(Conflict, match="sample 3, which was not asked for"):
        to_responses(session(3, [T("a", role="main")], (1.0, None, None)), 2)
