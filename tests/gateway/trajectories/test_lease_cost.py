"""What a lease, an ack, a renewal and a nack cost does not grow with what is on loan. Counted, not timed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.gateway.trajectories.books import Journalled

FEW, MANY = 100, 10_000


def calls(work: Callable[[], object]) -> int:
    """Functions and builtins called, and steps of generators; none of what earlier tests left to be collected."""
    count = 0

    def saw(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(saw)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def with_on_loan(groups: int) -> Journalled:
    """So many groups on leases of their own, one of them about to end, and three that are free."""
    it = Journalled(size=1)
    for number in range(groups + 3):
        it.ended(f"q{number:06d}.0.0")
    for number in range(groups):
        it.lease(f"old{number}")
    return it


@pytest.fixture(scope="module")
def few() -> dict[str, int]:
    return counted(FEW)


@pytest.fixture(scope="module")
def many() -> dict[str, int]:
    return counted(MANY)


def counted(groups: int) -> dict[str, int]:
    it = with_on_loan(groups)
    found = {
        "lease": calls(lambda: it.lease("l1", job="shop")),
        "lease of any job": calls(lambda: it.lease("l2")),
        "renew": calls(lambda: it.renew("l1")),
        "renew the oldest": calls(lambda: it.renew("old0")),
        "nack": calls(lambda: it.nack("l1")),
        "lease what was given back": calls(lambda: it.lease("l3")),
        "ack": calls(lambda: it.ack("l3")),
        "ack the oldest": calls(lambda: it.ack("old0")),
        "status": calls(lambda: it.book.standing(it.now)),
    }
    it.lease("l4")
    assert it.lease("l5") == (), "nothing is free"
    found["nothing to lease"] = calls(lambda: it.lease("l6"))
    return found


@pytest.mark.parametrize("what", sorted(counted(1)))
def test_costs_the_same_beside_100_and_10000_leases(
    few: dict[str, int], many: dict[str, int], what: str
) -> None:
    assert few[what] > 0
    assert many[what] == few[what]


def test_leases_that_end_are_looked_at_once() -> None:
    def second_lease(groups: int) -> int:
        it = with_on_loan(groups)
        it.now += 1e6
        it.lease("first")
        return calls(lambda: it.lease("second"))

    assert second_lease(FEW) == second_lease(10 * FEW), "the ends were seen by the first"
