"""What of a job runs next, and where: a row is a situation, its name what must hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.status import ConditionStatus, JobCondition
from sandgate.operator.plan.actions import (
    Action,
    CloseGroup,
    JobObserved,
    JobWant,
    Provide,
    Provided,
    SampleKey,
    SampleTally,
    Stop,
    StopAttempt,
    WakeAt,
    WriteStatus,
)
from sandgate.operator.plan.fruitless_samples import FruitlessSamples
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.status import job_status
from tests.operator.plans import GATEWAY, group, ref, seen, start, status_of, want

SUSPENDED = Stop(FailureReason.ABORTED, "the job is suspended")
LATE = Stop(FailureReason.ABORTED, "activeDeadlineSeconds 50 passed")
SILENT = Stop(FailureReason.ABORTED, "the trainer is silent")
CUT = Stop(FailureReason.STRAGGLER, "the group has its quorum")
QUORUM = {"group__quorum": 2, "group__stragglerSeconds": 30}

CRASHES = FruitlessSamples.of([("AgentExit", "exit code 127: \"python3: can't open file 'x'\"")] * 2)


def unwelcome(*keys: SampleKey, **spec: Any) -> JobWant:
    """A job of which a gateway does not take these samples' sessions."""
    return replace(want(**spec), unwelcome=frozenset(keys))


Case = tuple[JobWant, JobObserved, float, list[Action]]
CASES: dict[str, Case] = {
    "starts only what parallelism allows": (
        want(parallelism=2),
        seen(fresh="abc"),
        0.0,
        [start("a"), start("b")],
    ),
    "what runs counts against parallelism": (
        want(parallelism=2),
        seen(group("a", "r"), fresh="bc"),
        0.0,
        [start("b")],
    ),
    "no new group begins while deletions lag, and what has begun goes on": (
        want(parallelism=4, groupSize=2),
        seen(group("a", "r w"), fresh="b", littered="more pods are left"),
        0.0,
        [start("a", 1)],
    ),
    "what its gateway does not take keeps no slot from others": (
        unwelcome(("a", 0), parallelism=1, groupSize=2),
        seen(group("a", "w w"), fresh="b"),
        0.0,
        [start("a", 1)],
    ),
    "it is tried again with what is left": (
        unwelcome(("a", 0), parallelism=3, groupSize=2),
        seen(group("a", "w w"), proved=True),
        0.0,
        [start("a", 1), start("a", 0)],
    ),
    "nor does one that counts as open, as an operator before made what it needs": (
        unwelcome(("a", 0), parallelism=1),
        seen(group("a", "h"), fresh="b", proved=False),
        0.0,
        [start("b")],
    ),
    "a group of which none is taken proves nothing, and the next one may": (
        unwelcome(("a", 0), ("a", 1), parallelism=2, groupSize=2),
        seen(group("a", "w w"), fresh="bc", proved=False),
        0.0,
        [start("b", 0), start("b", 1)],
    ),
    "so may not the ninth": (
        unwelcome(*((uid, 0) for uid in "abcdefghi"), parallelism=2),
        seen(*(group(uid, "w") for uid in "abcdefghi"), fresh="xy", proved=False),
        0.0,
        [start("a"), start("b")],
    ),
    "nothing starts while no engine answers": (want(parallelism=2), seen(fresh="ab", engines=0), 0.0, []),
    "one engine that answers is enough": (
        want(parallelism=1),
        seen(fresh="ab", engines=1),
        0.0,
        [start("a")],
    ),
    "what stops still counts": (want(parallelism=1), seen(group("a", "x"), fresh="b"), 0.0, []),
    "startBurst caps what is starting, not what runs": (
        want(parallelism=9, startBurst=2, groupSize=3),
        seen(group("a", "r r s"), fresh="b"),
        0.0,
        [start("b", 0)],
    ),
    "a group begins whole, sibling after sibling": (
        want(groupSize=3, parallelism=4),
        seen(fresh="ab"),
        0.0,
        [start("a", 0), start("a", 1), start("a", 2), start("b", 0)],
    ),
    "begun groups come before new ones": (
        want(groupSize=2, parallelism=2),
        seen(group("a", "r w"), fresh="b"),
        0.0,
        [start("a", 1)],
    ),
    "siblings share a gateway, groups go to the least loaded": (
        want(groupSize=2, parallelism=9),
        seen(fresh="abc", gateways={"g0": 3, "g1": 0}),
        0.0,
        [
            start("a", 0, gateway="g1"),
            start("a", 1, gateway="g1"),
            start("b", 0, gateway="g1"),
            start("b", 1, gateway="g1"),
            start("c", 0, gateway="g0"),
            start("c", 1, gateway="g0"),
        ],
    ),
    "a begun group stays where it is": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "r w", gateway="g1"), gateways={"g0": 0, "g1": 5}),
        0.0,
        [start("a", 1, gateway="g1")],
    ),
    "without a gateway nothing starts": (want(), seen(fresh="a", gateways={}), 0.0, []),
    "before an agent is past its start one group is begun": (
        want(groupSize=2, parallelism=9),
        seen(fresh="abc", proved=False),
        0.0,
        [start("a", 0), start("a", 1)],
    ),
    "and no other beside it": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "s s"), fresh="bc", proved=False),
        0.0,
        [],
    ),
    "and nothing is tried again while a sibling has not ended": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "i s"), fresh="bc", proved=False),
        99.0,
        [],
    ),
    "then one of them is, for all may fail alike": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "i i"), fresh="bc", proved=False),
        99.0,
        [start("a", 0, attempt=1)],
    ),
    "one whose attempts are spent leaves it to its sibling": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "I i"), fresh="bc", proved=False),
        99.0,
        [start("a", 1, attempt=1)],
    ),
    "what we cut short ourselves has not failed: all of it is tried again": (
        want(groupSize=3, parallelism=9),
        seen(group("a", "d s u"), fresh="bc", proved=False),
        99.0,
        [start("a", 0, attempt=1), start("a", 2, attempt=1)],
    ),
    "an agent that runs is looked at again, not trusted at once": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "r r"), fresh="b", proved=False, proves_at=15.0),
        10.0,
        [WakeAt(15.0)],
    ),
    "one that has run for a while is past its start, and all begins": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "r i"), fresh="b", proved=False, proves_at=15.0),
        15.0,
        [start("a", 1, attempt=1), start("b", 0), start("b", 1)],
    ),
    "one whose gateway is away is not waited for": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "s s", gateway="g9"), fresh="bc", proved=False),
        0.0,
        [start("b", 0), start("b", 1)],
    ),
    "draining starts nothing": (want(), seen(group("a", "i"), fresh="b", draining=True), 99.0, []),
    "a good sample is not begun again": (want(), seen(group("a", "g")), 99.0, []),
    "a failed policy is not begun again, and needs no word": (want(), seen(group("a", "p")), 99.0, []),
    "a crashed agent is not begun again": (want(), seen(group("a", "c")), 99.0, []),
    "an infra failure is tried again after a pause": (want(), seen(group("a", "i")), 0.5, [WakeAt(1.0)]),
    "and then as the next attempt": (want(), seen(group("a", "i4")), 1.0, [start("a", attempt=5)]),
    "when retries are spent the group is closed": (
        want(),
        seen(group("a", "I")),
        99.0,
        [CloseGroup("a", GATEWAY)],
    ),
    "a closed group is left alone": (want(), seen(group("a", "I", closed=True)), 99.0, []),
    "what we cut short ourselves is tried again at once": (
        want(group__retry__infra=0),
        seen(group("a", "d"), group("b", "u2")),
        0.0,
        [start("a", attempt=1), start("b", attempt=3)],
    ),
    "a suspended job stops what runs": (
        want(suspend=True, groupSize=2),
        seen(group("a", "r s"), fresh="b"),
        0.0,
        [StopAttempt(ref("a", 0), SUSPENDED), StopAttempt(ref("a", 1), SUSPENDED)],
    ),
    "what was told to stop is not told again": (want(suspend=True), seen(group("a", "x")), 0.0, []),
    "a suspended job plans no retry": (want(suspend=True), seen(group("a", "i")), 99.0, []),
    "past its deadline a job stops": (
        want(activeDeadlineSeconds=50),
        seen(group("a", "r"), fresh="b", started_at=100.0),
        150.0,
        [StopAttempt(ref("a"), LATE)],
    ),
    "before it, it is woken in time": (
        want(activeDeadlineSeconds=50),
        seen(group("a", "r"), started_at=100.0),
        120.0,
        [WakeAt(150.0)],
    ),
    "after the deadline what ended well may be had": (
        want(activeDeadlineSeconds=50, groupSize=2),
        seen(group("a", "g u"), started_at=100.0),
        150.0,
        [CloseGroup("a", GATEWAY)],
    ),
    "stragglers have their time after the quorum": (
        want(groupSize=3, **QUORUM),
        seen(group("a", "g g r", at=10.0)),
        20.0,
        [WakeAt(40.0)],
    ),
    "then they are cut": (
        want(groupSize=3, **QUORUM),
        seen(group("a", "g g r", at=10.0)),
        40.0,
        [StopAttempt(ref("a", 2), CUT)],
    ),
    "and count for their group, masked: it is whole when the last one is gone": (
        want(groupSize=3, **QUORUM),
        seen(group("a", "g g z", at=10.0)),
        40.0,
        [],
    ),
    "a straggler is not tried again": (
        want(groupSize=3, **QUORUM),
        seen(group("a", "g g z", at=10.0, closed=True)),
        99.0,
        [],
    ),
    "a retry that is due after the cut is not made": (
        want(groupSize=3, **QUORUM),
        seen(group("a", "g g i", at=10.0)),
        40.0,
        [CloseGroup("a", GATEWAY)],
    ),
    "below the quorum nobody is cut": (
        want(groupSize=3, **QUORUM),
        seen(group("a", "g r r", at=10.0)),
        999.0,
        [],
    ),
    "a sample that never ran keeps its group open": (
        want(groupSize=3, parallelism=1, **QUORUM),
        seen(group("a", "g g w", at=10.0)),
        999.0,
        [start("a", 2)],
    ),
    "staleness bounds the groups that are begun": (
        want(staleness={"maxVersionsBehind": 1, "batchSize": 2}, parallelism=99),
        seen(fresh="abcdef", begun=1),
        0.0,
        [start("a"), start("b"), start("c")],
    ),
    "a new policy version admits more": (
        want(staleness={"maxVersionsBehind": 0, "batchSize": 2}, parallelism=99),
        seen(fresh="abc", begun=2, published=1, taken=2),
        0.0,
        [start("a"), start("b")],
    ),
    "a group whose gateway is away waits for it": (
        want(groupSize=2, parallelism=9),
        seen(group("a", "r w", gateway="g1"), group("b", "I g", gateway="g1"), gateways={"g0": 0}),
        99.0,
        [],
    ),
    "what a job needs is made before anything else": (
        want(),
        seen(gateways={}, provided=Provided.NOTHING, more=True),
        0.0,
        [Provide(Provided.RUNNING)],
    ),
    "gateways of an operator before this one take no new sessions before their job is provided": (
        want(),
        seen(group("a", "r w"), fresh="b", provided=Provided.NOTHING),
        0.0,
        [Provide(Provided.RUNNING)],
    ),
    "nor while the API server does not take what the job needs": (
        replace(want(), unprovided="Service shop-gateway: 403"),
        seen(group("a", "r w"), fresh="b", provided=Provided.RUNNING, provided_for=-1),
        0.0,
        [Provide(Provided.RUNNING)],
    ),
    "nor while somebody else has a name that it needs": (
        replace(want(), taken="Service shop-gateway is not of this job"),
        seen(fresh="b", provided=Provided.RUNNING, provided_for=-1),
        0.0,
        [Provide(Provided.RUNNING)],
    ),
    "for a job that was created suspended nothing is made": (
        want(suspend=True),
        seen(gateways={}, provided=Provided.NOTHING, more=True),
        0.0,
        [],
    ),
    "another spec is another set of objects, also while it is suspended": (
        want(suspend=True),
        seen(provided=Provided.STOPPED, provided_for=-1),
        0.0,
        [Provide(Provided.STOPPED)],
    ),
    "and for a job that runs": (
        want(),
        seen(group("a", "r"), provided=Provided.RUNNING, provided_for=-1),
        0.0,
        [Provide(Provided.RUNNING)],
    ),
    "a suspended job lets its engine go": (
        want(suspend=True),
        seen(group("a", "r"), provided=Provided.RUNNING),
        0.0,
        [StopAttempt(ref("a"), SUSPENDED), Provide(Provided.STOPPED)],
    ),
    "and has it again when it is let go on": (
        want(),
        seen(group("a", "u"), provided=Provided.STOPPED),
        0.0,
        [Provide(Provided.RUNNING), start("a", attempt=1)],
    ),
    "a silent trainer stops what runs, and the job looks again before it gives up": (
        want(trainer={"heartbeatSeconds": 10, "collectSeconds": 60}),
        seen(group("a", "r"), fresh="b", heard_at=100.0),
        110.0,
        [StopAttempt(ref("a"), SILENT), WakeAt(160.0)],
    ),
    "without a gateway nobody is silent": (
        want(trainer={"heartbeatSeconds": 10, "collectSeconds": 60}),
        seen(group("a", "r"), heard_at=100.0, gateways={}),
        9000.0,
        [],
    ),
    "until then it looks at the next silence": (
        want(trainer={"heartbeatSeconds": 10, "collectSeconds": 60}),
        seen(group("a", "r"), heard_at=100.0),
        105.0,
        [WakeAt(110.0)],
    ),
    "a trainer that is gone closes what there is": (
        want(groupSize=2, trainer={"heartbeatSeconds": 10, "collectSeconds": 60}),
        seen(group("a", "g u"), heard_at=100.0),
        160.0,
        [CloseGroup("a", GATEWAY)],
    ),
    "a suspended job waits for no trainer": (
        want(suspend=True, trainer={"heartbeatSeconds": 10, "collectSeconds": 60}),
        seen(group("a", "x"), heard_at=100.0),
        999.0,
        [],
    ),
    "a wake-up that is planned is not planned again": (
        want(),
        seen(group("a", "i"), wake_at=1.0),
        0.5,
        [],
    ),
}


@pytest.mark.parametrize(("wanted", "observed", "now", "actions"), CASES.values(), ids=CASES)
def test_plan_job(wanted: JobWant, observed: JobObserved, now: float, actions: list[Action]) -> None:
    assert [one for one in plan_job(wanted, observed, now) if not isinstance(one, WriteStatus)] == actions


CONDITIONS: dict[str, tuple[JobWant, JobObserved, float, set[JobCondition]]] = {
    "a job at work is ready and progressing": (
        want(),
        seen(group("a", "r")),
        0.0,
        {JobCondition.READY, JobCondition.PROGRESSING},
    ),
    "without gateways it is not ready": (
        want(),
        seen(fresh="a", gateways={}),
        0.0,
        {JobCondition.PROGRESSING},
    ),
    "a suspended one does not progress": (
        want(suspend=True),
        seen(fresh="a"),
        0.0,
        {JobCondition.READY, JobCondition.SUSPENDED},
    ),
    "a drained one does not progress": (want(), seen(fresh="a", draining=True), 0.0, {JobCondition.READY}),
    "it is complete when everything ended": (
        want(),
        seen(tally=SampleTally(ended=1), total=1),
        0.0,
        {JobCondition.READY, JobCondition.COMPLETE, JobCondition.COLLECTED},
    ),
    "it is not collected while trajectories are owed": (
        want(),
        seen(tally=SampleTally(ended=1), total=1, owed=1),
        0.0,
        {JobCondition.READY, JobCondition.COMPLETE},
    ),
    "nor before anybody knows what is owed": (
        want(),
        seen(tally=SampleTally(ended=1), total=1, owed=None),
        0.0,
        {JobCondition.READY, JobCondition.COMPLETE},
    ),
    "it failed when nobody learns of any of its samples": (
        want(groupSize=2),
        seen(
            group("a", "c I", closed=True), tally=SampleTally(ended=2, failed=2, fruitless=CRASHES), total=4
        ),
        0.0,
        {JobCondition.READY, JobCondition.FAILED, JobCondition.COLLECTED},
    ),
    "one good sample makes it complete": (
        want(groupSize=2),
        seen(group("a", "c g"), tally=SampleTally(ended=2, failed=2, fruitless=CRASHES), total=4),
        0.0,
        {JobCondition.READY, JobCondition.COMPLETE, JobCondition.COLLECTED},
    ),
    "what the policy did wrong is a lesson": (
        want(),
        seen(group("a", "p"), tally=SampleTally(ended=2, failed=2, fruitless=CRASHES), total=3),
        0.0,
        {JobCondition.READY, JobCondition.COMPLETE, JobCondition.COLLECTED},
    ),
    "an agent elsewhere that did its task makes it complete": (
        want(),
        seen(tally=SampleTally(ended=2, failed=2, fruitless=CRASHES), total=2, elsewhere=True),
        0.0,
        {JobCondition.READY, JobCondition.COMPLETE, JobCondition.COLLECTED},
    ),
    "a job without a sample did not fail": (
        want(),
        seen(),
        0.0,
        {JobCondition.READY, JobCondition.COMPLETE, JobCondition.COLLECTED},
    ),
    "a group that waits for its word is not the end": (
        want(),
        seen(group("a", "I")),
        0.0,
        {JobCondition.READY, JobCondition.PROGRESSING},
    ),
    "it failed when the deadline cut it": (
        want(activeDeadlineSeconds=5),
        seen(group("a", "u", closed=True), fresh="b"),
        9.0,
        {JobCondition.READY, JobCondition.FAILED, JobCondition.COLLECTED},
    ),
    "it failed when its trainer was gone": (
        want(trainer={"heartbeatSeconds": 1, "collectSeconds": 5}),
        seen(group("a", "u", closed=True), heard_at=0.0),
        9.0,
        {JobCondition.READY, JobCondition.FAILED, JobCondition.COLLECTED},
    ),
    "and did not while there was no gateway by which to be heard": (
        want(trainer={"heartbeatSeconds": 1, "collectSeconds": 5}),
        seen(group("a", "r"), heard_at=0.0, gateways={}),
        9.0,
        {JobCondition.PROGRESSING},
    ),
    "a silent trainer suspends it": (
        want(trainer={"heartbeatSeconds": 1, "collectSeconds": 50}),
        seen(group("a", "x"), heard_at=0.0),
        9.0,
        {JobCondition.READY, JobCondition.SUSPENDED},
    ),
    "without an engine it is not ready": (
        want(),
        seen(group("a", "r"), engines=0),
        0.0,
        {JobCondition.PROGRESSING},
    ),
    "tasks that cannot be had are no progress": (
        want(),
        seen(more=True, problem="ConfigMap x is not there"),
        0.0,
        {JobCondition.READY},
    ),
    "it is not complete while more may come": (
        want(),
        seen(tally=SampleTally(ended=1), total=1, more=True),
        0.0,
        {JobCondition.READY, JobCondition.PROGRESSING},
    ),
    "not before the last one stopped": (
        want(activeDeadlineSeconds=5),
        seen(group("a", "x"), fresh="b"),
        9.0,
        {JobCondition.READY, JobCondition.PROGRESSING},
    ),
}


@pytest.mark.parametrize(("wanted", "observed", "now", "true"), CONDITIONS.values(), ids=CONDITIONS)
def test_conditions(wanted: JobWant, observed: JobObserved, now: float, true: set[JobCondition]) -> None:
    (status,) = [one.status for one in plan_job(wanted, observed, now) if isinstance(one, WriteStatus)]
    assert {one.type for one in status.conditions if one.status is ConditionStatus.TRUE} == {
        one.value for one in true
    }
    assert [one.type for one in status.conditions] == [one.value for one in JobCondition]


WHERE: dict[str, tuple[JobWant, JobObserved, tuple[str, str, int]]] = {
    "agents that run": (want(), seen(group("a", "r r s")), ("Running", "", 2)),
    "none runs yet": (want(), seen(group("a", "s s")), ("Waiting", "", 0)),
    "pods that wait, beside some that run": (
        want(),
        seen(group("a", "r h s h")),
        ("PodsWait", "Unschedulable: 0/3 nodes", 1),
    ),
    "deletions that lag": (
        want(),
        seen(group("a", "r"), littered="more pods are left"),
        ("CleaningUp", "more pods are left", 1),
    ),
    "pods that wait while the newest spec is refused": (
        replace(want(), refused="spec.x"),
        seen(group("a", "h")),
        ("SpecRefused", "spec.x", 0),
    ),
    "no gateway: that matters more": (want(), seen(group("a", "h"), gateways={}), ("NoGateway", "", 0)),
    "suspended": (want(suspend=True), seen(group("a", "x")), ("SpecSuspend", "", 1)),
    "no tasks": (want(), seen(more=True, problem="ConfigMap x"), ("NoTasks", "ConfigMap x", 0)),
    "complete": (want(), seen(tally=SampleTally(ended=1), total=1), ("AllEnded", "", 0)),
    "late": (
        want(activeDeadlineSeconds=5),
        seen(tally=SampleTally(ended=1), total=2),
        ("DeadlineExceeded", "activeDeadlineSeconds 5 passed", 0),
    ),
}


@pytest.mark.parametrize(("wanted", "observed", "where"), WHERE.values(), ids=WHERE)
def test_a_job_says_in_a_word_where_it_stands(
    wanted: JobWant, observed: JobObserved, where: tuple[str, str, int]
) -> None:
    status = job_status(wanted, observed, 9.0)
    (one, *_) = [one for one in status.conditions if one.reason == status.reason]
    assert (status.reason, status.running) == (where[0], where[2])
    assert where[1] in one.message


def test_counts_are_of_samples_and_attempts() -> None:
    status = status_of(
        seen(
            group("a", "g c p"),
            group("b", "r i1 I3"),
            tally=SampleTally(ended=30, failed=4, retries=2),
            total=60,
            committed=9,
        ),
        groupSize=3,
    )
    assert (status.sessions, status.running, status.committed) == (60, 1, 9)
    assert status.ended == 30 + 3 + 1
    assert status.failed == 4 + 2 + 1
    assert status.retries == 2 + 1 + 3


def test_a_status_that_did_not_change_is_not_written_again() -> None:
    observed = seen(group("a", "r"), fresh="b")
    (written,) = [one.status for one in plan_job(want(parallelism=1), observed, 5.0)]  # type: ignore[union-attr]
    later = seen(group("a", "r"), fresh="b", status=written)
    assert plan_job(want(parallelism=1), later, 500.0) == []


def test_a_condition_keeps_the_time_since_when_it_holds() -> None:
    first = status_of(seen(group("a", "r")), 0.0)
    second = status_of(seen(group("a", "r"), status=first, gateways={}), 60.0)
    times = {one.type: one.last_transition_time for one in second.conditions}
    assert times["Progressing"] == "1970-01-01T00:00:00Z"
    assert times["Ready"] == "1970-01-01T00:01:00Z"
    assert second.start_time == "1970-01-01T00:00:00Z"
