"""Rewards of a session: its final trajectory is scored, the others get the same. (pure)

Where a reward comes from: the framework has it from the runner (its return value), the agent sent it with /complete
(`reward_info` with `reward` or `score`; see `gateways.uploaded`), a trainer set it at the gateway, or verl's
reward loop computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandgate.contract.trajectory import Trajectory


def final(rows: Sequence[Trajectory]) -> Trajectory:
    """The trajectory that is scored: the one that ended last. Raises ValueError without any."""
    return max(rows, key=lambda row: row.trajectory_id)


def broadcast(
    rows: Sequence[Trajectory], score: float | None = None, info: Mapping[str, Any] | None = None
) -> list[Trajectory]:
    """All rows of one session with one score: the given one, else the final trajectory's own; `info` is added to its
    reward_info. Order is kept. Every trajectory of a session counts the same, whatever the session forked into."""
    if not rows:
        return []
    last = final(rows)
    reward = last.reward if score is None else score
    known = {**last.reward_info, **(info or {})}
    return [replace(row, reward=reward, reward_info=known) for row in rows]


def group_mean(rows: Sequence[Trajectory]) -> float:
    """Mean score of a group's sessions, each once; 0.0 without any."""
    scores = {row.session_id: row.reward for row in rows if row.reward is not None}
    return sum(scores.values()) / len(scores) if scores else 0.0
