"""What a trajectory says about itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.errors import CorruptRecord
from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.trajectory import from_json, to_json
from tests.trainer.trajectories import trajectory

MASKED: dict[str, tuple[dict[str, Any], bool]] = {
    "what ended well is trained on": ({}, False),
    "what ended well, for a reward of nothing": ({"reward": 0.0}, False),
    "what nobody gave a reward is masked": ({"reward": None}, True),
    "the policy's own failure is trained on": ({"failure_class": FailureClass.POLICY}, False),
    "a failure of the agent without a reward is masked": (
        {"failure_class": FailureClass.POLICY, "reward": None}, True),
    "a crashed agent's is masked": ({"failure_class": FailureClass.AGENT}, True),
    "the infrastructure's is masked": ({"failure_class": FailureClass.INFRA}, True),
    "as it is read from a file: the policy's": ({"failure_class": "policy"}, False),
    "as it is read from a file: the infrastructure's": ({"failure_class": "infra"}, True),
    "a class that a later writer added is masked": ({"failure_class": "later"}, True),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "masked"), MASKED.values(), ids=MASKED)
def test_masked(changes: dict[str, Any], masked: bool) -> None:
    row = trajectory(**changes)
    assert row.masked is masked
    assert to_json(row)["masked"] is masked


def test_who_fills_in_a_reward_fills_in_what_follows_from_it() -> None:
    assert not replace(trajectory(reward=None), reward=0.5).masked
    assert replace(trajectory(), reward=None).masked


@pytest.mark.parametrize("said", [True, None], ids=["another word", "no word"])
def test_a_record_s_own_word_on_it_is_not_needed_and_not_taken(said: bool | None) -> None:
    value = {**to_json(trajectory()), "masked": said}
    if said is None:
        del value["masked"]
    assert from_json(value) == trajectory()


def test_a_word_on_it_that_is_none_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="masked cannot be str"):
        from_json({**to_json(trajectory()), "masked": "yes"})
