"""A tree as AReaL's interactions: whose tokens, whose rewards, in which order, in which bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody, TooLarge
from sandgate.gateway.journal.records import Rewarded
from sandgate.gateway.trajectories import interactions as subject
from sandgate.gateway.trajectories.interactions import Interaction, Tensor, in_order, interactions
from tests.gateway.trajectories.forest import T, seen


@dataclass(frozen=True)
class C(T):
    """A turn that knows when it was asked for."""

    number: int = 0
    created: int = 0


def calls(*said: str, created: Sequence[int] = ()) -> list[C]:
    """`"b<a"`: b's parent is a."""
    out = []
    for number, one in enumerate(said):
        name, _, parent = one.partition("<")
        when = created[number] if created else 0
        out.append(C(name, parent or None, number=number, created=when, version=number + 1))
    return out


def given_to(**rewards: float) -> list[Rewarded]:
    return [
        Rewarded(at=0.0, turn=None if name == "session" else name, reward=reward)
        for name, reward in rewards.items()
    ]


def values(tensor: Tensor) -> list[Any]:
    """As a reader on the other side takes it."""
    found: list[Any] = np.frombuffer(tensor.data, np.dtype(tensor.dtype)).reshape(tensor.shape).tolist()
    return found


def worth(found: Sequence[Interaction]) -> dict[str, float]:
    return {one.turn: one.reward for one in found}


# -- AReaL's own rule, written as AReaL writes it (areal/experimental/openai/cache.py) ------------------------------


def naive_discount(rewards: list[float | None], discount: float) -> list[float]:
    current, out = 0.0, []
    for reward in reversed(rewards):
        current = current * discount + (0.0 if reward is None else reward)
        out.append(current)
    return list(reversed(out))


@given(
    st.lists(st.none() | st.floats(-100, 100), min_size=1, max_size=12),
    st.floats(0, 1),
    st.data(),
)
def test_the_discount_walks_creation_order_whatever_the_tree(
    rewards: list[float | None], discount: float, data: st.DataObject
) -> None:
    names = [chr(97 + n) for n in range(len(rewards))]
    parents = [data.draw(st.sampled_from([None, *names[:n]])) for n in range(len(names))]
    turns = [C(name, parent, number=n) for n, (name, parent) in enumerate(zip(names, parents, strict=True))]
    own = {name: reward for name, reward in zip(names, rewards, strict=True) if reward is not None}
    found = interactions(turns, delivered=names, rewarded=given_to(**own), discount=discount)
    assert [one.turn for one in found] == names
    assert [one.reward for one in found] == naive_discount(rewards, discount)
    leaves = interactions(turns, delivered=names, rewarded=given_to(**own), discount=discount, style="concat")
    assert [one.turn for one in leaves] == [name for name in names if name not in parents]
    assert worth(leaves).items() <= worth(found).items()


@given(st.data())
def test_tensors_are_the_engines_tokens_and_nothing_else(data: st.DataObject) -> None:
    names = [chr(97 + n) for n in range(data.draw(st.integers(1, 8)))]
    turns: list[C] = []
    for number, name in enumerate(names):
        made = data.draw(st.integers(1, 4))
        cut = data.draw(st.integers(0, made))
        turns.append(
            C(
                name,
                data.draw(st.sampled_from([None, *names[:number]])),
                number=number,
                given=data.draw(st.integers(0, 3)),
                made=made,
                spans=((number, 0, cut), (number + 1, cut, made)),
            )
        )
    known = {turn.id: turn for turn in turns}
    for style in ("individual", "concat"):
        for one in interactions(turns, delivered=names, style=style):
            path = [known[one.turn]]
            while path[0].parent is not None:
                path.insert(0, known[path[0].parent])
            assert {name: values(tensor) for name, tensor in one.tensors.items()} == naive_row(
                path, one.reward, whole=style == "concat"
            )


def naive_row(path: list[C], reward: float, *, whole: bool) -> dict[str, list[Any]]:
    """Token by token."""
    rows: list[tuple[int, int, float, int]] = []
    for turn in path:
        rows += [(token, 0, 0.0, -1) for token in turn.context]
        for at, token in enumerate(turn.ids):
            version = next(version for version, first, end in turn.versions if first <= at < end)
            trained = whole or turn is path[-1]
            rows.append((token, 1, turn.logprobs[at], version) if trained else (token, 0, 0.0, -1))
    ids, mask, logprobs, versions = (list(column) for column in zip(*rows, strict=True))
    return {
        "input_ids": [ids],
        "loss_mask": [mask],
        "logprobs": [logprobs],
        "versions": [versions],
        "attention_mask": [[True] * len(rows)],
        "rewards": [float(np.float32(reward))],
    }


# -- tables ---------------------------------------------------------------------------------------------------------

WORTH: dict[str, tuple[list[str], dict[str, float], float, str, dict[str, float]]] = {
    "the seed's example": (["a", "b<a", "c<b"], {"c": 1.0}, 0.9, "individual", {"a": 0.81, "b": 0.9, "c": 1.0}),
    "nothing rewarded is worth nothing": (["a", "b<a"], {}, 1.0, "individual", {"a": 0.0, "b": 0.0}),
    "a session's reward is its last turn's": (["a", "b<a"], {"session": 1.0}, 0.5, "individual", {"a": 0.5, "b": 1.0}),
    "side calls are steps of the walk, too": (["a", "x"], {"x": 1.0}, 0.5, "individual", {"a": 0.5, "x": 1.0}),
    "concat gives leaves, in order of creation": (["a", "x", "b<a"], {"b": 1.0}, 0.5, "concat", {"x": 0.5, "b": 1.0}),
    "no discount leaves each its own": (["a", "b<a"], {"a": 3.0, "b": 1.0}, 0.0, "individual", {"a": 3.0, "b": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("case", WORTH)
def test_what_an_interaction_is_worth(case: str) -> None:
    said, rewards, discount, style, expected = WORTH[case]
    turns = calls(*said)
    found = interactions(
        turns, delivered=seen(turns), rewarded=given_to(**rewards), discount=discount, style=style
    )
    assert list(worth(found)) == list(expected)
    assert worth(found) == pytest.approx(expected)


def test_the_newest_reward_of_a_turn_counts() -> None:
    twice = [Rewarded(at=0.0, turn="a", reward=1.0), Rewarded(at=1.0, turn="a", reward=0.25)]
    assert worth(interactions(calls("a"), delivered={"a"}, rewarded=twice)) == {"a": 0.25}


def test_a_call_that_nobody_saw_is_left_out_but_its_reward_flows_back() -> None:
    turns = calls("a", "b<a")
    for style in ("individual", "concat"):
        found = interactions(turns, delivered={"a"}, rewarded=given_to(b=1.0), discount=0.5, style=style)
        assert worth(found) == {"a": 0.5}


def test_calls_are_in_order_of_their_asking_not_of_their_answers() -> None:
    slow, quick = calls("a", "b", created=[9, 8])
    assert in_order([slow, quick]) == [quick, slow]
    found = interactions([slow, quick], delivered={"a", "b"}, rewarded=given_to(a=1.0), discount=0.5)
    assert worth(found) == {"b": 0.5, "a": 1.0}
    assert list(worth(found)) == ["b", "a"]


def test_rewards_that_no_tensor_holds_are_refused() -> None:
    turns = calls("a", "b<a")
    with pytest.raises(InvalidBody, match="beyond float32"):
        interactions(turns, delivered=seen(turns), rewarded=given_to(a=3e38, b=3e38))


def test_no_calls_are_no_interactions() -> None:
    assert interactions([], delivered=(), rewarded=given_to(session=1.0)) == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "AReaL's docstring says merged, its code does not": ({"style": "merged"}, "style"),
    "a discount over one": ({"discount": 1.5}, "discount"),
    "a discount below nothing": ({"discount": -0.1}, "discount"),
    "a discount that is no number": ({"discount": float("nan")}, "discount"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_names_its_field(case: str) -> None:
    asked, field = REFUSED[case]
    with pytest.raises(InvalidBody) as raised:
        interactions(calls("a"), delivered={"a"}, **asked)
    assert raised.value.field == field


def test_an_export_that_is_too_large_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = calls("a", "b<a")  # 5 + 10 tokens one by one, 10 as one leaf
    monkeypatch.setattr(subject, "BYTES_MAX", 10 * subject.BYTES_PER_TOKEN)
    assert len(interactions(turns, delivered=seen(turns), style="concat")) == 1
    with pytest.raises(TooLarge, match="15 tokens in style individual"):
        interactions(turns, delivered=seen(turns))


def test_the_size_that_is_checked_is_the_size_that_is_made() -> None:
    (one,) = interactions(calls("a"), delivered={"a"})
    assert sum(len(tensor.data) for tensor in one.tensors.values()) == 5 * subject.BYTES_PER_TOKEN + 4
