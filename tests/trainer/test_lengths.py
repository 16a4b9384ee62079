"""What is over a trainer's bound, or was ended by a limit: masked or left out and counted, never cut."""

from __future__ import annotations

from array import array
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.batches import kept_in_place, neutral_scores, taught
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.one_row import alone
from sandgate.trainer.credit.reasons import CreditRules
from tests.trainer.trajectories import trajectory

FITS, NARROW = Lengths(3, 5), Lengths(2, 5)


def main(sample: int, reward: float | None = 1.0, **more: Any) -> Trajectory:
    return trajectory(sample, **{"reward": reward, "role": "main", "main": True, **more})


WINDOW: dict[str, Any] = {"failure_class": "policy", "failure_reason": "ContextExceeded"}
TRUNCATED: dict[str, tuple[dict[str, Any], bool]] = {
    "the window": (WINDOW, True),
    "the turn limit": ({"failure_class": "policy", "failure_reason": "TurnLimit"}, True),
    "the token limit": ({"failure_class": "policy", "failure_reason": "TokenLimit"}, True),
    "its time": ({"failure_class": "policy", "failure_reason": "SessionTimeout"}, True),
    "an answer as long as it may be": ({"finish_reason": "length"}, True),
    "memory, which is no limit of length": ({"failure_class": "policy", "failure_reason": "OOMKilled"}, False),
    "nothing": ({"finish_reason": "stop"}, False),
}  # fmt: skip


@pytest.mark.parametrize(("end", "is_truncated"), TRUNCATED.values(), ids=TRUNCATED)
def test_what_ended_by_a_limit_counts_or_is_masked(end: dict[str, Any], is_truncated: bool) -> None:
    rows = [main(0, 1.0), main(1, 0.5), main(2, 0.0, **end)]
    assert not prepare(rows).left_out
    masked = prepare(rows, truncated="mask", scale=False)
    assert dict(masked.left_out) == ({"truncated": 1} if is_truncated else {})
    assert [row.advantage for row in masked.rows] == (
        [0.25, -0.25, 0.0] if is_truncated else [0.5, 0.0, -0.5]
    )


def test_a_row_over_the_bound_is_left_out_whole_with_the_rows_of_its_session() -> None:
    long = main(1, 0.0, prompt_ids=array("i", [1, 2, 3, 4]))
    sub = trajectory(1, reward=0.0, role="subagent", trajectory_id=1)
    group = prepare([main(0, 1.0), long, sub], lengths=FITS)
    assert (dict(group.left_out), group.scores) == ({"too_long": 2}, {"shop-q1-0": 1.0})
    kept, left = taught([main(0, 1.0), long, sub], CreditRules(lengths=FITS))
    assert (kept, dict(left)) == ([main(0, 1.0)], {"too_long": 2})


def test_a_branch_over_the_bound_leaves_the_rest_of_its_session_as_it_is() -> None:
    branch = trajectory(0, role="subagent", trajectory_id=1, prompt_ids=array("i", [1] * 9))
    group = prepare([main(0, 1.0), branch, main(1, 0.0)], lengths=FITS, scale=False)
    assert ([row.advantage for row in group.rows], dict(group.left_out)) == (
        [0.5, 0.0, -0.5],
        {"too_long": 1},
    )


def test_a_row_that_keeps_its_place_though_it_does_not_fit_is_one_masked_token_after_another() -> None:
    rows, whys = kept_in_place([main(0, 1.0), main(1, 0.5)], CreditRules(lengths=NARROW))
    assert [row.prompt_ids.tolist() + row.response_ids.tolist() for row in rows] == [[1, 10], [1, 10]]
    assert [row.loss_mask.tolist() for row in rows] == [[0], [0]]
    assert [why and why.value for why in whys] == ["too_long", "too_long"]


@pytest.mark.parametrize("lengths", [(0, 1), (1, 0)])
def test_no_length_is_no_bound(lengths: tuple[int, int]) -> None:
    with pytest.raises(InvalidBody, match="length must be at least 1"):
        Lengths(*lengths)


SCORES = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=20)


@given(SCORES, st.integers(2, 20))
def test_two_or_more_neutral_scores_change_neither_mean_nor_deviation(
    scores: list[float], count: int
) -> None:
    whole = scores + neutral_scores(scores, count)
    assert len(whole) == len(scores) + count
    assert fmean(whole) == pytest.approx(fmean(scores), abs=1e-9, rel=1e-9)
    assert stdev(whole) == pytest.approx(stdev(scores), abs=1e-9, rel=1e-9)


NEUTRAL: dict[str, tuple[list[float], int, list[float]]] = {
    "none": ([1.0, 0.0], 0, []),
    "one keeps the mean": ([1.0, 0.0], 1, [0.5]),
    "beside one score all are equal to it": ([0.25], 3, [0.25] * 3),
    "beside no score": ([], 2, [0.0, 0.0]),
}


@pytest.mark.parametrize(("scores", "count", "found"), NEUTRAL.values(), ids=NEUTRAL)
def test_neutral_scores(scores: list[float], count: int, found: list[float]) -> None:
    assert neutral_scores(scores, count) == found


SHARED: dict[str, Any] = {"versions": array("i", [-1] * 5), "response_logprobs": array("f", [0.0] * 5)}


def test_one_row_of_a_session_has_all_that_was_sampled_on_it() -> None:
    whole = trajectory(0, role="main")
    main_again = trajectory(
        0, role="main", main=True, trajectory_id=1, turn_ids=("a", "c"),
        loss_mask=array("b", [0, 0, 0, 0, 1]), versions=array("i", [-1, -1, -1, -1, 9]),
        response_logprobs=array("f", [0, 0, 0, 0, -0.5]),
    )  # fmt: skip
    found = alone([whole, main_again])
    assert (found.trajectory_id, found.loss_mask.tolist()) == (1, [1, 1, 0, 0, 1])
    assert found.versions.tolist() == [7, 7, -1, -1, 9]
    assert found.response_logprobs == array("f", [-0.1, -0.2, 0.0, 0.0, -0.5])


def test_a_row_that_has_all_of_it_is_itself() -> None:
    row = main(0)
    assert alone([row]) is row


def test_a_row_with_other_ids_under_the_same_turn_gives_nothing() -> None:
    other = trajectory(0, trajectory_id=1, response_ids=array("i", [90, 91, 4, 5, 12]))
    bare = main(0, loss_mask=array("b", [0] * 5), **SHARED)
    assert alone([bare, other]).loss_mask.tolist() == [0, 0, 0, 0, 1]


def test_what_teaches_and_what_does_not_is_counted_by_reason() -> None:
    counters = RowCounters()
    counters.add(3, {"too_long": 2})
    counters.add(1, {"too_long": 1, "failure": 1})
    found = counters.metrics()
    assert (found["rows/taught"], found["rows/left_out/too_long"], found["rows/left_out/role"]) == (4, 3, 0)
    lines = counters.prometheus(job='a"b').splitlines()
    assert 'sandgate_trainer_rows_taught_total{job="a\\"b"} 4' in lines
    assert 'sandgate_trainer_rows_left_out_total{job="a\\"b",reason="too_long"} 3' in lines
