"""A job that is over, or stands still: what is told of it, and when it and its gateways go: a row is a situation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.status import ConditionStatus, JobCondition
from sandgate.operator.plan.actions import (
    Action,
    CloseGroup,
    DeleteJob,
    Hopeless,
    JobObserved,
    Provide,
    Provided,
    SampleTally,
    StopAttempt,
    WakeAt,
    WriteStatus,
)
from sandgate.operator.plan.conditions import is_true
from sandgate.operator.plan.ends import OVER
from sandgate.operator.plan.fruitless_samples import FruitlessSamples
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.status import job_status
from tests.operator.plans import GATEWAY, group, ref, seen, status_of, want

CRASHES = FruitlessSamples.of([("AgentExit", "exit code 127: \"python3: can't open file 'x'\"")] * 2)


def test_a_job_that_is_over_starts_nothing_and_still_counts_commits() -> None:
    done = status_of(seen(tally=SampleTally(ended=2), total=2))
    assert is_true(done, JobCondition.COMPLETE)
    assert plan_job(want(), seen(tally=SampleTally(ended=2), total=2, status=done), 1.0) == []
    more = seen(fresh="z", tally=SampleTally(ended=2), total=2, committed=2, status=done)
    (action,) = plan_job(want(), more, 1.0)
    assert isinstance(action, WriteStatus)
    assert action.status.committed == 2
    assert is_true(action.status, JobCondition.COMPLETE)


def test_what_lives_in_a_job_that_is_over_is_stopped() -> None:
    """A new operator may find a session open that the one before never began."""
    tally = SampleTally(ended=2)
    done = status_of(seen(tally=tally, total=2))
    found = seen(group("a", "g s1"), tally=tally, total=2, status=done)
    stops = [one for one in plan_job(want(groupSize=2), found, 1.0) if isinstance(one, StopAttempt)]
    assert stops == [StopAttempt(ref("a", 1, 1), OVER)]
    again = seen(group("a", "g x1"), tally=tally, total=2, status=done)
    assert not any(isinstance(one, StopAttempt) for one in plan_job(want(groupSize=2), again, 1.0))


CLOSED: list[Action] = [CloseGroup("a", GATEWAY)]
LOST: dict[str, tuple[dict[str, Any], dict[str, Any], list[Action]]] = {
    "of a job that is complete": ({"tally": SampleTally(ended=1)}, {}, CLOSED),
    "of one that ran out of time": (
        {"tally": SampleTally(ended=1), "fresh": "z", "started_at": -90.0},
        {},
        CLOSED,
    ),
    "not of one that goes on once its cause is mended": (
        {"hopeless": Hopeless("ProgramMissing", "python3")},
        {},
        [],
    ),
    "not while its gateway is away": ({"tally": SampleTally(ended=1)}, {"gateways": {}}, []),
}


@pytest.mark.parametrize(("end", "more", "actions"), LOST.values(), ids=LOST)
def test_groups_that_turn_out_to_be_lost_are_closed(
    end: dict[str, Any], more: dict[str, Any], actions: list[Action]
) -> None:
    fields = {"activeDeadlineSeconds": 50} if "started_at" in end else {}
    done = status_of(seen(**end), 0.0, **fields)
    assert done.completion_time
    again = seen(group("a", "i"), tally=SampleTally(ended=1), status=done, **more)
    plan = plan_job(want(**fields), again, 500.0)
    assert [one for one in plan if not isinstance(one, WriteStatus)] == actions


def test_what_was_said_to_be_lost_stays_said() -> None:
    """AgentSessions go, and an operator that starts anew counts fewer."""
    tallies = [SampleTally(ended=4, failed=lost, lost=lost) for lost in (3, 1, 0)]
    status = None
    for tally in tallies:
        status = status_of(seen(tally=tally, total=4, owed=0, status=status), 1000.0)
        conditions = {one.type: one for one in status.conditions}
        assert conditions["Complete"].message.startswith("3 of 4 samples were lost")
        assert conditions["Collected"].reason == "GroupsLost"


DONE: dict[str, Any] = {"tally": SampleTally(ended=1), "total": 1, "provided": Provided.STOPPED}
ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], float, list[Action]]] = {
    "without a ttl a job stays": ({"ttlSecondsAfterFinished": None}, {"owed": 0}, 9e9, []),
    "the ttl runs from the end": ({"ttlSecondsAfterFinished": 60}, {"owed": 0}, 1059.0, [WakeAt(1060.0)]),
    "then the job deletes itself": ({"ttlSecondsAfterFinished": 60}, {"owed": 0}, 1060.0, [DeleteJob()]),
    "trajectories win over the ttl": ({"ttlSecondsAfterFinished": 60}, {"owed": 1}, 1060.0, [WakeAt(4600.0)]),
    "not for ever": ({"ttlSecondsAfterFinished": 60}, {"owed": 1}, 4600.0, [DeleteJob()]),
    "a trainer that is heard has its time anew": (
        {"ttlSecondsAfterFinished": 60, "trainer": {"collectSeconds": 100}},
        {"owed": 1, "heard_at": 1500.0},
        1500.0,
        [WakeAt(1600.0)],
    ),
    "so has one that nobody awaits": (
        {"ttlSecondsAfterFinished": 60},
        {"owed": 1, "trainer_at": 4599.0},
        4600.0,
        [WakeAt(8199.0)],
    ),
    "an operator that starts anew gives it time to be heard": (
        {"ttlSecondsAfterFinished": 60},
        {"owed": None, "since": 9000.0, "trainer_at": None},
        9001.0,
        [WakeAt(12600.0)],
    ),
    "what is to be written to files is waited for": (
        {"ttlSecondsAfterFinished": 60, "output": {"parquet": {"url": "s3://b/d"}}},
        {"owed": 1},
        9e9,
        [],
    ),
    "and once all is written the ttl runs": (
        {"ttlSecondsAfterFinished": 60, "output": {"parquet": {"url": "s3://b/d"}}},
        {"owed": 0},
        1060.0,
        [DeleteJob()],
    ),
    "a trainer has its time to hear of what was lost": (
        {"ttlSecondsAfterFinished": 60},
        {"owed": 0, "lost": 1},
        1060.0,
        [WakeAt(4600.0)],
    ),
    "of files nobody hears": (
        {"ttlSecondsAfterFinished": 60, "output": {"parquet": {"url": "s3://b/d"}}},
        {"owed": 0, "lost": 1},
        1060.0,
        [DeleteJob()],
    ),
    "while nobody knows what is owed, it is owed": (
        {"ttlSecondsAfterFinished": 60},
        {"owed": None},
        1060.0,
        [WakeAt(4600.0)],
    ),
}


@pytest.mark.parametrize(("fields", "more", "now", "actions"), ENDS.values(), ids=ENDS)
def test_when_a_finished_job_goes(
    fields: dict[str, Any], more: dict[str, Any], now: float, actions: list[Action]
) -> None:
    more = dict(more)
    tally = SampleTally(ended=1, failed=(lost := more.pop("lost", 0)), lost=lost)
    done = status_of(seen(**(DONE | {"tally": tally}), owed=1), 1000.0)
    plan = plan_job(want(**fields), seen(**(DONE | {"tally": tally}), **more, status=done), now)
    assert [one for one in plan if not isinstance(one, WriteStatus)] == actions


def test_a_finished_job_goes_though_the_api_server_takes_nothing_of_it() -> None:
    done = status_of(seen(**DONE), 1000.0)
    late = seen(**(DONE | {"provided": Provided.NOTHING}), status=done)
    plan = plan_job(replace(want(ttlSecondsAfterFinished=60), unprovided="Service shop: 403"), late, 9000.0)
    assert [one for one in plan if not isinstance(one, WriteStatus)] == [
        Provide(Provided.IDLE),
        DeleteJob(),
    ]


IDLE: dict[str, tuple[dict[str, Any], dict[str, Any], float, list[Action]]] = {
    "the gateways of a job that is collected stay for a while": ({}, {}, 1599.0, [WakeAt(1600.0)]),
    "and go when nothing was asked of them": ({}, {}, 1600.0, [Provide(Provided.IDLE)]),
    "a trainer that still asks keeps them": ({}, {"trainer_at": 1500.0}, 1600.0, [WakeAt(2100.0)]),
    "whether one does is not known before they say so": ({}, {"trainer_at": None}, 1600.0, []),
    "they are gone": ({}, {"provided": Provided.IDLE}, 1600.0, []),
    "a larger idleSeconds brings them back": (
        {"gateway": {"idleSeconds": 9000}},
        {"provided": Provided.IDLE},
        1600.0,
        [Provide(Provided.STOPPED)],
    ),
    "of what is collected nothing is owed, before gateways are asked either": (
        {},
        {"provided": Provided.IDLE, "owed": None},
        1600.0,
        [],
    ),
}


@pytest.mark.parametrize(("fields", "more", "now", "actions"), IDLE.values(), ids=IDLE)
def test_when_gateways_of_a_job_that_is_over_go(
    fields: dict[str, Any], more: dict[str, Any], now: float, actions: list[Action]
) -> None:
    over = status_of(seen(**DONE), 1000.0)
    done = status_of(seen(**DONE, status=over), 1000.0)
    plan = plan_job(want(ttlSecondsAfterFinished=None, **fields), seen(**(DONE | more), status=done), now)
    assert [one for one in plan if not isinstance(one, WriteStatus)] == actions


SUSPENDED_SINCE: dict[str, tuple[JobObserved, float, list[Action]]] = {
    "the gateways of a suspended job stay for a while": (
        seen(group("a", "u"), provided=Provided.STOPPED),
        1599.0,
        [WakeAt(1600.0)],
    ),
    "then they go, collected or not": (
        seen(group("a", "g"), fresh="b", provided=Provided.STOPPED, owed=1),
        1600.0,
        [Provide(Provided.IDLE)],
    ),
    "not while anything of it runs": (seen(group("a", "x"), provided=Provided.STOPPED), 1600.0, []),
    "not before all gateways were asked what they hold": (
        seen(provided=Provided.STOPPED, owed=None, more=True),
        1600.0,
        [],
    ),
    "they are gone until it goes on": (seen(group("a", "u"), provided=Provided.IDLE), 9000.0, []),
}


@pytest.mark.parametrize(("observed", "now", "actions"), SUSPENDED_SINCE.values(), ids=SUSPENDED_SINCE)
def test_when_gateways_of_a_suspended_job_go(
    observed: JobObserved, now: float, actions: list[Action]
) -> None:
    wanted = want(suspend=True)
    plan = plan_job(wanted, replace(observed, status=job_status(wanted, observed, 1000.0)), now)
    assert [one for one in plan if not isinstance(one, WriteStatus)] == actions


def test_a_deadline_does_not_run_while_a_job_is_suspended() -> None:
    fields = {"activeDeadlineSeconds": 50}
    running = seen(group("a", "u"), started_at=100.0)
    before = job_status(want(**fields), running, 100.0)
    suspended = replace(running, status=before)
    during = job_status(want(**fields, suspend=True), suspended, 140.0)
    assert (before.start_time, during.start_time) == ("1970-01-01T00:01:40Z", "")
    resumed = replace(running, status=during)
    plan = plan_job(want(**fields), resumed, 900.0)
    (written,) = [one.status for one in plan if isinstance(one, WriteStatus)]
    assert written.start_time == "1970-01-01T00:15:00Z"
    assert not is_true(written, JobCondition.FAILED)


def test_an_operator_that_has_not_asked_yet_repeats_what_was_told_before() -> None:
    told = status_of(seen(group("a", "r"), tally=SampleTally(ended=7, failed=1), total=9, committed=5))
    unasked = seen(more=True, owed=None, total=0, status=told, gateways={})
    again = status_of(unasked)
    counts = [(one.sessions, one.running, one.ended, one.failed, one.committed) for one in (told, again)]
    assert counts[0] == counts[1] == (9, 1, 7, 1, 5)


def test_a_job_that_is_over_needs_no_engine() -> None:
    done = status_of(seen(tally=SampleTally(ended=2), total=2))
    over = seen(tally=SampleTally(ended=2), total=2, status=done, provided=Provided.RUNNING)
    assert plan_job(want(ttlSecondsAfterFinished=None), over, 1.0) == [Provide(Provided.STOPPED)]


def test_why_a_job_failed_stays_what_it_was() -> None:
    fields = {"activeDeadlineSeconds": 5, "trainer": {"heartbeatSeconds": 1, "collectSeconds": 50}}
    cut = seen(group("a", "u", closed=True), heard_at=0.0)
    first = job_status(want(**fields), cut, 9.0)
    later = job_status(want(**fields), seen(group("a", "u", closed=True), heard_at=0.0, status=first), 99.0)
    (failed,) = [one for one in later.conditions if one.type == JobCondition.FAILED]
    assert (failed.status, failed.reason) == (ConditionStatus.TRUE, "DeadlineExceeded")


def test_a_job_that_failed_whole_says_of_what() -> None:
    seen_all = seen(
        group("a", "c I", closed=True), tally=SampleTally(ended=2, failed=2, fruitless=CRASHES), total=4
    )
    status = job_status(want(groupSize=2), seen_all, 9.0)
    (failed,) = [one for one in status.conditions if one.type == JobCondition.FAILED]
    text = "all 4 samples failed: 3 AgentExit, 2 of them: exit code 127: \"python3: can't open file 'x'\""
    assert (failed.reason, failed.message, status.completion_time) == (
        "AllFailed",
        text,
        "1970-01-01T00:00:09Z",
    )
    later = job_status(want(groupSize=2), replace(seen_all, status=status, committed=4), 99.0)
    assert [one for one in later.conditions if one.type == JobCondition.FAILED] == [failed]


def test_a_job_that_was_complete_stays_so() -> None:
    done = status_of(seen(tally=SampleTally(ended=2), total=2))
    fruitless = seen(tally=SampleTally(ended=2, failed=2, fruitless=CRASHES), total=2, status=done)
    assert is_true(job_status(want(), fruitless, 9.0), JobCondition.COMPLETE)
