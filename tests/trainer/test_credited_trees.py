"""Packed trees with advantages: a group's are of the whole of it, into however many trees it was packed."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.export.credited_trees import credited_trees
from sandgate.trainer.export.packed import unpack
from sandgate.trainer.export.packing import pack_trees
from sandgate.trainer.export.tree_tensors import temperatures
from tests.trainer.trajectories import exact, trajectory

AT = st.sampled_from([0.25, 0.5, 1.0, 0.0])


@st.composite
def session(draw: st.DrawFn, number: int) -> list[Trajectory]:
    """A main row, and maybe a side call; it may have failed for no fault of the policy's."""
    lost = draw(st.booleans()) and draw(st.booleans())
    reward = None if lost else draw(st.sampled_from([0.0, 0.5, 1.0]))
    rows = [made(number, "main", draw(st.integers(1, 5)), reward)]
    if draw(st.booleans()):
        rows.append(made(number, "side", draw(st.integers(1, 3)), reward))
    if lost:
        why = FailureReason.EVICTED
        rows = [replace(row, failure_class=FailureClass.INFRA, failure_reason=why) for row in rows]
    return rows


def made(number: int, role: str, tokens: int, reward: float | None, **more: object) -> Trajectory:
    return trajectory(
        number,
        session_id=f"s{number}",
        trajectory_id=0 if role == "main" else 1,
        role=role,
        main=role == "main",
        prompt_ids=array("i", [1, 2]),
        response_ids=array("i", [10 * number + at for at in range(tokens)]),
        response_logprobs=array("f", [-0.5] * tokens),
        loss_mask=array("b", [1] * tokens),
        versions=array("i", [7] * tokens),
        **{
            "turn_ids": (f"t{number}{role}",),
            "turn_ends": (tokens,),
            "turn_rewards": (),
            "reward": reward,
            **more,
        },
    )


@given(data=st.data(), count=st.integers(1, 5), room=st.integers(1, 30))
def test_advantages_are_those_of_the_whole_group_however_it_was_packed(
    data: st.DataObject, count: int, room: int
) -> None:
    rows = [row for number in range(count) for row in data.draw(session(number))]
    trees = list(credited_trees(pack_trees(rows, max_tokens=room), max_tokens=room))
    found = [
        (exact(row), leaf.advantage)
        for tree in trees
        for row, leaf in zip(unpack(tree), tree.leaves, strict=True)
    ]
    assert found == [(exact(row.trajectory), row.advantage) for row in prepare(rows).taught]


def test_a_task_whose_trees_lie_apart_is_refused() -> None:
    apart = [made(0, "main", 2, 1.0), replace(made(1, "main", 2, 1.0), uid="q2"), made(2, "main", 2, 0.0)]
    with pytest.raises(InvalidBody, match="come in two places"):
        list(credited_trees(pack_trees(apart)))


OWN = {
    "the job's": ({"sampling": {"temperature": 0.5}}, 0.5),
    "none that was told is 1": ({"sampling": {}}, 1.0),
    "greedy is reported as at 1": ({"sampling": {"temperature": 0.0}}, 1.0),
    "raw logprobs are as at 1": (
        {"sampling": {"temperature": 0.5}, "logprobs_mode": "raw_logprobs"},
        1.0,
    ),
}


@pytest.mark.parametrize(("how", "wanted"), OWN.values(), ids=OWN)
def test_recorded_logprobs_are_recomputed_at(how: dict[str, object], wanted: float) -> None:
    row = made(1, "main", 3, 1.0, **{"logprobs_mode": "processed_logprobs", **how})
    (tree,) = pack_trees([row])
    assert temperatures(tree).tolist() == [wanted] * 5


@given(first=AT, second=AT, third=AT)
def test_each_trained_token_has_the_temperature_of_its_turn(
    first: float, second: float, third: float
) -> None:
    two = made(
        1, "main", 4, 1.0,
        turn_ids=("a", "b"), turn_ends=(1, 4), sampling={},
        turn_settings=({"sampling": {"temperature": first}}, {"sampling": {"temperature": second}}),
    )  # fmt: skip
    other = made(2, "main", 2, 0.0, sampling={"temperature": third})
    (tree,) = pack_trees([two, other])
    found = temperatures(tree)
    for leaf, wanted in zip(tree.leaves, ([first, *[second] * 3], [third] * 2), strict=True):
        got = found[tree.indices(leaf)[leaf.prompt_tokens :]]
        assert got.tolist() == np.array([at or 1.0 for at in wanted], np.float32).tolist()
