"""Trajectories for tests: one plain, and every one that the record's type allows."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import strategies as st

from sandgate.contract.trajectory import Trajectory

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(max_size=4), JSON, max_size=3)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MICROSECONDS = st.integers(0, 4_000_000_000 * 10**6)


def trajectory(number: int = 0, **changes: Any) -> Trajectory:
    """Two turns, three sampled tokens, two of context between them."""
    return Trajectory(
        **{
            "job": "shop",
            "uid": "q1",
            "session_id": f"shop-q1-{number}",
            "trajectory_id": 0,
            "sample_index": number,
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
            "created_at": 1_700_000_000.25,
            **changes,
        }
    )


@st.composite
def trajectories(draw: st.DrawFn, *, any_floats: bool = True) -> Trajectory:
    """Any trajectory. `any_floats`: also NaN and infinities, which JSON cannot carry."""
    n = draw(st.integers(0, 12))
    float32 = (
        st.floats(width=32) if any_floats else st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
    turns = draw(st.lists(st.tuples(TEXT, INT32), max_size=3))
    settings = draw(st.just(()) | st.tuples(*[OBJECT] * len(turns)))
    rewards = draw(st.just(()) | st.tuples(*[FINITE] * len(turns)))
    text: dict[str, Any] = {
        name: draw(TEXT) for name in ("finish_reason", "fork_reason", "parent_turn", "model", "renderer")
    }
    text |= {name: draw(TEXT) for name in ("engine", "logprobs_mode", "tokenizer_digest")}
    return Trajectory(
        job=draw(TEXT),
        uid=draw(TEXT),
        session_id=draw(TEXT),
        trajectory_id=draw(INT32),
        sample_index=draw(INT32),
        attempt=draw(INT32),
        prompt_ids=array("i", draw(st.lists(INT32, max_size=6))),
        response_ids=array("i", draw(st.lists(INT32, min_size=n, max_size=n))),
        response_logprobs=array("f", draw(st.lists(float32, min_size=n, max_size=n))),
        loss_mask=array("b", draw(st.lists(st.integers(-128, 127), min_size=n, max_size=n))),
        versions=array("i", draw(st.lists(INT32, min_size=n, max_size=n))),
        turn_ids=tuple(name for name, _ in turns),
        turn_ends=tuple(end for _, end in turns),
        turn_rewards=tuple(rewards),
        reward=draw(st.none() | FINITE),
        reward_info=draw(OBJECT),
        sampling=draw(OBJECT),
        turn_settings=tuple(settings),
        metadata=draw(OBJECT),
        failure_class=draw(st.none() | TEXT),
        failure_reason=draw(st.none() | TEXT),
        complete=draw(st.booleans()),
        multimodal=draw(st.none() | st.binary(max_size=6)),
        routed_experts=draw(st.none() | st.binary(max_size=6)),
        created_at=draw(MICROSECONDS) / 1e6,
        **text,
    )


def exact(one: Trajectory) -> dict[str, Any]:
    """Every field such that equal means equal to the bit: arrays as (typecode, bytes), floats as their text."""
    found: dict[str, Any] = {}
    for name in Trajectory.__dataclass_fields__:
        value = getattr(one, name)
        found[name] = (value.typecode, value.tobytes()) if isinstance(value, array) else repr(value)
    return found
