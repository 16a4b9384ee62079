"""Rewards -> credit: AReaL's rule on a conversation, sums on a tree, the session's score everywhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.journal.records import Rewarded
from sandgate.gateway.trajectories.credit import Credit, credit, discounted, finite

Rewards = dict[str | None, float]

CASES: dict[str, tuple[list[str], Rewards, float | None, float, dict[str, float], dict[str, float]]] = {
    "no reward, no credit": (["abc"], {}, None, 0.9, {}, {}),
    "AReaL's example: the last reward flows back": (
        ["abc"], {"c": 1.0}, None, 0.5, {"a": 0.25, "b": 0.5, "c": 1.0}, {"c": 0.25},
    ),
    "a reward on the way counts from there back": (
        ["abc"], {"b": 2.0, "c": 4.0}, None, 0.5, {"a": 2.0, "b": 4.0, "c": 4.0}, {"c": 2.0},
    ),
    "the session's score is the trajectory's reward": (
        ["abc"], {None: 1.0}, None, 0.5, {"a": 0.25, "b": 0.5, "c": 1.0}, {"c": 1.0},
    ),
    "what the seal says wins over an earlier session reward": (
        ["a"], {None: 1.0}, 3.0, 1.0, {"a": 3.0}, {"a": 3.0},
    ),
    "a session reward of zero is a reward": (["ab"], {}, 0.0, 1.0, {"a": 0.0, "b": 0.0}, {"b": 0.0}),
    "the session's score is broadcast to every trajectory": (
        ["ab", "c", "ad"], {}, 1.0, 1.0, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, {"b": 1.0, "c": 1.0, "d": 1.0},
    ),
    "a fork does not count the session's score twice": (
        ["ab", "ac"], {}, 1.0, 0.5, {"a": 0.5, "b": 1.0, "c": 1.0}, {"b": 1.0, "c": 1.0},
    ),
    "it flows back along the child that was continued last": (
        ["ab", "acd"], {}, 1.0, 0.5, {"a": 0.25, "b": 1.0, "c": 0.5, "d": 1.0}, {"b": 1.0, "d": 1.0},
    ),
    "also if that child was the first": (
        ["abd", "ac", "abe"], {}, 1.0, 0.5,
        {"a": 0.25, "b": 0.5, "c": 1.0, "d": 1.0, "e": 1.0}, {"d": 1.0, "c": 1.0, "e": 1.0},
    ),
    "own rewards of all children add up": (
        ["ab", "ac"], {"b": 1.0, "c": 2.0}, None, 0.5, {"a": 1.5, "b": 1.0, "c": 2.0}, {"b": 0.5, "c": 1.0},
    ),
    "only the final trajectory was scored: broadcast": (
        ["ab", "c"], {"c": 2.0}, None, 0.5, {"a": 1.0, "b": 2.0, "c": 2.0}, {"b": 2.0, "c": 2.0},
    ),
    "with several scored, the last one is broadcast": (
        ["a", "b", "c"], {"a": 1.0, "b": 2.0}, None, 1.0,
        {"a": 1.0, "b": 2.0, "c": 2.0}, {"a": 1.0, "b": 2.0, "c": 2.0},
    ),
    "turn rewards shape turns, the session's score the trajectory": (
        ["ab"], {"a": 0.5}, 1.0, 1.0, {"a": 1.5, "b": 1.0}, {"b": 1.0},
    ),
    "no discount at all leaves each turn its own": (
        ["ab"], {"a": 3.0, "b": 1.0}, None, 0.0, {"a": 3.0, "b": 1.0}, {"b": 3.0},
    ),
    "a reward for a branch that was left out changes nothing": (["a"], {"z": 1.0}, None, 1.0, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "given_", "reward", "discount", "turns", "leaves"), CASES.values(), ids=CASES
)
def test_credit(
    paths: list[str],
    given_: Rewards,
    reward: float | None,
    discount: float,
    turns: dict[str, float],
    leaves: dict[str, float],
) -> None:
    rewarded = [Rewarded(at=0.0, turn=turn, reward=value) for turn, value in given_.items()]
    assert credit(paths, rewarded, reward=reward, discount=discount) == Credit(turns, leaves)


def test_the_newest_reward_counts() -> None:
    rewarded = [
        Rewarded(at=0.0, turn=turn, reward=value) for turn, value in (("a", 1.0), (None, 2.0), ("a", 3.0))
    ]
    assert credit(["a"], [*rewarded, Rewarded(at=0.0, turn=None, reward=4.0)]).leaves == {"a": 4.0}
    assert credit(["a"], [rewarded[0], rewarded[2]]).turns == {"a": 3.0}


BAD = {"NaN": math.nan, "infinity": math.inf, "an int beyond float64": 10**400}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_a_reward_that_is_not_finite_is_refused(value: float) -> None:
    for kind in ({"reward": value}, {"rewarded": [Rewarded(at=0.0, turn="a", reward=value)]}):
        with pytest.raises(InvalidBody, match="reward must be a finite number") as caught:
            credit(["a"], kind.get("rewarded", []), reward=kind.get("reward"))  # type: ignore[arg-type]
        assert caught.value.field == "reward"


def test_rewards_that_add_up_to_infinity_are_refused() -> None:
    rewarded = [Rewarded(at=0.0, turn=turn, reward=1.7e308) for turn in "ab"]
    with pytest.raises(InvalidBody, match="beyond float64"):
        credit(["ab"], rewarded)


@pytest.mark.parametrize("discount", [-0.1, 1.1, math.nan])
def test_a_discount_outside_0_to_1_is_refused(discount: float) -> None:
    with pytest.raises(InvalidBody) as caught:
        credit(["a"], [], reward=1.0, discount=discount)
    assert caught.value.field == "discount"


@pytest.mark.parametrize("value", [True, "1", None, [1.0]])
def test_what_is_no_number_is_no_reward(value: object) -> None:
    with pytest.raises(InvalidBody):
        finite(value, "reward")


def test_areal_walks_all_interactions_newest_to_oldest() -> None:
    assert discounted("abc", {"b": 1.0, "c": None}, 0.5) == {"a": 0.5, "b": 1.0, "c": 0.0}


@given(
    rewards=st.lists(st.none() | st.floats(-10, 10, width=16), min_size=1, max_size=8),
    discount=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_on_one_conversation_both_rules_agree(rewards: list[float | None], discount: float) -> None:
    turns = [f"t{number}" for number in range(len(rewards))]
    named = dict(zip(turns, rewards, strict=True))
    rewarded = [
        Rewarded(at=0.0, turn=turn, reward=value) for turn, value in named.items() if value is not None
    ]
    areal = discounted(turns, named, discount)
    mine = credit([turns], rewarded, discount=discount)
    assert mine.turns == (pytest.approx(areal) if rewarded else {})
