"""Trajectories for the tests in the trainer environment, which has no hypothesis."""

from __future__ import annotations

from array import array
from typing import Any

from sandgate.contract.trajectory import Trajectory


def row(session: int = 0, trajectory: int = 0, **changes: Any) -> Trajectory:
    """Two turns, three sampled tokens, two of context between them."""
    return Trajectory(
        **{
            "job": "shop",
            "uid": "q1",
            "session_id": f"shop-q1-{session}",
            "trajectory_id": trajectory,
            "sample_index": session,
            "attempt": 0,
            "prompt_ids": array("i", [1, 2, 3]),
            "response_ids": array("i", [10, 11, 4, 5, 12]),
            "response_logprobs": array("f", [-0.1, -0.2, 0.0, 0.0, -0.3]),
            "loss_mask": array("b", [1, 1, 0, 0, 1]),
            "versions": array("i", [7, 7, -1, -1, 8]),
            "turn_ids": ("a", "b"),
            "turn_ends": (2, 5),
            "reward": 1.0,
            "turn_rewards": (0.0, 1.0),
            "reward_info": {"score": 1.0},
            **changes,
        }
    )


def short(session: int = 1, **changes: Any) -> Trajectory:
    """One turn of two tokens on a prompt of two."""
    return row(
        session,
        **{
            "prompt_ids": array("i", [1, 2]),
            "response_ids": array("i", [20, 21]),
            "response_logprobs": array("f", [-0.5, -0.25]),
            "loss_mask": array("b", [1, 1]),
            "versions": array("i", [8, 8]),
            "turn_ids": ("a",),
            "turn_ends": (2,),
            "turn_rewards": (0.0,),
            "reward": 0.0,
            "reward_info": {"score": 0.0},
            **changes,
        },
    )
