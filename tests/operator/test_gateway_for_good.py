"""A job whose gateway does not come back, as its disk is in a zone that is lost: it says so, and it ends."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.status import JobCondition
from sandgate.operator.plan.actions import JobObserved, WakeAt
from sandgate.operator.plan.conditions import find, is_true
from sandgate.operator.plan.ends import AWAY_S, LIVES_AWAY_S
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.status import job_status
from tests.operator.plans import group, seen, want

LOST, OTHER = "shop-gateway-0", {"shop-gateway-1": 0}
WANTED = want(groupSize=2, activeDeadlineSeconds=100)


def job(letters: str = "g w", gateways: dict[str, int] = OTHER, **more: Any) -> JobObserved:
    return seen(group("a", letters, gateway=LOST), gateways=gateways, started_at=0.0, **more)


def test_it_says_what_it_waits_for() -> None:
    told = find(job_status(WANTED, job(), 1.0), JobCondition.PROGRESSING)
    assert told is not None
    assert (told.reason, told.message) == ("Waiting", f"1 group waits for what does not answer: {LOST}")


GIVEN_UP: dict[str, tuple[JobObserved, float, bool]] = {
    "it may come back a while after the deadline": (job(), 100.0 + AWAY_S - 1, False),
    "then the job has failed": (job(), 100.0 + AWAY_S, True),
    "not with a session that ran there: a gateway may be away for a moment": (
        job("g x"),
        100.0 + LIVES_AWAY_S - 1,
        False,
    ),
    "but a day after the deadline": (job("g x"), 100.0 + LIVES_AWAY_S, True),
    "and of a job with one gateway": (job(gateways={}), 100.0 + AWAY_S, True),
    "a session at one that answers is waited for": (job("g x", gateways={LOST: 1}), 1e6, False),
    "a group at one that answers is closed first": (job(gateways={LOST: 0}), 1e6, False),
}


@pytest.mark.parametrize(("observed", "now", "failed"), GIVEN_UP.values(), ids=GIVEN_UP)
def test_it_ends_some_time_after_its_deadline(observed: JobObserved, now: float, failed: bool) -> None:
    status = job_status(WANTED, observed, now)
    assert is_true(status, JobCondition.FAILED) is failed
    assert bool(status.completion_time) is failed


def test_that_time_is_waited_for() -> None:
    assert WakeAt(100.0 + AWAY_S) in plan_job(WANTED, job(), 100.0)
