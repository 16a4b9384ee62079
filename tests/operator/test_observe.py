"""What was seen: facts in, the planner's view out, and which keys must be planned again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.operator.observed import events
from sandgate.operator.observed.fold import apply
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.observed.restarts import recalled
from sandgate.operator.plan.actions import (
    Exit,
    Hopeless,
    Ref,
    Running,
    SampleState,
    SideCars,
    Stop,
    Waiting,
)
from sandgate.operator.plan.conditions import is_over
from sandgate.operator.plan.first_failures import PROOF_S
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.outcome import failure
from sandgate.operator.plan.retries import REFUSALS
from sandgate.operator.plan.status import job_status, waits_for
from tests.operator.plans import ref, start, status_of, want


class Seen:
    """What is observed, and the keys that events named."""

    def __init__(self, *uids: str, **spec: Any) -> None:
        self.keys: list[str] = []
        self.settled: list[str] = []
        self.it = Observed(want=want(**spec))
        self.see(events.TasksAdded(uids))
        self.see(events.GatewayChanged("g0", ready=True))
        self.keys.clear()

    def see(self, event: events.Event) -> None:
        self.it = apply(self.it, event)
        self.keys += self.it.changed
        self.settled += self.it.now_settled

    def found(self, listed: list[SessionSummary], again: frozenset[tuple[str, int]] = frozenset()) -> None:
        self.see(events.SessionsFound("g0", recalled(self.it.want, listed), again))

    def said(self, at: Ref, state: str = "finalized", **more: Any) -> SessionSummary:
        return SessionSummary(
            session_id=at.name,
            state=SessionState(state),
            job=at.job,
            uid=at.uid,
            sample_index=at.sample,
            attempt=at.attempt,
            changed_at=50.0,
            **more,
        )


def test_a_session_that_opens_is_live_and_counts_for_its_gateway() -> None:
    seen = Seen("a", "b", groupSize=2)
    seen.see(events.SessionOpened(ref("a", 0), "g0", 5.0))
    job = seen.it.job()
    assert (list(job.fresh), list(job.groups), job.begun, job.total) == (["b"], ["a"], 1, 4)
    assert [one.state for one in job.groups["a"].samples] == [SampleState.LIVE, SampleState.WAITING]
    assert job.groups["a"].samples[0].starting
    assert job.gateways == {"g0": 1}
    assert seen.keys == [ref("a", 0).name, JOB_KEY]
    seen.see(events.SessionOpened(ref("a", 0), "g0", 6.0))
    assert seen.it.job().gateways == {"g0": 1}


def test_a_group_is_where_it_was_begun_until_its_first_session_is_found_elsewhere() -> None:
    seen = Seen("a", groupSize=3)
    seen.see(events.GroupBegun("a", "g0"))
    assert seen.it.gateway_of("a") == "g0"
    seen.see(events.GroupBegun("a", "g1"))
    assert seen.it.gateway_of("a") == "g0"
    seen.see(events.SessionOpened(ref("a", 0), "g1", 5.0))
    assert seen.it.gateway_of("a") == "g1"
    seen.see(events.SessionOpened(ref("a", 1), "g0", 5.0))
    assert seen.it.gateway_of("a") == "g1"
    assert seen.it.job().begun == 1


def test_the_agent_that_runs_longest_proves_the_job_and_what_is_proved_stays() -> None:
    seen = Seen("a", "b", "c")
    for uid in "abc":
        seen.see(events.SessionOpened(ref(uid), "g0", 5.0))
    assert (seen.it.job().proved, seen.it.job().proves_at) == (False, None)
    seen.see(events.AgentSeen(ref("a"), Running(5.0, None, Exit(6.0, detail="403", refused=True))))
    seen.see(events.AgentSeen(ref("b"), Running(5.0, 8.0)))
    seen.see(events.AgentSeen(ref("c"), Running(5.0, 7.0)))
    assert (seen.it.job().proved, seen.it.job().proves_at) == (False, 7.0 + PROOF_S)
    seen.see(events.AgentSeen(ref("c"), Running(5.0, 7.0, Exit(9.0, code=1))))
    assert seen.it.job().proves_at == 8.0 + PROOF_S, "one that ended may have died of its start"
    seen.see(events.Proved())
    seen.see(events.AgentSeen(ref("b"), Running(5.0, 8.0, Exit(9.0, code=1))))
    assert (seen.it.job().proved, seen.it.job().proves_at) == (True, None)


@pytest.mark.parametrize(
    ("said", "proved"),
    [({"turns": 1, "failure_reason": "Evicted"}, True), ({}, True), ({"failure_reason": "AgentExit"}, False)],
)
def test_a_new_driver_knows_by_what_it_finds_whether_the_job_can_start(
    said: dict[str, Any], proved: bool
) -> None:
    seen = Seen("a", "b")
    seen.found([seen.said(ref("a"), **said)])
    assert seen.it.job().proved is proved


def test_what_a_pod_waits_for_is_news_to_the_job_until_it_starts() -> None:
    seen = Seen("a")
    at = ref("a")
    seen.see(events.SessionOpened(at, "g0", 5.0))
    said: list[tuple[str, bool]] = []
    for event in (
        events.AgentHeld(at, "403: exceeded quota"),
        events.AgentHeld(at, "403: exceeded quota"),
        events.AgentSeen(at, Running(5.0, waiting=Waiting("Unschedulable"), unplaced=True)),
        events.AgentSeen(at, Running(5.0, placed_at=6.0)),
        events.AgentSeen(at, Running(5.0, 7.0, waiting=Waiting("late news"))),
        events.AgentHeld(at, "later news"),
    ):
        seen.keys.clear()
        seen.see(event)
        (sample,) = seen.it.job().groups["a"].samples
        said.append((sample.waits_for, JOB_KEY in seen.keys))
    words = ["403: exceeded quota", "403: exceeded quota", "Unschedulable", "", "", ""]
    assert said == list(zip(words, [True, False, True, True, True, False], strict=True))


def test_what_a_verifier_waits_for_is_news_to_the_job_until_it_starts() -> None:
    """Also of an agent that was stopped because it had completed."""
    seen, at = Seen("a"), ref("a")
    seen.see(events.SessionOpened(at, "g0", 5.0))
    seen.see(events.AgentSeen(at, Running(5.0, 6.0)))
    seen.see(events.AgentStopping(at, Stop(None), 7.0))
    seen.see(events.AgentSeen(at, Running(5.0, 6.0, Exit(8.0, 0))))
    said: list[tuple[str, bool]] = []
    for event in (
        events.VerifierHeld(at, "403: exceeded quota"),
        events.VerifierHeld(at, "403: exceeded quota"),
        events.VerifierSeen(at, Running(9.0, waiting=Waiting("Unschedulable"), unplaced=True)),
        events.VerifierSeen(at, Running(9.0, waiting=Waiting("verifier: ImagePullBackOff"))),
        events.VerifierSeen(at, Running(9.0, 10.0)),
        events.VerifierHeld(ref("a", attempt=1), "of another attempt"),
    ):
        seen.keys.clear()
        seen.see(event)
        said.append((waits_for(seen.it.job().groups["a"].samples), JOB_KEY in seen.keys))
    quota = "verifier: 403: exceeded quota"
    words = [quota, quota, "verifier: Unschedulable", "verifier: ImagePullBackOff", "", ""]
    assert said == list(zip(words, [True, False, True, True, True, False], strict=True))


def test_a_good_sample_beside_one_that_lives_is_owed_after_the_job_is_over() -> None:
    """Else the job counts as collected, and goes with rows that no trainer has."""
    seen = Seen("a", groupSize=2)
    seen.found([seen.said(ref("a", 0)), seen.said(ref("a", 1), "open")])
    seen.see(events.TasksEnded())
    seen.see(events.CommittedBefore(0))
    seen.it = replace(seen.it, loaded=True)
    assert seen.it.job().owed == 1
    seen.see(events.StatusWritten(status_of(replace(seen.it.job(), groups={}, more=False, fresh=[]))))
    assert is_over(seen.it.status)
    assert seen.it.job().owed == 1


def test_a_start_is_news_to_the_job_once() -> None:
    seen = Seen("a", "b")
    for uid in "ba":
        seen.see(events.SessionOpened(ref(uid), "g0", 5.0))
    seen.see(events.AgentSeen(ref("b"), Running(5.0)))
    seen.keys.clear()
    seen.see(events.AgentSeen(ref("a"), Running(5.0)))
    assert seen.keys == [ref("a").name]
    seen.see(events.AgentSeen(ref("a"), Running(5.0, 6.0)))
    assert seen.keys == [ref("a").name, JOB_KEY, ref("a").name]
    assert not seen.it.job().groups["a"].samples[0].starting
    seen.see(events.AgentSeen(ref("a"), Running(5.0, 6.0, Exit(7.0, 0))))
    assert seen.keys.count(JOB_KEY) == 1


def test_an_agent_that_ended_before_it_started_neither_starts_nor_runs() -> None:
    seen = Seen("a", "b")
    for uid in "ab":
        seen.see(events.SessionOpened(ref(uid), "g0", 5.0))
    seen.see(events.AgentSeen(ref("a"), Running(5.0, None, Exit(7.0, None))))
    seen.see(events.AgentSeen(ref("b"), Running(5.0, 6.0, Exit(7.0, 0))))
    samples = [seen.it.job().groups[uid].samples[0] for uid in "ab"]
    assert [(one.state, one.starting, one.never_started) for one in samples] == [
        (SampleState.LIVE, False, True),
        (SampleState.LIVE, False, False),
    ]
    assert job_status(seen.it.want, seen.it.job(), 8.0).running == 1, "the one that is being ended ran"


@pytest.mark.parametrize("role", [events.AgentSeen, events.VerifierSeen])
@pytest.mark.parametrize("ended_at", [8.0, 9.0, 9.5])
def test_what_a_gateway_said_before_an_end_was_told_judges_nobody(
    role: type[events.AgentSeen | events.VerifierSeen], ended_at: float
) -> None:
    """Whatever time the end has: nodes tell whole seconds, and some clocks are behind."""
    seen, at = Seen("a"), ref("a")
    seen.see(events.SessionOpened(at, "g0", 5.0))
    seen.see(role(at, Running(5.0, 6.0)))
    seen.see(events.SessionReported(seen.said(at, "open"), 9.0))
    end = Exit(ended_at, 0)
    seen.see(role(at, Running(5.0, 6.0, end)))
    assert seen.it.sessions[at.name].looked_at < end.at
    seen.see(events.SessionReported(seen.said(at, "open"), 10.0))
    seen.see(role(at, Running(5.0, 6.0, end)))
    assert seen.it.sessions[at.name].looked_at == 10.0, "told twice, it is asked once"


def test_a_group_settles_when_its_last_sample_ends_well_and_is_only_counted_then() -> None:
    seen = Seen("a", groupSize=2)
    for sample in (0, 1):
        seen.see(events.SessionOpened(ref("a", sample), "g0", 5.0))
    seen.see(events.SessionReported(seen.said(ref("a", 0)), 60.0))
    assert seen.settled == []
    assert seen.it.job().groups["a"].samples[0].ended_at == 50.0
    more = {"failure_class": "policy", "failure_reason": "TurnLimit"}
    seen.see(events.SessionReported(seen.said(ref("a", 1), **more), 60.0))
    job = seen.it.job()
    assert seen.settled == ["a"]
    assert (dict(job.groups), job.gateways, dict(seen.it.settled)) == ({}, {"g0": 0}, {"a": 2})
    assert (job.tally.ended, job.tally.failed) == (2, 1)
    assert seen.it.live == []


def test_infra_failures_are_counted_against_retries_but_not_our_own_doing() -> None:
    seen = Seen("a")
    for attempt, reason in enumerate(["OOMKilled", "DriverLost", "Aborted", "NodeLost"]):
        seen.see(events.SessionOpened(ref("a", 0, attempt), "g0", 5.0))
        said = seen.said(ref("a", 0, attempt), failure_class="infra", failure_reason=reason)
        seen.see(events.SessionReported(said, 60.0))
    (sample,) = seen.it.job().groups["a"].samples
    assert (sample.spent, sample.attempt, sample.failure) == (2, 3, FailureClass.INFRA)


def test_a_closed_group_settles_with_what_there_is() -> None:
    seen = Seen("a", groupSize=2)
    seen.see(events.SessionOpened(ref("a", 0), "g0", 5.0))
    seen.see(events.GroupCloseConfirmed("a"))
    assert seen.settled == [], "one still runs"
    seen.see(events.SessionReported(seen.said(ref("a", 0)), 60.0))
    assert seen.settled == ["a"]
    assert seen.it.settled == {"a": 1}
    assert seen.it.job().tally.failed == 1
    seen.see(events.GroupCloseConfirmed("never begun"))


def test_a_session_that_somebody_aborted_has_ended() -> None:
    seen = Seen("a")
    seen.see(events.SessionOpened(ref("a"), "g0", 5.0))
    seen.see(events.SessionReported(seen.said(ref("a"), "aborted"), 60.0))
    (sample,) = seen.it.job().groups["a"].samples
    assert (sample.state, sample.reason) == (SampleState.ENDED, FailureReason.ABORTED)


def test_a_reason_of_a_newer_gateway_is_infrastructure() -> None:
    seen = Seen("a")
    seen.see(events.SessionOpened(ref("a"), "g0", 5.0))
    seen.see(
        events.SessionReported(seen.said(ref("a"), failure_class="infra", failure_reason="Meteor"), 60.0)
    )
    assert seen.it.job().groups["a"].samples[0].failure is FailureClass.INFRA


def test_a_session_that_its_gateway_lost_is_tried_again() -> None:
    seen = Seen("a")
    seen.see(events.SessionOpened(ref("a"), "g0", 5.0))
    seen.see(events.SessionVanished(ref("a"), 60.0))
    (sample,) = seen.it.job().groups["a"].samples
    assert (sample.reason, sample.spent) == (FailureReason.GATEWAY_LOST, 1)


def test_the_first_reason_to_stop_stands() -> None:
    seen = Seen("a")
    seen.see(events.SessionOpened(ref("a"), "g0", 5.0))
    seen.see(events.AgentStopping(ref("a"), Stop(FailureReason.SESSION_TIMEOUT)))
    seen.see(events.AgentStopping(ref("a"), Stop(FailureReason.STRAGGLER)))
    assert seen.it.sessions[ref("a").name].stop == Stop(FailureReason.SESSION_TIMEOUT)
    assert seen.it.job().groups["a"].samples[0].stopping


def test_what_an_earlier_driver_left_is_found_again() -> None:
    seen = Seen("a", "b", "c", groupSize=2)
    seen.found(
        [
            seen.said(ref("b", 0, 0), failure_class="infra", failure_reason="OOMKilled"),
            seen.said(ref("b", 0, 1), "open"),
            seen.said(ref("b", 1)),
            seen.said(ref("a", 0)),
            seen.said(ref("a", 1), failure_class="agent", failure_reason="AgentExit"),
        ],
    )
    job = seen.it.job()
    assert (list(job.fresh), list(job.groups), dict(seen.it.settled)) == (["c"], ["b"], {"a": 2})
    assert (job.begun, job.tally.ended, job.tally.failed) == (2, 2, 1)
    first, second = job.groups["b"].samples
    assert (first.state, first.attempt, first.spent, first.starting) == (SampleState.LIVE, 1, 1, False)
    assert second.state is SampleState.ENDED
    assert seen.it.sessions[ref("b", 0, 1).name].lost
    assert ref("b", 0, 1).name in seen.keys


@pytest.mark.parametrize(
    "other",
    [
        {"job": "another"},
        {"sample_index": 7},
        {"session_id": "made-by-hand"},
    ],
    ids=str,
)
def test_sessions_that_are_not_of_this_job_are_left_alone(other: dict[str, Any]) -> None:
    seen = Seen("a")
    said = seen.said(ref("a"))
    fields = {name: getattr(said, name) for name in SessionSummary.__dataclass_fields__}
    seen.found([SessionSummary(**{**fields, **other})])
    assert list(seen.it.job().fresh) == ["a"]


def test_pods_that_nodes_refuse_are_not_counted_for_a_while_also_by_the_next_driver() -> None:
    def refused(seen: Seen, attempt: int) -> SessionSummary:
        at = ref("a", 0, attempt)
        return seen.said(at, failure_class="infra", failure_reason="NodeRefused")

    seen, next_driver = Seen("a"), Seen("a")
    for attempt in range(REFUSALS + 2):
        seen.see(events.SessionOpened(ref("a", 0, attempt), "g0", 5.0))
        seen.see(events.SessionReported(refused(seen, attempt), 60.0))
    next_driver.found([refused(next_driver, attempt) for attempt in range(REFUSALS + 2)])
    for one in (seen, next_driver):
        (sample,) = one.it.job().groups["a"].samples
        assert (sample.refused, sample.spent, sample.attempt) == (REFUSALS + 2, 2, REFUSALS + 1)


def test_a_group_whose_straggler_was_cut_is_over_for_the_next_driver_too() -> None:
    seen = Seen("a", groupSize=2)
    cut = seen.said(ref("a", 1), failure_class="agent", failure_reason="Straggler")
    seen.found([seen.said(ref("a", 0)), cut])
    assert seen.it.settled == {"a": 2}


def test_samples_are_tried_anew_with_attempts_that_count_on() -> None:
    seen = Seen("a", "b", groupSize=2, group={"retry": {"infra": 0}})
    failed = seen.said(ref("a", 1, 2), failure_class="infra", failure_reason="EngineError", turns=3)
    good = [seen.said(ref(uid, sample)) for uid in "ab" for sample in (0, 1) if (uid, sample) != ("a", 1)]
    seen.found([*good, failed], again=frozenset({("a", 1), ("b", 1)}))
    group = seen.it.job().groups["a"]
    assert [(one.state, one.attempt, one.spent) for one in group.samples] == [
        (SampleState.ENDED, 0, 0),
        (SampleState.WAITING, 2, 0),
    ]
    assert seen.it.job().groups["b"].samples[1].state is SampleState.WAITING
    assert start("a", 1, 3, "g0") in plan_job(seen.it.want, seen.it.job(), 99.0)


def absent(seen: Seen, at: Ref) -> None:
    """Its program is not there."""
    seen.see(events.SessionOpened(at, "g0", 5.0))
    seen.see(events.AgentSeen(at, Running(5.0, None, Exit(5.0, detail="pythonx is not on PATH"))))
    ended = seen.said(at, failure_class="infra", failure_reason="StartFailed")
    seen.see(events.SessionReported(ended, 6.0))


def test_first_sessions_that_all_lack_their_program_leave_no_hope() -> None:
    seen = Seen("a", "b", groupSize=2, parallelism=4)
    absent(seen, ref("a", 0))
    assert seen.it.job().hopeless is None
    absent(seen, ref("a", 1))
    assert seen.it.job().hopeless == Hopeless("ProgramMissing", "agent: pythonx is not on PATH")


def test_a_job_that_got_somewhere_in_an_earlier_life_is_not_hopeless() -> None:
    seen = Seen("a", "b", "c", parallelism=2)
    seen.found([seen.said(ref("a"), turns=1)])
    absent(seen, ref("b"))
    absent(seen, ref("c"))
    assert seen.it.job().hopeless is None
    trained = Seen("b", "c", parallelism=2)
    trained.see(events.CommittedBefore(1))
    absent(trained, ref("b"))
    absent(trained, ref("c"))
    assert trained.it.job().hopeless is None


def test_what_is_committed_may_be_forgotten() -> None:
    seen = Seen("a", groupSize=1)
    seen.see(events.SessionOpened(ref("a"), "g0", 5.0))
    seen.see(events.SessionReported(seen.said(ref("a")), 60.0))
    seen.see(events.GroupCommitted("a", (ref("a").name, "unknown")))
    assert seen.it.sessions[ref("a").name].committed
    assert seen.it.job().committed == 1
    seen.see(events.SessionForgotten(ref("a")))
    assert seen.it.sessions == {}


def test_what_runs_by_a_record_that_was_made_anew_is_not_forgotten() -> None:
    """It had ended by the one before: else it would be live for ever, and no news would find it."""
    seen = Seen("a", groupSize=1)
    seen.see(events.SessionOpened(ref("a"), "g0", 5.0))
    seen.see(events.SessionForgotten(ref("a")))
    assert set(seen.it.sessions) == {ref("a").name}
    seen.see(events.SessionReported(seen.said(ref("a")), 60.0))
    seen.see(events.SessionForgotten(ref("a")))
    assert seen.it.sessions == {}


def test_news_of_what_is_forgotten_changes_nothing() -> None:
    seen = Seen("a")
    seen.see(events.AgentSeen(ref("a"), Running(1.0)))
    seen.see(events.VerifierSeen(ref("a"), Running(1.0)))
    seen.see(events.SessionReported(seen.said(ref("a")), 1.0))
    seen.see(events.AgentStopping(ref("a"), Stop(None)))
    seen.see(events.TimerSet(ref("a").name, 5.0))
    assert (dict(seen.it.sessions), seen.keys) == ({}, [])


def test_a_gateway_that_leaves_takes_no_sessions_and_comes_back_with_its_load() -> None:
    seen = Seen("a", "b")
    seen.see(events.SessionOpened(ref("a"), "g0", 5.0))
    seen.see(events.GatewayChanged("g0", ready=False))
    assert seen.it.job().gateways == {}
    seen.see(events.GatewayChanged("g0", ready=True))
    assert seen.it.job().gateways == {"g0": 1}


@pytest.mark.parametrize(
    ("before", "reason"),
    [(True, None), (False, FailureReason.STRAGGLER)],
    ids=["once its end is known only side-cars are stopped", "before that it is itself"],
)
def test_what_its_gateway_says_after_a_stop_does_not_change_what_was_stopped(
    before: bool, reason: FailureReason | None
) -> None:
    seen, at, end = Seen("a"), ref("a", 0), Exit(20.0, 0)
    seen.see(events.SessionOpened(at, "g0", 5.0))
    ended = events.AgentSeen(at, Running(6.0, 7.0, end, side_cars=SideCars.RUN))
    stop = events.AgentStopping(at, Stop(FailureReason.STRAGGLER), 22.0)
    told: list[events.Event] = [ended, events.SessionReported(seen.said(at, "open"), 21.0), stop]
    for event in told if before else reversed(told):
        seen.see(event)
    seen.see(events.SessionReported(seen.said(at, "open"), 30.0))
    assert failure(seen.it.want.spec, seen.it.sessions[at.name], end)[0] is reason
