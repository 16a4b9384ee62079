"""Credit assignment: from rewards to the credit of each turn and the reward of each trajectory. (pure)

*Session reward*: `Sealed.reward`, else the newest `Rewarded` without a turn: the score of the session's outcome. As in
uni-agent (PR 58, "score final trajectory, broadcast to all session trajectories") it becomes the reward of **every**
trajectory of the session, side calls and compactions included: they are the policy's doing and led to that outcome.

*Turn rewards*: `Rewarded` with a turn; the newest counts. Without a session reward, a trajectory's reward is the
discounted return of its path; a trajectory without any reward of its own gets that of the last one that has one.

*Discount*, leaves first: a turn's credit is its own reward + discount x the sum of its children's credits. The session
reward stands at every leaf and flows back along the child that was continued last, so that a fork never counts it
twice. On one conversation both are AReaL's rule: R = r + discount * R of the next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from sandgate.contract.errors import InvalidBody
from sandgate.contract.session import REWARD_MAX as REWARD_MAX
from sandgate.gateway.journal.records import Rewarded
from sandgate.gateway.trajectories.row_tree import AnyLinked, RowTree


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit of a session's turns and rewards of its leaves, after discounting. Empty: no reward was given at all."""

    turns: dict[str, float] = field(default_factory=dict)
    """Turn id -> credit; every turn of the session, or none."""
    leaves: dict[str, float] = field(default_factory=dict)
    """Leaf turn id -> reward of the trajectory that ends there."""


def finite(value: object, field: str) -> float:
    """`value` as a float. Raises InvalidBody, which names `field`, for NaN, infinities and anything but a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise InvalidBody(f"{field} must be a finite number", field=field)
    return float(value)


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an int beyond float64
        return False


def credit(
    paths: Sequence[Sequence[str]],
    rewarded: Iterable[Rewarded],
    *,
    reward: float | None = None,
    discount: float = 1.0,
) -> Credit:
    """Credit of the trajectories with these paths (turn ids, root to leaf; in order of each leaf's commit).

    `reward`: `Sealed.reward`. A reward for a turn that is on no path is ignored: its branch was left out. Raises
    InvalidBody for a reward that is not finite, also after summing, and for a discount that is not in [0, 1].
    """
    session, own = _given(rewarded, reward)
    if not 0.0 <= finite(discount, "discount") <= 1.0:
        raise InvalidBody("discount must be between 0 and 1", field="discount")
    if session is None and not any(turn in own for path in paths for turn in path):
        return Credit()
    leaves = {path[-1]: _score(path, own, session, discount) for path in paths}
    last = next((score for score in reversed(leaves.values()) if score is not None), 0.0)
    scored = {leaf: last if score is None else score for leaf, score in leaves.items()}
    outcome = {leaf: scored[leaf] for leaf, score in leaves.items() if session is not None or score is None}
    turns = _flow_back(paths, own, outcome, discount)
    for name, value in (*turns.items(), *scored.items()):
        if not isfinite(value):
            raise InvalidBody(f"the rewards of turn {name} add up beyond float64", field="reward")
    return Credit(turns, scored)


def row_reward(
    rows: RowTree[AnyLinked], number: int, rewarded: Iterable[Rewarded], *, discount: float
) -> float | None:
    """As `credit` with the paths of these rows gives it to the row of this number; None: nothing was rewarded."""
    session, own = _given(rewarded, None)
    if not 0.0 <= finite(discount, "discount") <= 1.0:
        raise InvalidBody("discount must be between 0 and 1", field="discount")
    if not rows.ends:
        return None
    if session is not None:
        return session
    scored: dict[str, bool] = {}
    for turn in rows.order:
        scored[turn.id] = turn.id in own or (turn.parent is not None and scored[turn.parent])
    end = next((end for end in (rows.ends[number], *reversed(rows.ends)) if scored[end]), None)
    if end is None:
        return None
    reward = _score([turn.id for turn in rows.path(end)], own, None, discount)
    return reward if reward is None else finite(reward, "reward")


def discounted(
    turns: Sequence[str], rewards: Mapping[str, float | None], discount: float
) -> dict[str, float]:
    """Credits by AReaL's own rule, for its `/export_trajectories`: from the newest to the oldest of *all* turns in
    order of creation, whatever the tree; R = R * discount + r; no reward counts as 0. For a single
    conversation `credit` gives the same."""
    out: dict[str, float] = {}
    total = 0.0
    for turn in reversed(turns):
        total = total * discount + (rewards.get(turn) or 0.0)
        out[turn] = total
    return {turn: out[turn] for turn in turns}


def _given(rewarded: Iterable[Rewarded], reward: float | None) -> tuple[float | None, dict[str, float]]:
    """(session reward, own reward by turn); the newest of each counts."""
    session: float | None = None
    own: dict[str, float] = {}
    for given in rewarded:
        if given.turn is None:
            session = finite(given.reward, "reward")
        else:
            own[given.turn] = finite(given.reward, "reward")
    return (session if reward is None else finite(reward, "reward")), own


def _score(
    path: Sequence[str], own: Mapping[str, float], session: float | None, discount: float
) -> float | None:
    """The reward of a trajectory by itself; None if nothing on its path was rewarded."""
    if session is not None:
        return session
    if not any(turn in own for turn in path):
        return None
    total = 0.0
    for turn in reversed(path):
        total = total * discount + own.get(turn, 0.0)
    return total


def _flow_back(
    paths: Sequence[Sequence[str]], own: Mapping[str, float], outcome: Mapping[str, float], discount: float
) -> dict[str, float]:
    """Credits of turns, leaves first: own rewards summed over children, outcomes along the child that was continued
    last."""
    parents: dict[str, str | None] = {}
    depths: dict[str, int] = {}
    continued: dict[str | None, str] = {}
    for path in paths:
        above: str | None = None
        for depth, turn in enumerate(path):
            parents[turn], depths[turn], continued[above] = above, depth, turn
            above = turn
    sums = {turn: own.get(turn, 0.0) for turn in parents}
    flows = {turn: outcome.get(turn, 0.0) for turn in parents}
    for turn in sorted(depths, key=depths.__getitem__, reverse=True):
        parent = parents[turn]
        if parent is not None:
            sums[parent] += discount * sums[turn]
            if continued[parent] == turn:
                flows[parent] = discount * flows[turn]
    return {turn: sums[turn] + flows[turn] for turn in parents}
