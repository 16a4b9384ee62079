"""A job in a queue of Kueue: when it may run, and what its queue is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.conditions import JobReason
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus
from sandgate.operator.plan.actions import (
    JobObserved,
    JobWant,
    Provide,
    Provided,
    Stop,
    StopAttempt,
    TendWorkload,
)
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.kueue import (
    AskQuota,
    DropWorkload,
    FinishWorkload,
    GiveBack,
    Hold,
    QueueSeen,
    QueueStep,
    QuotaAsk,
    SwitchQuota,
    TellWorkload,
    WorkloadSeen,
)
from sandgate.operator.plan.queueing import hold, is_done, within
from sandgate.operator.plan.standing import PATIENCE_S
from sandgate.operator.plan.status import job_status
from tests.operator.plans import group, ref, seen, spec

QUEUED, MISSING = JobReason.QUEUED_BY_KUEUE, JobReason.KUEUE_MISSING
COUNTS = {"gateways": 1, "engines": 1, "sandboxes": 4}
ASK = QuotaAsk(queue="team", counts=COUNTS, digest="d1")
WAITS = WorkloadSeen(digest="d1", counts=COUNTS, words="insufficient quota for cpu")
ADMITTED = replace(WAITS, reserved=True, admitted=True, assigned=COUNTS, words="The workload is admitted")
EVICTED = replace(ADMITTED, evicted="Preempted", words="Preempted: to make room for a workload")
NO_KUEUE = QueueSeen(trouble="there is no Kueue")


def looked(found: WorkloadSeen | None) -> QueueSeen:
    return QueueSeen(workload=found)


LARGER = "the job asks for pods of another size, or elsewhere, than it was admitted with: it is queued anew"
HOLDS: dict[str, tuple[QuotaAsk | None, QueueSeen | None, Hold | None]] = {
    "a job without a queue runs": (None, None, None),
    "a job whose queue was not asked yet waits": (ASK, None, Hold(QUEUED, "its queue was not asked yet")),
    "without Kueue it never runs, and says why": (ASK, NO_KUEUE, Hold(MISSING, "there is no Kueue")),
    "without a Workload it waits": (ASK, looked(None), Hold(QUEUED, "its Workload is not made yet")),
    "a Workload that Kueue refuses is no leave": (
        ASK,
        QueueSeen(refused="no such priority"),
        Hold(QUEUED, "no such priority"),
    ),
    "while it waits it says what Kueue says": (
        ASK,
        looked(WAITS),
        Hold(QUEUED, "insufficient quota for cpu"),
    ),
    "admitted, it runs": (ASK, looked(ADMITTED), None),
    "quota alone is not enough while an admission check is open": (
        ASK,
        looked(replace(ADMITTED, admitted=False, words="it has quota and waits for budget")),
        Hold(QUEUED, "it has quota and waits for budget"),
    ),
    "evicted, it stops": (ASK, looked(EVICTED), Hold(QUEUED, "Preempted: to make room for a workload")),
    "a Workload that somebody stopped holds it": (
        ASK,
        looked(replace(ADMITTED, active=False, words="stopped")),
        Hold(QUEUED, "stopped"),
    ),
    "a Workload that is being deleted holds it": (
        ASK,
        looked(replace(ADMITTED, deleting=True, words="x")),
        Hold(QUEUED, "x"),
    ),
    "fewer pods than it was admitted with need no new quota": (
        replace(ASK, counts={**COUNTS, "sandboxes": 2}),
        looked(ADMITTED),
        None,
    ),
    "more sandboxes wait, and the job runs on with those it has": (
        replace(ASK, counts={**COUNTS, "sandboxes": 9}),
        looked(ADMITTED),
        None,
    ),
    "pods of another size than it was admitted with are another quota": (
        replace(ASK, digest="d2", takes="t2"),
        looked(replace(ADMITTED, takes="t1")),
        Hold(QUEUED, LARGER),
    ),
    "an operator that was upgraded, or another image, needs no new quota": (
        replace(ASK, digest="d2", takes="t1"),
        looked(replace(ADMITTED, takes="t1")),
        None,
    ),
    "a Workload of an operator of before, which did not say its size, is not taken away": (
        replace(ASK, digest="d2", takes="t1"),
        looked(ADMITTED),
        None,
    ),
    "more engines than it was admitted with are another quota": (
        replace(ASK, counts={**COUNTS, "engines": 2}),
        looked(ADMITTED),
        Hold(
            QUEUED,
            "the job asks for other pods (engines 2, gateways 1, sandboxes 4) than it was admitted with"
            " (engines 1, gateways 1, sandboxes 4): it is queued anew",
        ),
    ),
}


@pytest.mark.parametrize(("ask", "queue", "expected"), HOLDS.values(), ids=HOLDS)
def test_hold(ask: QuotaAsk | None, queue: QueueSeen | None, expected: Hold | None) -> None:
    assert hold(ask, queue) == expected


def status(provided: Provided, **true: str) -> RolloutJobStatus:
    """`true`: conditions that are True, and their reasons."""
    ready = "Idle" if provided is Provided.IDLE else "GatewaysReady"
    now = ConditionStatus.TRUE
    facts = [Condition(type=kind, status=now, reason=why) for kind, why in true.items()]
    if "Ready" not in true:
        facts.append(Condition(type="Ready", status=ConditionStatus.FALSE, reason=ready))
    return RolloutJobStatus(conditions=tuple(facts))


def held(
    queue: QueueSeen | None, ask: QuotaAsk | None = ASK, was: RolloutJobStatus | None = None, **fields: Any
) -> JobWant:
    """A job as its driver wants it."""
    why = hold(ask, queue, done=is_done(was))
    fields = {"parallelism": 4, **fields}
    return JobWant(name="shop", spec=within(spec(**fields), why, queue), ask=ask, held=why)


def steps(queue: QueueSeen, job: JobObserved, ask: QuotaAsk | None = ASK) -> list[QueueStep]:
    job = replace(job, queue=queue)
    plan = plan_job(held(queue, ask, job.status), job, 1000.0)
    return [one.step for one in plan if isinstance(one, TendWorkload)]


IDLE = seen(fresh="abcd", gateways={}, owed=0, provided=Provided.IDLE, status=status(Provided.IDLE))
NEW = seen(fresh="abcd", gateways={}, owed=None, provided=Provided.NOTHING)
RUNS = seen(
    group("a", "r"),
    fresh="bcd",
    owed=0,
    provided=Provided.RUNNING,
    status=status(Provided.RUNNING, Ready="GatewaysReady"),
)
STOPS = seen(group("a", "x"), fresh="bcd", owed=0, provided=Provided.STOPPED, status=status(Provided.STOPPED))
OVER = {"Complete": "AllEnded"}
OWES = seen(owed=4, provided=Provided.STOPPED, status=status(Provided.STOPPED, **OVER))
DONE = seen(
    owed=0, provided=Provided.STOPPED, status=status(Provided.STOPPED, Collected="AllAcknowledged", **OVER)
)
GONE = replace(DONE, provided=Provided.IDLE)
TOLD = replace(ADMITTED, ready=True)
STEPS: dict[str, tuple[WorkloadSeen | None, JobObserved, list[QueueStep]]] = {
    "a new job asks": (None, NEW, [AskQuota()]),
    "what it asked for is not asked again": (WAITS, NEW, []),
    "a manifest that changed while it was stopped asks anew before it is let go": (
        replace(WAITS, digest="d0", stopped=True, active=False),
        NEW,
        [AskQuota()],
    ),
    "a changed manifest asks anew while it waits": (replace(WAITS, digest="d0"), NEW, [AskQuota()]),
    "a job that runs tells once that it is ready": (ADMITTED, RUNS, [TellWorkload({}, True)]),
    "and not again": (TOLD, RUNS, []),
    "sandboxes that no sample needs any more are given back": (
        TOLD,
        replace(RUNS, fresh=["b"]),
        [TellWorkload({"sandboxes": 2}, True)],
    ),
    "a sample that may be tried again needs its sandbox": (
        TOLD,
        seen(
            group("a", "i"), group("b", "g"), fresh="c", owed=1, provided=Provided.RUNNING, status=RUNS.status
        ),
        [TellWorkload({"sandboxes": 2}, True)],
    ),
    "what was given back is never asked back": (
        replace(TOLD, reclaimable={"sandboxes": 3}),
        replace(RUNS, fresh=["b"]),
        [],
    ),
    "while tasks may come nothing is given back": (TOLD, replace(RUNS, fresh=[], more=True), []),
    "an evicted job gives nothing back while sessions are being stopped": (EVICTED, STOPS, []),
    "an evicted job gives its quota back once nothing stands": (EVICTED, IDLE, [GiveBack()]),
    "given back, it waits": (replace(EVICTED, reserved=False, admitted=False), IDLE, []),
    "a stopped Workload gives its quota back once nothing stands": (
        replace(ADMITTED, active=False),
        IDLE,
        [GiveBack()],
    ),
    "a Workload that asks for fewer engines than the job is dropped once nothing stands": (
        replace(ADMITTED, counts={**COUNTS, "engines": 0}),
        IDLE,
        [DropWorkload()],
    ),
    "a Workload that somebody deleted is made anew once nothing stands": (None, IDLE, [AskQuota()]),
    "and not before": (None, STOPS, []),
    "a Workload that goes is waited for": (replace(ADMITTED, deleting=True), IDLE, []),
    "a finished Workload is left alone": (replace(WAITS, finished=True), IDLE, []),
    "a job that is over keeps quota for the gateways alone": (
        TOLD,
        OWES,
        [TellWorkload({"engines": 1, "sandboxes": 4}, True)],
    ),
    "a job that is over and evicted gives its gateways' quota back": (
        EVICTED,
        replace(OWES, provided=Provided.IDLE),
        [GiveBack()],
    ),
    "a collected job is not finished while its gateways stand": (ADMITTED, DONE, []),
    "a collected job of which nothing stands is finished": (
        ADMITTED,
        GONE,
        [FinishWorkload(True, "every sample ended")],
    ),
}


@pytest.mark.parametrize(("found", "job", "expected"), STEPS.values(), ids=STEPS)
def test_steps(found: WorkloadSeen | None, job: JobObserved, expected: list[QueueStep]) -> None:
    assert steps(looked(found), job) == expected


def test_a_job_with_larger_pods_drops_its_workload_once_nothing_stands() -> None:
    found = looked(replace(ADMITTED, takes="t1"))
    larger = replace(ASK, digest="d2", takes="t2")
    assert steps(found, STOPS, larger) == []
    assert steps(found, IDLE, larger) == [DropWorkload()]
    assert steps(looked(None), IDLE, larger) == [AskQuota()]


def test_a_job_without_its_label_drops_its_workload_and_runs() -> None:
    assert steps(looked(ADMITTED), RUNS, None) == [DropWorkload()]
    assert held(looked(ADMITTED), None).held is None


@pytest.mark.parametrize(
    ("asked", "found", "expected"),
    [
        (True, ADMITTED, [SwitchQuota(active=False)]),
        (True, replace(WAITS, stopped=True, active=False), []),
        (True, replace(WAITS, stopped=True, active=True), [SwitchQuota(active=False)]),
        (False, replace(WAITS, stopped=True, active=False), [SwitchQuota(active=True)]),
        (False, replace(WAITS, active=False), []),
    ],
    ids=[
        "a suspended job wants no quota",
        "and says so once",
        "and again where an administrator started it meanwhile",
        "a job that goes on wants it again",
        "what somebody else stopped is not started",
    ],
)
def test_suspend(asked: bool, found: WorkloadSeen, expected: list[QueueStep]) -> None:
    assert steps(looked(found), IDLE, replace(ASK, stopped=asked)) == expected


def test_nothing_is_told_where_there_is_no_kueue() -> None:
    assert steps(NO_KUEUE, NEW) == []


# -- what the job does ------------------------------------------------------------------------------------------------


def test_an_operator_that_does_not_know_the_queue_yet_stops_nothing() -> None:
    assert plan_job(held(None), replace(RUNS, queue=None), 0.0) == []


def test_a_job_that_waits_makes_nothing_and_says_what_kueue_says() -> None:
    queue = looked(WAITS)
    job = replace(NEW, queue=queue)
    plan = plan_job(held(queue), job, 0.0)
    assert not [one for one in plan if isinstance(one, Provide)]
    told = job_status(held(queue), job, 0.0)
    assert told.reason == QUEUED
    assert {(one.type, one.message) for one in told.conditions if one.status is ConditionStatus.TRUE} == {
        ("Suspended", "insufficient quota for cpu")
    }
    assert told.start_time == ""


def test_an_admitted_job_runs() -> None:
    queue = looked(ADMITTED)
    plan = plan_job(held(queue), replace(NEW, queue=queue), 0.0)
    assert Provide(Provided.RUNNING) in plan


def test_an_evicted_job_stops_its_sessions_then_lets_its_gateways_go_at_once() -> None:
    """idleSeconds are ten minutes: the quota is wanted now."""
    queue = looked(EVICTED)
    stop = StopAttempt(ref("a"), Stop(FailureReason.ABORTED, "the job is suspended"))
    plan = plan_job(held(queue), replace(RUNS, queue=queue), 0.0)
    assert Provide(Provided.STOPPED) in plan
    assert stop in plan
    suspended = status(Provided.STOPPED, Suspended=QUEUED)
    stopped = seen(group("a", "u"), owed=0, provided=Provided.STOPPED, status=suspended, queue=queue)
    assert Provide(Provided.IDLE) in plan_job(held(queue), stopped, 0.0)


def test_an_operator_that_starts_anew_brings_no_gateway_up_without_quota() -> None:
    """The one before gave the quota back, and died before it could say that nothing stands."""
    queue = looked(replace(EVICTED, reserved=False, admitted=False))
    job = replace(NEW, status=status(Provided.STOPPED, Suspended=QUEUED), queue=queue)
    assert Provide(Provided.IDLE) in plan_job(held(queue), job, 0.0)
    with_quota = replace(job, queue=looked(EVICTED))
    assert Provide(Provided.STOPPED) in plan_job(held(with_quota.queue), with_quota, 0.0)


def test_gateways_that_do_not_answer_keep_quota_for_a_while_only() -> None:
    queue = looked(EVICTED)
    suspended = status(Provided.STOPPED, Suspended=QUEUED)
    job = seen(
        group("a", "x"), owed=None, provided=Provided.STOPPED, status=suspended, queue=queue, gateways={}
    )
    assert Provide(Provided.IDLE) not in plan_job(held(queue), job, PATIENCE_S - 1)
    assert Provide(Provided.IDLE) in plan_job(held(queue), job, PATIENCE_S)


def test_an_evicted_job_that_is_over_lets_its_gateways_go_and_brings_them_back_with_quota() -> None:
    over = status(Provided.STOPPED, Suspended=QUEUED, **OVER)
    job = replace(OWES, status=over, queue=looked(EVICTED))
    assert Provide(Provided.IDLE) in plan_job(held(looked(EVICTED), was=over), job, 0.0)
    back = replace(job, provided=Provided.IDLE, queue=looked(ADMITTED))
    assert Provide(Provided.STOPPED) in plan_job(held(looked(ADMITTED), was=over), back, 0.0)


@pytest.mark.parametrize(
    ("found", "most"),
    [
        (ADMITTED, 4),
        (replace(ADMITTED, reclaimable={"sandboxes": 3}), 1),
        (replace(ADMITTED, reclaimable={"sandboxes": 1}, assigned={"sandboxes": 3}), 3),
        (replace(ADMITTED, assigned={"sandboxes": 2}), 2),
        (replace(ADMITTED, reclaimable={"sandboxes": 4}), 1),
    ],
)
def test_no_more_sessions_at_once_than_sandboxes(found: WorkloadSeen, most: int) -> None:
    assert within(spec(parallelism=9), None, looked(found)).parallelism == most


def test_a_job_that_is_done_is_not_held_by_its_finished_workload() -> None:
    assert hold(ASK, looked(replace(ADMITTED, finished=True)), done=True) is None
    assert JobCondition.SUSPENDED not in [
        one.type
        for one in job_status(held(looked(None), was=DONE.status), DONE, 0.0).conditions
        if one.status is ConditionStatus.TRUE
    ]


@pytest.mark.parametrize("told", [True, False])
def test_what_cannot_be_made_anew_takes_no_word_back_from_kueue(told: bool) -> None:
    """Its pods run as before: told that they are not ready, Kueue might evict the job."""
    queue = looked(replace(ADMITTED, ready=told))
    job = seen(group("a", "r"), queue=queue, provided=Provided.RUNNING)
    plan = plan_job(replace(held(queue), unprovided="HTTPRoute shop: 404"), job, 0.0)
    steps = [one.step for one in plan if isinstance(one, TendWorkload) and isinstance(one.step, TellWorkload)]
    assert all(step.ready is told for step in steps)
