"""A trainer's signs of life, told by gateways whose clocks are not the operator's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.operator.cluster.heard_trainers import HeardTrainers
from sandgate.operator.observed import events
from sandgate.operator.observed.fold import apply
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.ends import silent
from tests.operator.plans import want

NOW = 1_700_000_000.0


def status(seen_at: float | None, age_s: float | None) -> dict[str, Any]:
    return {"trainer_seen_at": None if seen_at is None else NOW + seen_at, "trainer_age_s": age_s}


SAID: dict[str, tuple[list[tuple[str, dict[str, Any], float]], float]] = {
    "its clock is right": ([("a", status(-1.0, 1.0), 0.0)], -1.0),
    "its clock is behind": ([("a", status(-121.0, 1.0), 0.0)], -1.0),
    "its clock is ahead": ([("a", status(3599.0, 1.0), 0.0)], -1.0),
    "it is an older gateway": ([("a", {"trainer_seen_at": NOW - 9.0}, 0.0)], -9.0),
    "it is asked again": ([("a", status(-121.0, 1.0), 0.0), ("a", status(-121.0, 5.9), 5.0)], -1.0),
    "it heard one again": ([("a", status(-121.0, 1.0), 0.0), ("a", status(-118.0, 2.0), 4.0)], 2.0),
    "its clock was set": ([("a", status(-121.0, 1.0), 0.0), ("a", status(5.0, 0.5), 10.0)], 9.5),
    "of two the one that heard it last counts, not the one that is ahead": (
        [("a", status(300.0, 200.0), 0.0), ("b", status(-121.0, 1.0), 0.0)], -1.0,
    ),
}  # fmt: skip
"""Case -> what gateways said, each when (seconds after NOW), and when a trainer was last heard."""


@pytest.mark.parametrize(("said", "heard"), SAID.values(), ids=SAID)
def test_when_a_trainer_was_heard_is_told_by_the_operators_clock(
    said: list[tuple[str, dict[str, Any], float]], heard: float
) -> None:
    trainers = HeardTrainers()
    for gateway, one, at in said:
        trainers.says(gateway, one, NOW + at)
    assert trainers.newest == NOW + heard


def test_none_was_heard_and_all_have_said_so() -> None:
    trainers = HeardTrainers()
    assert (trainers.newest, trainers.all_told(["a"])) == (0.0, False)
    trainers.says("a", status(None, None), NOW)
    assert (trainers.newest, trainers.all_told(["a"]), trainers.all_told(["a", "b"])) == (0.0, True, False)


@pytest.mark.parametrize("ahead", [0.0, -120.0, 3600.0], ids="the gateway is ahead by {} s".format)
def test_a_trainer_that_beats_is_not_silent_and_one_that_does_not_is(ahead: float) -> None:
    asked, trainers = want(trainer={"heartbeatSeconds": 60}), HeardTrainers()
    seen = apply(Observed(want=asked, started_at=NOW - 1000), events.GatewayChanged("g", ready=True))
    seen = replace(seen, heard_at=NOW - 1000)
    trainers.says("g", status(ahead - 1.0, 1.0), NOW)
    seen = apply(seen, events.TrainerHeard(trainers.newest, NOW, True))
    assert not silent(asked.spec, seen.job(), NOW + 58)
    assert silent(asked.spec, seen.job(), NOW + 60)
