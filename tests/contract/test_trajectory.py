"""What a trajectory says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.errors import FailureClass
from tests.trainer.trajectories import trajectory

MASKED: dict[str, tuple[dict[str, Any], bool]] = {
    "what ended well is trained on": ({}, False),
    "what ended well, for a reward of nothing": ({"reward": 0.0}, False),
    "what nobody gave a reward is masked": ({"reward": None}, True),
    "the policy's own failure is trained on": ({"failure_class": FailureClass.POLICY}, False),
    "its failure without a reward is masked": (
        {"failure_class": FailureClass.POLICY, "reward": None}, True),
    "a crashed agent's is masked": ({"failure_class": FailureClass.AGENT}, True),
    "the infrastructure's is masked": ({"failure_class": FailureClass.INFRA}, True),
    "as it is read from a file: the policy's": ({"failure_class": "policy"}, False),
    "as it is read from a file: the infrastructure's": ({"failure_class": "infra"}, True),
    "a class that a later writer added is masked": ({"failure_class": "later"}, True),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "masked"), MASKED.values(), ids=MASKED)
def test_masked(changes: dict[str, Any], masked: bool) -> None:
    assert trajectory(**changes).masked is masked
