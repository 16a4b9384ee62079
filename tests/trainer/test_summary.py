"""Numbers of a run count sessions, turns and sampled tokens once, however many trajectories share them."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.runs.summary import summarize
from tests.trainer.trajectories import trajectory

PAIR = [
    trajectory(0, session_id="s", trajectory_id=1, reward=0.0, turn_ids=("a", "c"), fork_reason="compaction",
               loss_mask=array("b", [0, 0, 0, 0, 1])),
    trajectory(0, session_id="s", trajectory_id=0, reward=1.0),
]  # fmt: skip
"""Two branches of one session that share turn a, in any order; the later one's reward is the session's."""

CASES: dict[str, tuple[list[Trajectory], dict[str, Any]]] = {
    "nothing": ([], {"sessions": 0, "reward_mean": None, "solved": None, "tokens_per_s": 0.0}),
    "two sessions of a group": (
        [trajectory(0, reward=1.0), trajectory(1, reward=0.0)],
        {"groups": 1, "sessions": 2, "reward_mean": 0.5, "reward_std": 0.5, "solved": 0.5, "sampled_tokens": 6},
    ),
    "a session without a reward is in no mean": (
        [trajectory(0, reward=None), trajectory(1, reward=1.0)],
        {"sessions": 2, "scored": 1, "reward_mean": 1.0, "solved": 1.0},
    ),
    "branches share turns and their session": (
        PAIR,
        {"sessions": 1, "trajectories": 2, "turns": 3, "sampled_tokens": 4, "reward_mean": 0.0,
         "forks": {"compaction": 1}},
    ),
    "a session's reward is its main row's, whichever ended last": (
        [trajectory(0, session_id="s", trajectory_id=0, reward=1.0, main=True),
         trajectory(0, session_id="s", trajectory_id=1, reward=0.25)],
        {"sessions": 1, "reward_mean": 1.0, "solved": 1.0},
    ),
    "failures are counted by session": (
        [trajectory(n, failure_class="infra", failure_reason="Evicted") for n in (0, 0, 1)],
        {"failures": {"infra/Evicted": 2}},
    ),
    "tokens a second are of sampled tokens": ([trajectory()], {"sampled_tokens": 3, "tokens_per_s": 1.5}),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "wanted"), CASES.values(), ids=CASES)
def test_numbers(rows: list[Trajectory], wanted: dict[str, Any]) -> None:
    found = summarize(rows).numbers(wall_s=2.0)
    assert {name: found[name] for name in wanted} == wanted


def test_without_a_wall_clock_there_is_no_rate() -> None:
    assert summarize([trajectory()]).numbers(wall_s=0.0)["tokens_per_s"] is None
