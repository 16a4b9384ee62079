"""The pure parts of the cluster driver: what objects say, what a new operator makes of them, news that come late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.agent_session import AgentSessionSpec
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.manifest_decoder import decode, encode
from sandgate.contract.session import SessionState, SessionSummary, parse_termination
from sandgate.contract.status import AgentSessionStatus, Condition, ConditionStatus, RolloutJobStatus
from sandgate.operator.cluster.engines import pod_url
from sandgate.operator.cluster.object_store import ObjectTable, PodKept, SessionSeen, session_seen
from sandgate.operator.cluster.recovery import UNTOLD, Recovered, unknown
from sandgate.operator.cluster.refused_job import mended, refusal, verdict
from sandgate.operator.cluster.session_status import session_status, stop_told
from sandgate.operator.observed.pod_record import PodSeen
from sandgate.operator.plan.actions import (
    Exit,
    LookSession,
    Ref,
    Running,
    SealSession,
    SessionObserved,
    SideCars,
    Stop,
    Told,
)
from sandgate.operator.plan.ends import OVER
from sandgate.operator.plan.session import plan_session
from sandgate.operator.plan.settling import JOURNAL_LOST
from tests.operator.fake_kube import matches
from tests.operator.plans import ref, running, said, session, want

R = FailureReason
URL = "http://g/sessions/x/v1"


def facts(status: AgentSessionStatus) -> list[str]:
    """`Running=False:Ended`, in order."""
    return [f"{one.type}={one.status}:{one.reason}" for one in status.conditions]


def told(
    seen: SessionObserved, before: AgentSessionStatus | None = None, now: float = 100.0
) -> AgentSessionStatus:
    return session_status(seen, before or AgentSessionStatus(), now, base_url=URL)


LIVES: dict[str, tuple[SessionObserved, list[str]]] = {
    "one that was asked for": (session(sandbox=running(None)), ["Scheduled=True:Asked"]),
    "one that runs": (session(sandbox=running(3.0)), ["Scheduled=True:Asked", "Running=True:Started"]),
    "one that is being stopped says why": (
        session(sandbox=running(3.0), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        ["Scheduled=True:Asked", "Running=True:Started", "Finished=False:SessionTimeout"],
    ),
    "one that ended well": (
        session(sandbox=running(3.0, Exit(9.0, 0)), summary=said("finalized")),
        ["Scheduled=True:Asked", "Running=False:Ended", "Finished=True:Completed", "Finalized=True:Sealed"],
    ),
    "one that is committed": (
        session(sandbox=running(3.0, Exit(9.0, 0)), summary=said("finalized"), committed=True),
        [
            "Scheduled=True:Asked",
            "Running=False:Ended",
            "Finished=True:Completed",
            "Finalized=True:Sealed",
            "TrajectoryCommitted=True:Acknowledged",
        ],
    ),
    "one whose image was not there": (
        session(
            sandbox=running(None, Exit(9.0, reason=R.IMAGE_ERROR)),
            summary=said("finalized", failure_class="infra", failure_reason="ImageError"),
        ),
        [
            "Scheduled=True:Asked",
            "Running=False:NeverStarted",
            "Finished=True:ImageError",
            "Finalized=True:Sealed",
        ],
    ),
    "one that was aborted is kept by nobody": (
        session(sandbox=running(3.0, Exit(9.0, 0)), summary=said("aborted")),
        [
            "Scheduled=True:Asked",
            "Running=False:Ended",
            "Finished=True:Aborted",
            "Finalized=False:Discarded",
        ],
    ),
    "a remote one": (session(remote=True), ["Scheduled=True:Remote", "Running=True:Started"]),
}


@pytest.mark.parametrize(("seen", "wanted"), LIVES.values(), ids=LIVES)
def test_what_an_agentsession_says(seen: SessionObserved, wanted: list[str]) -> None:
    assert facts(told(seen)) == wanted


def test_a_status_that_did_not_change_is_the_same() -> None:
    first = told(session(sandbox=running(3.0)))
    assert session_status(session(sandbox=running(3.0)), first, 900.0, base_url=URL) == first


def test_an_infra_failure_says_no_reward() -> None:
    lost = said("finalized", failure_class="infra", failure_reason="NodeLost", reward=0.5)
    assert told(session(summary=lost)).reward is None


def test_why_it_was_being_stopped_is_read_back() -> None:
    why = Stop(R.STRAGGLER, "the group has its quorum")
    assert stop_told(told(session(sandbox=running(3.0), stop=why))) == why
    assert stop_told(told(session(sandbox=running(3.0), stop=Stop(None)))) == Stop(None)
    assert stop_told(told(session(sandbox=running(3.0)))) is None


# -- what a new operator makes of it ---------------------------------------------------------------------------------


def kept(status: AgentSessionStatus | None = None, at: Ref | None = None, **more: Any) -> SessionSeen:
    at = at or ref()
    spec = AgentSessionSpec(
        job_name=at.job, task_uid=at.uid, sample_index=at.sample, attempt=at.attempt, gateway="g0"
    )
    return SessionSeen(
        name=at.name, uid=f"u-{at.name}", version=1, spec=spec, status=status or AgentSessionStatus(), **more
    )


def pod(run: Running, at: Ref | None = None) -> PodKept:
    name = (at or ref()).name
    seen = PodSeen(
        name=name, namespace="lab", uid="p", job="shop", session=name, group="", role="agent", running=run
    )
    return PodKept(1, seen)


def memory(*sessions: SessionSeen, pods: dict[str, PodKept] | None = None) -> Recovered:
    return Recovered({one.name: one for one in sessions}, pods or {}, {}, 100.0)


def recalled(
    summary: SessionSummary, *sessions: SessionSeen, run: Running | None = None
) -> SessionObserved | None:
    pods = {} if run is None else {str(ref().name): pod(run)}
    return memory(*sessions, pods=pods).recall(ref(), summary)


def test_what_runs_goes_on() -> None:
    found = recalled(said("open", turns=3), kept(), run=running(3.0))
    assert found is not None
    assert (found.sandbox, found.deleted, found.told) == (running(3.0), False, Told.NOTHING)


def test_of_a_job_that_is_over_nothing_begins() -> None:
    """Its gateway was away when it was to be opened, or the answer was lost; then its group was closed without it."""
    known = replace(memory(kept(), kept(at=ref("b"))), over=True)
    found = known.recall(ref(), said("open"))
    assert found is not None
    assert found.stop == OVER
    (action,) = plan_session(want().spec, found, 100.0)
    assert isinstance(action, SealSession), "no StartAttempt"
    assert unknown("g0", [said("open")], known) == []
    begun = known.recall(ref(), said("open", turns=1))
    assert begun is not None
    assert begun.stop is None, "that its pod is gone says more"


NOBODY = memory(kept())
STILL_TO_BEGIN = {
    "this operator had it opened, and made no pod": replace(NOBODY, before={ref().name: session()}),
    "this operator is having it opened": replace(NOBODY, met=True),
}


@pytest.mark.parametrize("known", STILL_TO_BEGIN.values(), ids=STILL_TO_BEGIN)
def test_what_never_began_begins(known: Recovered) -> None:
    found = known.recall(ref(), said("open"))
    assert found is not None
    assert (found.sandbox, found.deleted) == (None, False)


HAS_BEGUN: dict[str, tuple[Recovered, int, FailureReason, str]] = {
    "a turn was taken": (NOBODY, 1, R.EVICTED, "its pod is gone"),
    "its status names a pod": (
        memory(kept(AgentSessionStatus(pod_name="p"))),
        0,
        R.EVICTED,
        "its pod is gone",
    ),
    "this operator saw its pod": (
        replace(NOBODY, before={ref().name: session(sandbox=running(3.0))}, met=True),
        0,
        R.EVICTED,
        "its pod is gone",
    ),
    "this operator gave it up": (
        replace(
            NOBODY,
            before={ref().name: session(summary=said("finalized", failure_reason="DriverLost"))},
            met=True,
        ),
        0,
        R.DRIVER_LOST,
        UNTOLD,
    ),
    "this operator saw how it ended": (
        replace(
            NOBODY,
            before={ref().name: session(sandbox=running(3.0, Exit(20.0, reason=R.OOM_KILLED)))},
            met=True,
        ),
        0,
        R.OOM_KILLED,
        "",
    ),
    "an operator before this one opened it": (NOBODY, 0, R.DRIVER_LOST, UNTOLD),
}


@pytest.mark.parametrize(("known", "turns", "reason", "detail"), HAS_BEGUN.values(), ids=HAS_BEGUN)
def test_what_may_have_begun_is_never_begun_again(
    known: Recovered, turns: int, reason: FailureReason, detail: str
) -> None:
    found = known.recall(ref(), said("open", turns=turns))
    assert found is not None
    assert found.sandbox is not None
    assert found.sandbox.exit is not None
    assert (found.sandbox.exit.reason, found.sandbox.exit.detail) == (reason, detail)
    (look,) = plan_session(want().spec, found, 100.0)
    assert isinstance(look, SealSession if found.looked_at else LookSession), "its gateway may not know it"
    (action,) = plan_session(want().spec, replace(found, looked_at=101.0), 102.0)
    assert isinstance(action, SealSession)
    assert action.outcome.failure_reason is reason


def test_what_its_gateway_knows_is_asked_once_its_pod_is_seen_to_have_ended() -> None:
    """Its turns may be newer than the listing that a new operator began with."""
    found = recalled(said("open"), kept(), run=running(3.0, Exit(20.0, 0)))
    assert found is not None
    (look,) = plan_session(want().spec, found, 100.0)
    assert isinstance(look, LookSession)


def test_one_whose_object_was_deleted_meanwhile_is_discarded() -> None:
    found = recalled(said("open", turns=1), run=running(3.0))
    assert found is not None
    assert found.deleted


def test_why_it_was_stopped_is_known_again() -> None:
    why = Stop(R.SESSION_TIMEOUT, "too long")
    status = told(session(sandbox=running(3.0), stop=why))
    found = recalled(said("open", turns=1), kept(status), run=running(3.0))
    assert found is not None
    assert (found.stop, found.stop_at) == (why, 100.0)


LEFT = parse_termination(b'{"reward": 0.5, "reward_info": {"tests": "3 of 6"}}')
ENDS: dict[str, Exit] = {
    "by its exit code": Exit(20.0, 0, message=LEFT),
    "with words that no JSON is": Exit(
        20.0, 3, detail="boom", message=parse_termination(b"boom\0!"), traceback=True
    ),
    "by a signal": Exit(20.0, signal=9, stopped=True),
    "of its own memory": Exit(20.0, reason=R.OOM_KILLED, detail="more memory than resources.limits.memory"),
    "on a machine whose codes are negative": Exit(20.0, -1),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_how_an_agent_ended_is_known_without_its_pod(end: Exit) -> None:
    ended = session(sandbox=running(3.0, end, side_cars=SideCars.RUN))
    found = recalled(said("open", turns=1), kept(decode(AgentSessionStatus, encode(told(ended)))))
    assert found is not None
    assert found.sandbox == Running(0.0, 3.0, end)
    assert not found.deleted


def test_an_agent_that_ended_runs_no_more_whatever_its_pod_says_by_now() -> None:
    status = told(session(sandbox=running(3.0, Exit(20.0, 0), side_cars=SideCars.RUN)))
    evicted = running(None, Exit(70.0, reason=R.EVICTED, detail="low on memory"))
    for says, left in ((running(3.0), SideCars.RUN), (evicted, SideCars.NONE)):
        found = recalled(said("open", turns=1), kept(status), run=says)
        assert found is not None
        assert found.sandbox == running(3.0, Exit(20.0, 0), side_cars=left)


RUNS = session(sandbox=running(3.0))
CLEARS = session(sandbox=running(3.0, Exit(20.0, 0), side_cars=SideCars.RUN))
CUT = Stop(R.STRAGGLER, "the group is whole")
STOPS: dict[str, tuple[list[SessionObserved], FailureReason | None]] = {
    "a stop that came while only its side-cars ran does not judge it": ([replace(CLEARS, stop=CUT)], None),
    "nor where it had been told that it runs": ([RUNS, replace(CLEARS, stop=CUT)], None),
    "nor where its end had been written down before": ([RUNS, CLEARS, replace(CLEARS, stop=CUT)], None),
    "one that came before its end was known does": (
        [RUNS, replace(RUNS, stop=CUT), replace(CLEARS, stop=CUT)],
        R.STRAGGLER,
    ),
}


@pytest.mark.parametrize(("written", "reason"), STOPS.values(), ids=STOPS)
def test_whether_its_end_was_known_when_it_was_stopped_is_known_again(
    written: list[SessionObserved], reason: FailureReason | None
) -> None:
    """`written`: what its status was made from, one after the other."""
    status = AgentSessionStatus()
    for number, one in enumerate(written):
        status = told(one, status, 25.0 + 10 * number)
    found = recalled(said("open", turns=1), kept(decode(AgentSessionStatus, encode(status))))
    assert found is not None
    (action,) = plan_session(want().spec, replace(found, looked_at=101.0), 102.0)
    assert isinstance(action, SealSession)
    assert action.outcome.failure_reason is reason


def test_what_is_sealed_keeps_no_end() -> None:
    ended = session(sandbox=running(3.0, Exit(20.0, 0)))
    assert told(ended).agent_end is not None
    assert told(replace(ended, summary=said("finalized"))).agent_end is None


def test_what_is_told_and_committed_needs_nothing() -> None:
    whole = said("finalized", committed=True)
    status = told(session(summary=whole, committed=True))
    assert recalled(whole, kept(status)) is None
    untold = recalled(whole, kept(told(session(summary=whole))))
    assert untold is not None
    assert (untold.told, untold.committed) == (Told.FINALIZED, True)


def test_sessions_that_only_their_objects_know() -> None:
    good = said("finalized")
    begun = kept(at=ref("new"))
    whole = kept(told(session(summary=good, committed=True)), ref("done"))
    half = kept(told(session(summary=good, committed=True)), ref("half", 0))
    other = kept(told(session(sandbox=running(3.0))), ref("half", 1))
    found = unknown("g0", [], memory(begun, whole, half, other))
    assert {(one.uid, one.sample_index): (one.state, one.failure_reason, one.committed) for one in found} == {
        ("new", 0): (SessionState.OPEN, None, False),
        ("done", 0): (SessionState.FINALIZED, None, True),
        ("half", 0): (SessionState.FINALIZED, "GatewayLost", False),
        ("half", 1): (SessionState.FINALIZED, "GatewayLost", False),
    }
    assert unknown("g1", [], memory(begun, whole)) == []
    seen = replace(memory(begun), before={begun.name: session(sandbox=running(3.0))})
    assert [one.failure_reason for one in unknown("g0", [], seen)] == ["GatewayLost"], "it had a pod"
    untold = memory(begun).recall(begun.ref, said("open"))
    assert untold is not None
    seen = replace(memory(begun), before={begun.name: untold})
    (made_up,) = unknown("g0", [], seen)
    assert (made_up.failure_reason, made_up.failure_detail) == ("DriverLost", ""), "nobody knows of a pod"
    ended = memory(begun).recall(begun.ref, made_up)
    assert ended is not None
    (again,) = unknown("g0", [], replace(memory(begun), before={begun.name: ended}, met=True))
    assert again == made_up, "also where nobody wrote that down before all is looked at once more"


def test_what_failed_of_an_outage_before_was_not_lost_with_the_journal() -> None:
    """Its group was the trainer's already, or was told so."""
    away = said("finalized", failure_class="infra", failure_reason="GatewayLost")
    good = said("finalized")
    sessions = (
        kept(told(session(summary=away)), ref("away")),
        kept(told(session(summary=good)), ref("good")),
    )
    found = {one.uid: one for one in unknown("g0", [], memory(*sessions))}
    assert {one.failure_reason for one in found.values()} == {"GatewayLost"}
    assert {uid for uid, one in found.items() if one.failure_detail} == {"good"}
    status = session_status(
        session(summary=found["good"]), AgentSessionStatus(), 100.0, base_url=URL, detail=JOURNAL_LOST
    )
    (again,) = unknown("g0", [], memory(kept(status, ref("good"))))
    assert again.failure_detail == JOURNAL_LOST, "also for the operator after this one"


# -- news ------------------------------------------------------------------------------------------------------------


def test_late_and_repeated_news_change_nothing() -> None:
    table: ObjectTable[SessionSeen] = ObjectTable()
    first = kept()
    assert table.put("a", replace(first, version=5))
    assert not table.put("a", replace(first, version=5))
    assert not table.put("a", replace(first, version=4))
    assert table.put("a", replace(first, version=6))
    assert table.pop("a", "another") is None
    assert table.pop("a", first.uid) is not None
    assert not table.put("a", replace(first, version=9)), "what is gone does not come back"
    assert table.put("a", replace(first, uid="new", version=10))


def test_a_session_of_a_newer_api_is_understood_as_far_as_it_goes() -> None:
    body = {
        "metadata": {"name": "x", "uid": "u", "resourceVersion": "7"},
        "spec": {**encode(kept().spec), "future": 1},
        "status": {"conditions": "nonsense"},
    }
    found = session_seen(body)
    assert found is not None
    assert (found.ref, found.version, found.told) == (ref(), 7, Told.NOTHING)
    assert session_seen({"metadata": {}, "spec": {"jobName": 5}}) is None


READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
ENGINES: dict[str, tuple[dict[str, Any], str]] = {
    "one that is ready": ({"status": READY}, "http://10.0.0.1:8000"),
    "one with an IPv6 address": ({"status": {**READY, "podIP": "fd00::1"}}, "http://[fd00::1]:8000"),
    "one that is not ready": ({"status": {**READY, "conditions": []}}, ""),
    "one that goes": ({"metadata": {"deletionTimestamp": "now"}, "status": READY}, ""),
    "one without an address": ({"status": {**READY, "podIP": None}}, ""),
    "one that nothing is known of": ({}, ""),
}


@pytest.mark.parametrize(("body", "url"), ENGINES.values(), ids=ENGINES)
def test_which_engine_pods_count(body: dict[str, Any], url: str) -> None:
    assert pod_url(body, 8000) == url


def test_a_refused_job_says_why_and_a_mended_one_begins_anew() -> None:
    status = refusal("spec.groupSize: is wrong", 3, None, 100.0)
    shown = {one.type: (one.status.value, one.reason, one.message) for one in status.conditions}
    assert shown["Failed"] == ("True", "BadManifest", "spec.groupSize: is wrong")
    assert shown["Ready"][0] == "False"
    again = mended(status)
    assert again is not None
    assert (again.conditions, again.completion_time) == ((), "")
    assert mended(None) is None


def began(**conditions: tuple[str, str]) -> RolloutJobStatus:
    """Of a job that began: a condition is (status, reason)."""
    made = tuple(
        Condition(type=kind, status=ConditionStatus(status), reason=reason)
        for kind, (status, reason) in conditions.items()
    )
    return RolloutJobStatus(conditions=made, selector="sandgate.dev/job=shop", reason=made[0].reason)


NEVER_BEGUN = refusal("spec.agent: was wrong", 1, None, 100.0)
VERDICTS: dict[str, tuple[RolloutJobStatus | None, str, dict[str, tuple[str, str]]]] = {
    "a new job": (None, "BadManifest", {"Failed": ("True", "BadManifest")}),
    "a job that is corrected, and wrong still": (
        NEVER_BEGUN,
        "BadManifest",
        {"Failed": ("True", "BadManifest")},
    ),
    "a job of which the API server holds only that it begins": (
        RolloutJobStatus(selector="sandgate.dev/job=shop"),
        "SpecRefused",
        {"Progressing": ("False", "SpecRefused")},
    ),
    "a job that runs": (
        began(Progressing=("True", "Running"), Failed=("False", "NotFailed")),
        "SpecRefused",
        {"Progressing": ("False", "SpecRefused"), "Failed": ("False", "NotFailed")},
    ),
    "a job that is complete stays so": (
        began(Complete=("True", "AllEnded")),
        "AllEnded",
        {"Complete": ("True", "AllEnded"), "Progressing": ("False", "SpecRefused")},
    ),
    "a job that began, and that an older operator called refused": (
        began(Failed=("True", "BadManifest")),
        "SpecRefused",
        {"Failed": ("", ""), "Progressing": ("False", "SpecRefused")},
    ),
}


@pytest.mark.parametrize(("before", "word", "says"), VERDICTS.values(), ids=VERDICTS)
def test_only_what_never_began_is_called_refused(
    before: RolloutJobStatus | None, word: str, says: dict[str, tuple[str, str]]
) -> None:
    status = verdict("spec.groupSize: is wrong", 3, before, 200.0)
    shown = {one.type: (one.status.value, one.reason) for one in status.conditions}
    assert status.reason == word
    assert {kind: shown.get(kind, ("", "")) for kind in says} == says
    assert any(one.message == "spec.groupSize: is wrong" for one in status.conditions)


SELECTORS = [
    ("a=1", {"a": "1"}, True),
    ("a=1", {"a": "2"}, False),
    ("a=1,b in (x, y)", {"a": "1", "b": "y"}, True),
    ("a=1,b in (x,y)", {"a": "1", "b": "z"}, False),
    ("!a", {}, True),
    ("!a", {"a": "1"}, False),
    ("", {}, True),
]


@pytest.mark.parametrize(("selector", "labels", "fits"), SELECTORS, ids=str)
def test_the_fakes_selectors(selector: str, labels: dict[str, str], fits: bool) -> None:
    assert matches(selector, labels) is fits
