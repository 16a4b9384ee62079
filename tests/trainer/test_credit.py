"""What of a group teaches the policy, and how much: the same rules for every trainer."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.journal.records import Sealed
from sandgate.gateway.trajectories.linearize import linearize
from sandgate.trainer.credit.group_advantages import EPSILON, CreditedGroup, prepare
from tests.gateway.trajectories.forest import T, seen
from tests.trainer.trajectories import trajectory

LOST: dict[str, Any] = {"failure_class": "infra", "failure_reason": "NodeLost", "reward": None}


def main(sample: int, reward: float | None = 1.0, **more: Any) -> Trajectory:
    return trajectory(sample, **{"reward": reward, "role": "main", "main": True, **more})


def side(sample: int, reward: float | None = 1.0, **more: Any) -> Trajectory:
    return trajectory(sample, **{"reward": reward, "role": "side", "trajectory_id": 1, **more})


def advantages(group: CreditedGroup) -> list[float]:
    return [round(row.advantage, 3) for row in group.rows]


CASES: dict[str, tuple[list[Trajectory], list[float], dict[str, int]]] = {
    "right and wrong": ([main(0, 1.0), main(1, 0.0)], [0.5, -0.5], {}),
    "all alike": ([main(0, 1.0), main(1, 1.0)], [0.0, 0.0], {}),
    "one alone": ([main(0, 1.0)], [0.0], {}),
    "a session that forked counts once": (
        [main(0, 1.0), trajectory(0, role="main", trajectory_id=1, reward=1.0), main(1, 0.0)],
        [0.5, 0.5, -0.5],
        {},
    ),
    "a failure that is not the policy's has no part in the mean": (
        [main(0, 1.0), main(1, 0.0), main(2, **LOST)], [0.5, -0.5, 0.0], {"failure": 1},
    ),
    "a score that such a failure was given is not believed": (
        [main(0, 1.0), main(1, 0.0), main(2, failure_class="agent", failure_reason="AgentExit", reward=0.0)],
        [0.5, -0.5, 0.0],
        {"failure": 1},
    ),
    "a failure by the policy's own doing is scored": (
        [main(0, 1.0), main(1, 0.0, failure_class="policy", failure_reason="TurnLimit")], [0.5, -0.5], {},
    ),
    "a session that nobody scored has no part in the mean": (
        [main(0, 1.0), main(1, 0.0), main(2, None)], [0.5, -0.5, 0.0], {"no_reward": 1},
    ),
    "a title teaches nothing": ([main(0, 1.0), side(0), main(1, 0.0)], [0.5, 0.0, -0.5], {"role": 1}),
    "a sub-agent is taught": (
        [main(0, 1.0), side(0, role="subagent"), main(1, 0.0)], [0.5, 0.5, -0.5], {},
    ),
    "a row whose tokens are trained in another one teaches nothing": (
        [main(0, 1.0), trajectory(0, role="main", trajectory_id=1, loss_mask=array("b", [0] * 5)), main(1, 0.0)],
        [0.5, 0.0, -0.5],
        {"nothing_sampled": 1},
    ),
    "rows that are older than roles": ([trajectory(0, reward=1.0), trajectory(1, reward=0.0)], [0.5, -0.5], {}),
    "nothing that counts": ([main(0, **LOST), main(1, None)], [0.0, 0.0], {"failure": 1, "no_reward": 1}),
    "no rows": ([], [], {}),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "found", "left"), CASES.values(), ids=CASES)
def test_advantages_of_a_group(rows: list[Trajectory], found: list[float], left: dict[str, int]) -> None:
    group = prepare(rows, scale=False)
    assert (advantages(group), dict(group.left_out)) == (found, left)
    assert len(group.taught) == len(rows) - sum(left.values())


def test_an_advantage_is_divided_by_the_deviation_of_the_sessions() -> None:
    group = prepare([main(0, 1.0), main(1, 0.0), main(2, 0.0), main(3, **LOST)])
    assert (group.mean, group.deviation) == pytest.approx((1 / 3, 0.57735), abs=1e-5)
    assert group.rows[0].advantage == pytest.approx((2 / 3) / (group.deviation + EPSILON))


def test_the_score_of_a_session_is_its_main_rows_whatever_came_after() -> None:
    rows = [main(0, 1.0), side(0, 0.0), main(1, 0.0)]
    assert prepare(rows).scores == {"shop-q1-0": 1.0, "shop-q1-1": 0.0}


def test_other_roles_may_teach() -> None:
    group = prepare([main(0, 1.0), side(0, 1.0), main(1, 0.0)], roles=("main", "side"), scale=False)
    assert advantages(group) == [0.5, 0.5, -0.5]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    rows = [trajectory(), trajectory(session_id="another", sample_index=1, reward=reward)]
    with pytest.raises(InvalidBody, match="session another: its reward is"):
        prepare(rows)


def test_rows_of_two_tasks_are_no_group() -> None:
    with pytest.raises(InvalidBody, match="rows of 2 tasks"):
        prepare([main(0), main(1, uid="q2")])


Shape = list[tuple[int, str, str | None]]
"""(parent's number, role, fork reason) of each turn after the first."""
End = tuple[float | None, str | None]
"""(reward, failure class)"""
ROLES = st.sampled_from(["main", "main", "side", "subagent"])
SHAPES = st.lists(
    st.tuples(st.integers(-1, 12), ROLES, st.sampled_from([None, "side_call", "compaction"])), max_size=9
)
ENDS = st.sampled_from(
    [(1.0, None), (0.25, None), (0.0, "policy"), (None, "infra"), (None, None), (0.0, "agent")]
)


def session(
    number: int, shape: list[tuple[int, str, str | None]], end: tuple[float | None, str | None]
) -> list[Trajectory]:
    """The rows of a session whose tree has this shape; at least one turn."""
    names = "abcdefghij"
    turns = [T("a", role="main")]
    for at, (parent, role, fork) in enumerate(shape, 1):
        known = names[parent] if 0 <= parent < at else None
        turns.append(T(names[at], known, role=role, fork=fork if known is None else None))
    reward, failure = end
    sealed = Sealed(at=1.0, reward=reward, failure_class=failure, failure_reason="why" if failure else None)
    spec = {"job": "shop", "uid": "q1", "sample_index": number}
    return linearize(turns, session_id=f"s{number}", spec=spec, sealed=sealed, delivered=seen(turns))


SESSIONS = st.lists(st.tuples(SHAPES, ENDS), min_size=1, max_size=6)


@example([([(0, "side", None), (0, "side", None), (-1, "main", None)], (1.0, None))])
@given(SESSIONS)
def test_every_token_of_the_main_role_is_taught_exactly_once(
    made: list[tuple[Shape, End]],
) -> None:
    rows = [row for number, (shape, end) in enumerate(made) for row in session(number, shape, end)]
    group = prepare(rows)
    taught: dict[tuple[str, str], int] = {}
    for credited in group.taught:
        row = credited.trajectory
        start = 0
        for turn, end in zip(row.turn_ids, row.turn_ends, strict=True):
            taught[row.session_id, turn] = taught.get((row.session_id, turn), 0) + row.loss_mask[end - 1]
            start = end
        assert start == len(row.response_ids)
    for number, (shape, (reward, failure)) in enumerate(made):
        scored = reward is not None and failure in (None, "policy")
        roles = {"a": "main"} | {"abcdefghij"[at]: role for at, (_, role, _) in enumerate(shape, 1)}
        for turn, role in roles.items():
            if role == "main":
                assert taught.get((f"s{number}", turn), 0) == int(scored), (number, turn)


@given(SESSIONS)
def test_a_group_that_forked_has_the_advantages_of_the_same_group_unforked(
    made: list[tuple[Shape, End]],
) -> None:
    forked = [row for number, (shape, end) in enumerate(made) for row in session(number, shape, end)]
    plain = [row for number, (_, end) in enumerate(made) for row in session(number, [], end)]
    whole, alone = prepare(forked), prepare(plain)
    assert (whole.scores, whole.mean, whole.deviation) == (alone.scores, alone.mean, alone.deviation)
    by_session = {row.trajectory.session_id: row.advantage for row in alone.rows}
    for row in whole.taught:
        assert row.advantage == by_session[row.trajectory.session_id]


def test_an_advantage_is_of_the_rows_own_reward_where_single_turns_were_rewarded() -> None:
    rows = [main(0, 1.0), replace(side(0, 0.5), role="subagent"), main(1, 0.0)]
    assert advantages(prepare(rows, scale=False)) == [0.5, 0.0, -0.5]


def turnwise(sample: int, *rewards: float) -> list[Trajectory]:
    """A session whose turns were rewarded: each of its rows has a reward of its own, and the last is the main one."""
    before = [
        trajectory(sample, role="main", trajectory_id=number, reward=reward)
        for number, reward in enumerate(rewards[:-1], 1)
    ]
    return [*before, main(sample, rewards[-1])]


SPREADS: dict[str, tuple[list[Trajectory], list[float]]] = {
    "sessions that all scored the same, and rows that did not": (
        [row for sample in range(4) for row in turnwise(sample, 0.25, 1.0)],
        [-1.0, 0.0] * 4,
    ),
    "one of them alone": (turnwise(0, 0.25, 1.0), [-1.0, 0.0]),
    "a single session of three rows": (turnwise(0, 0.0, 2.0, 1.0), [-1.0, 1.0, 0.0]),
    "sessions that scored nearly the same": (
        [*turnwise(0, 0.0, 1.0), *turnwise(1, 0.0, 0.999)],
        [-1.0, 0.001, -1.0, -0.001],
    ),
    "rows that scored as their session leave it as it is": (
        [*turnwise(0, 1.0, 1.0), main(1, 0.0)],
        [0.707, 0.707, -0.707],
    ),
}


@pytest.mark.parametrize(("rows", "found"), SPREADS.values(), ids=SPREADS)
def test_rows_with_rewards_of_their_own_are_divided_by_their_spread_too(
    rows: list[Trajectory], found: list[float]
) -> None:
    assert advantages(prepare(rows)) == pytest.approx(found, abs=2e-3)


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=4), min_size=1, max_size=8))
def test_no_advantage_is_far_beyond_what_a_group_of_that_size_can_have(rewards: list[list[float]]) -> None:
    group = prepare([row for sample, own in enumerate(rewards) for row in turnwise(sample, *own)])
    most = 2 * len(rewards) ** 0.5
    assert all(abs(row.advantage) <= most for row in group.rows)
