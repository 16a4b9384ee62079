"""No told turn is lost, none is doubled, every trajectory is exactly what the engine sampled: whatever happens between.

A seed that fails prints its last events; `python -m tests.simulation --seeds N --log 600` shows them all.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter

import pytest

from tests.simulation.__main__ import run

SEEDS = 100
"""The same each time; `python -m tests.simulation --seeds 0:5000` looks longer."""
LINES = 80


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Faults are the point here: what the gateway logs about them is not."""
    caplog.set_level(logging.CRITICAL, "sandgate.gateway")


@functools.cache
def seen(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong with this world, and what happened in it."""
    wrong, world = run(seed)
    told = [f"seed={seed}", *list(world.history.lines)[-LINES:], *wrong] if wrong else []
    return "\n".join(told), Counter(world.history.counts)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_turn_is_lost_or_doubled(seed: int) -> None:
    wrong, _ = seen(seed)
    assert not wrong, wrong


def test_a_seed_is_one_world() -> None:
    """Else a failing seed could not be looked into."""
    for seed in range(5):
        (_, first), (_, second) = run(seed), run(seed)
        assert first.history.digest == second.history.digest, f"seed={seed}"
        assert first.loop.steps == second.loop.steps


def test_these_worlds_are_rough() -> None:
    """Kills, cuts and faults do happen, and turns are told all the same: an idle world would prove nothing."""
    counts = sum((seen(seed)[1] for seed in range(60)), Counter[str]())
    for word in (
        "kill",
        "term",
        "cut",
        "refused",
        "over",
        "weights",
        "lease",
        "ack",
        "aborted",
        "spoil",
        "restart",
    ):
        assert counts[word] > 0, f"no {word} in 60 worlds"
    assert counts["told"] > 100
