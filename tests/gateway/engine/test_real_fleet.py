"""Real gateway processes over engines that they share, as these see it; what `test_fleet.py` simulates, over HTTP."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from tests.bench.fleet import Found, run
from tests.bench.fleet_checker import Judged, Seen, Span, judged
from tests.gateway.engine.fleet_simulation import Shape

SPAN = Span(0.0, 100.0)
NODES = {f"http://engine-{number}": f"node-{number}" for number in range(4)}
Place = Callable[[int, int, int], int]
"""Group, sample, turn -> number of an engine."""


def played(place: Place, *, at_once: int = 1) -> Judged:
    """Sixteen groups of four sessions of ten turns, each of ten seconds, one after the other."""
    chance, seen = random.Random(1), []
    for group in range(16):
        task = array("i", (1000 * group + at for at in range(160)))
        for sample in range(4):
            ids = task + array("i", [sample])
            for turn in range(10):
                sampled = array("i", chance.choices(range(1000), k=40))
                url = f"http://engine-{place(group, sample, turn)}"
                came = 10.0 * turn
                seen.append(Seen(url, ids, came, at_once, came + 9.5, sampled, True, group, sample))
                ids = ids + sampled
    return judged(seen, NODES, SPAN, slots=2, blocks=4096, node_of=lambda group: f"node-{group % 4}")


PLACES: dict[str, tuple[Place, Callable[[Judged], bool]]] = {
    "each group on an engine of its own is even, and finds all there is": (
        lambda group, _, __: group % 4,
        lambda one: one.busiest == 1.0 and one.hits == one.by_group and one.here == 1.0,
    ),
    "all on one engine are four times the mean, and three engines are idle": (
        lambda *_: 0,
        lambda one: one.busiest == pytest.approx(4.0) and one.idle > 0.75 and one.here == 0.25,
    ),
    "sessions that wander find less than sessions that stay": (
        lambda group, sample, turn: (group + sample + turn) % 4,
        lambda one: one.busiest == 1.0 and one.hits < 0.9 * one.by_session < one.by_group,
    ),
    "an engine that rests between turns is idle then": (
        lambda group, _, __: group % 4,
        lambda one: one.idle == pytest.approx(0.05),
    ),
}


@pytest.mark.parametrize(("place", "so"), PLACES.values(), ids=PLACES)
def test_the_checker_sees(place: Place, so: Callable[[Judged], bool]) -> None:
    one = played(place)
    assert so(one), one


@pytest.mark.parametrize(("ahead", "waited"), [(1, 0.0), (2, 1.0)])
def test_a_turn_waits_where_all_slots_are_taken(ahead: int, waited: float) -> None:
    assert played(lambda *_: 0, at_once=ahead).waited == waited


# Fifteen seconds see where some groups happen to be, and on a starved machine who was late (4 times the mean was seen):
# the bounds are wide. Gateways that herd have 12 times the mean, and leave four of five engines idle.
# `python -m tests.bench.fleet` looks for longer, and at what 64 engines do when one is lost: docs/benchmarks.md.

SHORT: dict[str, Any] = {"turns": 4, "stagger_s": 4.0, "nodes": 8}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_8_engines_are_used_evenly_and_one_that_comes_has_its_share_as_one_that_goes() -> None:
    shape = Shape(gateways=8, engines=8, sessions=128, generate_s=2.0, tools_s=0.5, **SHORT)
    found = await run(shape, slots=14, warm_s=6.0, seconds=15.0, changed_s=8.0)
    agree(found)
    assert found.whole.busiest <= 3.0
    assert found.whole.waited > 0
    assert 0.25 <= found.new <= 4.0
    assert found.changed.idle <= 0.3
    assert found.changed.busiest <= 4.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_64_engines_are_used_evenly() -> None:
    shape = Shape(gateways=8, engines=64, sessions=384, generate_s=4.0, tools_s=3.0, **SHORT)
    found = await run(shape, slots=8, warm_s=8.0, seconds=15.0)
    agree(found)
    assert found.whole.busiest <= 6.0


def agree(found: Found) -> None:
    """What is so in every fleet."""
    assert not found.failures, "no turn fails, not those of an engine that is lost either"
    assert found.told == found.seen, "sandgate_turns_by_node_total says what engines saw"
    assert sum(found.seen.values()) == found.answered
    assert found.whole.idle <= 0.3
    assert found.whole.hits >= 0.85 * found.whole.by_session
    assert found.whole.here >= 0.4
