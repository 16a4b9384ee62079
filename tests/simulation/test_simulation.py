"""No told turn is lost, none is doubled, every trajectory is exactly what the engine sampled: whatever happens between.

A seed that fails prints its last events; `python -m tests.simulation --seeds N --log 600` shows them all.
"""

from __future__ import annotations

import logging

import pytest

from tests.simulation.__main__ import run

SEEDS = 200
"""About half a minute; `python -m tests.simulation --seeds 0:5000` looks longer."""
LINES = 80


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Faults are the point here: what the gateway logs about them is not."""
    caplog.set_level(logging.CRITICAL, "sandgate.gateway")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_turn_is_lost_or_doubled(seed: int) -> None:
    wrong, world = run(seed)
    assert not wrong, "\n".join([f"seed={seed}", *list(world.history.lines)[-LINES:], *wrong])


def test_a_seed_is_one_world() -> None:
    """Else a failing seed could not be looked into."""
    for seed in range(5):
        (_, first), (_, second) = run(seed), run(seed)
        assert first.history.digest == second.history.digest, f"seed={seed}"
        assert first.loop.steps == second.loop.steps


def test_these_worlds_are_rough() -> None:
    """Kills, cuts and faults do happen, and turns are told all the same: an idle world would prove nothing."""
    seen: dict[str, int] = {}
    for seed in range(60):
        for word, count in run(seed)[1].history.counts.items():
            seen[word] = seen.get(word, 0) + count
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
        assert seen.get(word, 0) > 0, f"no {word} in 60 worlds"
    assert seen["told"] > 100
