"""Rewards of a session: its final trajectory is scored, the others get the same. (pure)

Where a reward comes from: the framework has it from the runner (its return value), the agent sent it with /complete
(`reward_info` with `reward` or `score`; see `gateways.uploaded`), a trainer set it at the gateway, or verl's
reward loop computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.contract.session import finite
from sandgate.contract.trajectory import Trajectory, main_row


def returned(said: Any) -> float | None:
    """What a runner returned, as a reward: a number, also numpy's or torch's, True is 1.0; None for anything else.
    Raises InvalidBody for a number that is not finite."""
    if not isinstance(said, int | float) and getattr(said, "shape", None) == ():
        said = said.item()
    if isinstance(said, bool):
        return float(said)
    if not isinstance(said, int | float):
        return None
    if (number := finite(said)) is None:
        raise InvalidBody(f"the runner returned {said!r}; a reward is a finite number", field="reward")
    return number


def final(rows: Sequence[Trajectory]) -> Trajectory:
    """The trajectory that is scored: the one that has the agent's answer, not a title that was asked after it. Raises
    ValueError without any."""
    return main_row(rows)


def per_trajectory(
    rows: Sequence[Trajectory], rewards: Sequence[float], info: Mapping[str, Any] | None = None
) -> list[Trajectory]:
    """Rows of one session with a reward each, in the order of their ids; order is kept, `info` is added to each
    reward_info. Raises InvalidBody unless there are as many rewards as rows, all finite numbers."""
    if len(rewards) != len(rows):
        raise InvalidBody(f"{len(rewards)} rewards for {len(rows)} trajectories", field="rewards")
    found = [finite(reward) for reward in rewards]
    for at, (said, number) in enumerate(zip(rewards, found, strict=True)):
        if number is None:
            raise InvalidBody(f"rewards[{at}] must be a finite number, not {said!r}", field="rewards")
    order = sorted(range(len(rows)), key=lambda at: rows[at].trajectory_id)
    given = dict(zip(order, found, strict=True))
    return [
        replace(row, reward=given[at], reward_info={**row.reward_info, **(info or {})})
        for at, row in enumerate(rows)
    ]


def broadcast(
    rows: Sequence[Trajectory], score: float | None = None, info: Mapping[str, Any] | None = None
) -> list[Trajectory]:
    """All rows of one session with one score: the given one, else the final trajectory's own; `info` is added to its
    reward_info. Order is kept. Every trajectory of a session counts the same, whatever the session forked into. Raises
    InvalidBody for a score that is no finite number: it would make NaN of its whole group's advantages."""
    if not rows:
        return []
    last = final(rows)
    reward = last.reward if score is None else finite(float(score))
    if score is not None and reward is None:
        raise InvalidBody(f"session {last.session_id}: its score is {score!r}", field="reward_score")
    known = {**last.reward_info, **(info or {})}
    return [replace(row, reward=reward, reward_info=known) for row in rows]
