"""One attempt from its opening to its end: a row is a situation, its name what must hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import (
    AbortSession,
    Action,
    Exit,
    Forget,
    KillAttempt,
    KillVerifier,
    LookSession,
    SealSession,
    SessionObserved,
    SideCars,
    StartAttempt,
    StartVerifier,
    Stop,
    StopAttempt,
    StopSideCars,
    StopVerifier,
    Told,
    Waiting,
    WakeAt,
    WriteSession,
)
from sandgate.operator.plan.session import TOO_LATE, WAITS_S, plan_session
from tests.operator.plans import (
    TRAINER,
    VERIFIER,
    after,
    ended,
    left,
    ref,
    running,
    said,
    scored,
    seal,
    session,
    spec,
    timed_out,
    told,
)

R = FailureReason
AGENT = {"reward": {"source": "agent", "discount": 0.5}}
FULL = "limit reached: journalShare: its gateway's volume is nearly full"
COMPLETE = {"agent__completion": "Complete", **TRAINER}
JUDGED_AT_COMPLETE = {"agent__completion": "Complete", **VERIFIER}
JUDGES_ITSELF = {"agent__completion": "Complete", **AGENT}


def side_car(end: Exit, left_over: SideCars = SideCars.RUN, **more: Any) -> SessionObserved:
    """The agent ended, and something of its pod did not."""
    seen = after(end, **more)
    return replace(seen, sandbox=running(1.0, end, side_cars=left_over))


Case = tuple[RolloutJobSpec, SessionObserved, float, list[Action]]
STEPS: dict[str, Case] = {
    "an open session is started": (spec(), session(), 0.0, [StartAttempt(ref())]),
    "one that starts is waited for": (spec(), session(sandbox=running(None)), 5.0, [WakeAt(10)]),
    "one that has no node is waited for, though no scheduler says so": (
        spec(),
        session(sandbox=running(None, unplaced=True)),
        11.0,
        [WakeAt(WAITS_S)],
    ),
    "the time of one whose node's clock is behind runs from when it was asked for": (
        spec(),
        session(sandbox=replace(running(-119.0), asked_at=5.0)),
        50.0,
        [WakeAt(105.0)],
    ),
    "once is enough": (spec(), session(sandbox=running(None), wake_at=10), 5.0, []),
    "one that does not start in time is stopped": (
        spec(),
        session(sandbox=running(None)),
        10.0,
        [StopAttempt(ref(), Stop(R.START_TIMEOUT, "not started within startSeconds 10"))],
    ),
    "what its pod waited for is said": (
        spec(),
        session(sandbox=running(None, waiting=Waiting("FailedMount: secret x not found"))),
        10.0,
        [
            StopAttempt(
                ref(),
                Stop(R.START_TIMEOUT, "not started within startSeconds 10: FailedMount: secret x not found"),
            )
        ],
    ),
    "an image that was not pulled in time is an image's failure": (
        spec(),
        session(sandbox=running(None, waiting=Waiting("agent: ErrImagePull: 404", R.IMAGE_ERROR))),
        10.0,
        [
            StopAttempt(
                ref(), Stop(R.IMAGE_ERROR, "not started within startSeconds 10: agent: ErrImagePull: 404")
            )
        ],
    ),
    "a pod without room does not start: its time does not run": (
        spec(),
        session(sandbox=running(None, waiting=Waiting("Unschedulable: 0/3 nodes"), unplaced=True)),
        999.0,
        [WakeAt(WAITS_S)],
    ),
    "one that found no room before its keys run out is tried anew": (
        spec(),
        session(sandbox=running(None, waiting=Waiting("Unschedulable: 0/3 nodes"), unplaced=True)),
        WAITS_S,
        [StopAttempt(ref(), TOO_LATE)],
    ),
    "so is one that could not be made, for a quota": (
        spec(),
        session(),
        WAITS_S,
        [StopAttempt(ref(), TOO_LATE)],
    ),
    "an image that is on its way has more time": (
        spec(),
        session(
            sandbox=running(None, waiting=Waiting("Pulling: Pulling image", from_event=True, pulls=True))
        ),
        4 * spec().limits.start_seconds - 1.0,
        [WakeAt(4.0 * spec().limits.start_seconds)],
    ),
    "but it can be stopped": (
        spec(),
        session(
            sandbox=running(None, waiting=Waiting("Unschedulable: 0/3 nodes"), unplaced=True),
            summary=said("aborted"),
        ),
        999.0,
        [StopAttempt(ref(), Stop(R.ABORTED, "aborted at the gateway"))],
    ),
    "its time begins with its place on a node": (
        spec(),
        session(sandbox=running(None, placed_at=995.0)),
        999.0,
        [WakeAt(1005.0)],
    ),
    "one that runs is waited for": (spec(), session(sandbox=running(3.0)), 5.0, [WakeAt(103.0)]),
    "one that runs too long is stopped": (
        spec(),
        session(sandbox=running(3.0)),
        103.0,
        [StopAttempt(ref(), Stop(R.SESSION_TIMEOUT, "still running after sessionSeconds 100"))],
    ),
    "one that is being stopped is left to it": (
        spec(),
        session(sandbox=running(3.0), stop=Stop(R.SESSION_TIMEOUT), stop_at=103.0),
        110.0,
        [WakeAt(163.0)],
    ),
    "for a minute": (
        spec(),
        session(sandbox=running(3.0), stop=Stop(R.SESSION_TIMEOUT), stop_at=103.0),
        163.0,
        [KillAttempt(ref())],
    ),
    "one that was killed is waited for": (
        spec(),
        session(sandbox=running(3.0), stop=Stop(R.SESSION_TIMEOUT), stop_at=103.0, killed=True),
        999.0,
        [],
    ),
    "one whose object somebody deleted is discarded": (
        spec(),
        session(sandbox=running(3.0), deleted=True),
        5.0,
        [AbortSession(ref())],
    ),
    "and its sandbox is stopped": (
        spec(),
        session(sandbox=running(3.0), deleted=True, summary=said("aborted")),
        5.0,
        [StopAttempt(ref(), Stop(R.ABORTED, "aborted at the gateway"))],
    ),
    "one that has just started is looked at again, to say Running": (
        spec(),
        session(sandbox=running(3.0), told=Told.NOTHING),
        5.0,
        [WakeAt(33.0)],
    ),
    "after half a minute it says so": (
        spec(),
        session(sandbox=running(3.0), told=Told.NOTHING),
        33.0,
        [WriteSession(ref()), WakeAt(103.0)],
    ),
    "once": (spec(), session(sandbox=running(3.0), told=Told.RUNNING, wake_at=103.0), 8.0, []),
    "what is sealed says so": (
        spec(),
        session(summary=said("finalized"), told=Told.RUNNING),
        5.0,
        [WriteSession(ref())],
    ),
    "and is kept until it is committed": (
        spec(),
        session(summary=said("finalized"), told=Told.FINALIZED),
        5.0,
        [],
    ),
    "then it says that": (
        spec(),
        session(summary=said("finalized"), told=Told.FINALIZED, committed=True),
        5.0,
        [WriteSession(ref())],
    ),
    "and goes": (
        spec(),
        session(summary=said("finalized"), told=Told.COMMITTED, committed=True),
        5.0,
        [Forget(ref())],
    ),
    "what is never committed goes when it has said how it ended": (
        spec(),
        session(summary=said("finalized", failure_class="infra"), told=Told.FINALIZED),
        5.0,
        [Forget(ref())],
    ),
    "a remote agent is told where to go": (
        spec(),
        session(remote=True, told=Told.NOTHING),
        5.0,
        [WriteSession(ref())],
    ),
    "an end is looked into before it is judged": (
        spec(),
        session(sandbox=running(1.0, ended(at=20.0)), summary=said(), looked_at=19.0),
        20.0,
        [LookSession(ref())],
    ),
    "with /complete as the end, the sandbox is stopped then": (
        spec(**COMPLETE),
        session(sandbox=running(1.0), summary=said("complete")),
        5.0,
        [StopAttempt(ref(), Stop(None))],
    ),
    "with exit as the end, /complete stops nothing": (
        spec(),
        session(sandbox=running(1.0), summary=said("complete")),
        5.0,
        [WakeAt(101.0)],
    ),
    "aborted at the gateway, its sandbox is stopped": (
        spec(),
        session(sandbox=running(1.0), summary=said("aborted")),
        5.0,
        [StopAttempt(ref(), Stop(R.ABORTED, "aborted at the gateway"))],
    ),
    "and then forgotten": (spec(), after(ended(), said("aborted")), 30.0, [Forget(ref())]),
    "a session of another life is sealed as lost": (
        spec(),
        session(lost=True, summary=said()),
        0.0,
        seal(R.DRIVER_LOST, "its driver died while it ran"),
    ),
    "one told to stop before it began is sealed": (
        spec(),
        session(stop=Stop(R.ABORTED, "suspended")),
        0.0,
        seal(R.ABORTED, "suspended"),
    ),
    "a sealed one is kept until it is committed": (spec(), after(ended(), said("finalized")), 30.0, []),
    "then it is forgotten": (
        spec(),
        after(ended(), said("finalized"), committed=True),
        30.0,
        [Forget(ref())],
    ),
    "an infra failure has nothing to commit": (
        spec(),
        after(ended(), said("finalized", failure_class="infra")),
        30.0,
        [Forget(ref())],
    ),
    "a side-car that runs on is stopped before a verifier runs": (
        spec(**VERIFIER),
        side_car(ended()),
        20.0,
        [StopSideCars(ref())],
    ),
    "a stop that comes while only its side-cars run does not judge it": (
        spec(),
        replace(
            after(ended(), stop=Stop(R.STRAGGLER, "the group is whole"), stop_at=26.0, stop_late=True),
            side_cars_stop_at=21.0,
        ),
        30.0,
        seal(reward=1.0, reward_info={"exit_code": 0}),
    ),
    "one that came before its end does": (
        spec(),
        replace(after(ended()), stop=Stop(R.STRAGGLER, "the group is whole"), stop_at=10.0),
        30.0,
        seal(R.STRAGGLER, "the group is whole"),
    ),
    "and before the session is sealed": (spec(), side_car(ended(1)), 20.0, [StopSideCars(ref())]),
    "it is told once, and has a moment to end": (
        spec(**VERIFIER),
        replace(side_car(ended()), side_cars_stop_at=21.0),
        22.0,
        [WakeAt(81.0)],
    ),
    "one that does not end is ended by force": (
        spec(**VERIFIER),
        replace(side_car(ended()), side_cars_stop_at=21.0),
        81.0,
        [KillAttempt(ref())],
    ),
    "and is not waited for again": (
        spec(**VERIFIER),
        replace(side_car(ended()), side_cars_stop_at=21.0, killed=True),
        82.0,
        [StartVerifier(ref())],
    ),
    "of an agent that was stopped it was stopped with it": (
        spec(),
        side_car(ended(None, signal=15), stop=Stop(R.SESSION_TIMEOUT, "late"), stop_at=19.0),
        20.0,
        [WakeAt(79.0)],
    ),
    "a side-car that its kubelet ends has a moment for that": (
        spec(**VERIFIER),
        side_car(ended(), SideCars.ENDING),
        20.0,
        [WakeAt(80.0)],
    ),
    "then it is stopped as well": (
        spec(**VERIFIER),
        side_car(ended(), SideCars.ENDING),
        80.0,
        [StopSideCars(ref())],
    ),
    "an infra failure waits for no side-car: nothing of it counts": (
        spec(),
        side_car(ended(None, reason=R.NODE_LOST, detail="its node is gone")),
        20.0,
        seal(R.NODE_LOST, "its node is gone"),
    ),
    "a verifier runs after the agent": (spec(**VERIFIER), after(ended()), 20.0, [StartVerifier(ref())]),
    "also after one that crashed": (spec(**VERIFIER), after(ended(1)), 20.0, [StartVerifier(ref())]),
    "not after an infra failure": (
        spec(**VERIFIER),
        after(ended(None, reason=R.EVICTED, detail="too much")),
        20.0,
        seal(R.EVICTED, "too much"),
    ),
    "a verifier that has a node starts within startSeconds": (
        spec(**VERIFIER),
        after(ended(), verifier=running(None, placed_at=30.0)),
        39.0,
        [WakeAt(40.0)],
    ),
    "or is stopped": (
        spec(**VERIFIER),
        after(ended(), verifier=running(None, placed_at=30.0)),
        40.0,
        [StopVerifier(ref())],
    ),
    "its time does not run while its image is on its way": (
        spec(**VERIFIER),
        after(ended(), verifier=running(None, placed_at=30.0, waiting=Waiting("Pulling: v", pulls=True))),
        60.0,
        [WakeAt(70.0)],
    ),
    "nor while it has no node": (
        spec(**VERIFIER),
        after(ended(), verifier=running(None, unplaced=True)),
        71_999.0,
        [WakeAt(72_000.0)],
    ),
    "one that was stopped before it started is lost: the policy's answer was judged by nobody": (
        spec(**VERIFIER),
        replace(
            after(
                ended(),
                verifier=running(None, ended(None, at=41.0, signal=9, detail="stopped"), placed_at=30.0),
                verifier_stop_at=40.0,
            ),
            looked_at=41.0,
        ),
        42.0,
        seal(R.VERIFIER_LOST, "verifier: not started within startSeconds 10"),
    ),
    "so is one for which there was no room": (
        spec(**VERIFIER),
        replace(
            after(
                ended(),
                verifier=running(None, ended(None, at=72_001.0, signal=9, detail="stopped")),
                verifier_stop_at=72_000.0,
            ),
            looked_at=72_001.0,
        ),
        72_002.0,
        seal(R.VERIFIER_LOST, "verifier: no room for it within 20 h"),
    ),
    "one that started before it was asked for has a node whose clock is behind": (
        spec(**VERIFIER),
        after(ended(), verifier=replace(running(-45.0), asked_at=20.0)),
        60.0,
        [WakeAt(70.0)],
    ),
    "a verifier is waited for": (
        spec(**VERIFIER),
        after(ended(), verifier=running(25.0)),
        30.0,
        [WakeAt(75.0)],
    ),
    "a slow one is stopped": (
        spec(**VERIFIER),
        after(ended(), verifier=running(25.0)),
        75.0,
        [StopVerifier(ref())],
    ),
    "it is told once, and has a moment": (
        spec(**VERIFIER),
        after(ended(), verifier=running(25.0), verifier_stop_at=75.0),
        76.0,
        [WakeAt(135.0)],
    ),
    "one that does not stop is ended by force": (
        spec(**VERIFIER),
        after(ended(), verifier=running(25.0), verifier_stop_at=75.0),
        135.0,
        [KillVerifier(ref())],
    ),
    "and that once": (
        spec(**VERIFIER),
        after(ended(), verifier=running(25.0), verifier_stop_at=75.0, verifier_killed=True),
        200.0,
        [],
    ),
    "one that hung until it was ended by force has failed, though its pod was deleted": (
        spec(**VERIFIER),
        after(
            ended(at=137.0),
            verifier=running(25.0, ended(None, at=136.0, reason=R.EVICTED, detail="the pod was deleted")),
            verifier_stop_at=75.0,
            verifier_killed=True,
        ),
        137.0,
        seal(R.VERIFIER_FAILED, "verifier: still running after seconds 50"),
    ),
    "so has one whose node was lost while it was waited for": (
        spec(**VERIFIER),
        after(
            ended(at=90.0),
            verifier=running(25.0, ended(None, at=90.0, reason=R.NODE_LOST, detail="gone")),
            verifier_stop_at=75.0,
        ),
        90.0,
        seal(R.VERIFIER_FAILED, "verifier: still running after seconds 50"),
    ),
    "one that was lost before it was told to stop is lost, however late that was seen": (
        spec(**VERIFIER),
        after(
            ended(at=80.0),
            verifier=running(25.0, ended(None, at=60.0, reason=R.NODE_LOST, detail="gone")),
            verifier_stop_at=75.0,
        ),
        90.0,
        seal(R.VERIFIER_LOST, "verifier: gone"),
    ),
    "one that was told to stop, and then ended of that, says so before its last line": (
        spec(**VERIFIER),
        after(
            ended(at=76.0),
            verifier=running(25.0, ended(None, at=75.5, signal=15, detail="case 7 of 9: passed")),
            verifier_stop_at=75.0,
        ),
        76.0,
        seal(R.VERIFIER_FAILED, "verifier: still running after seconds 50: case 7 of 9: passed"),
    ),
    "and one whose node's clock is behind": (
        spec(**VERIFIER),
        after(
            ended(at=76.0),
            verifier=running(25.0, ended(137, at=74.0, detail="case 7 of 9", stopped=True)),
            verifier_stop_at=75.0,
        ),
        76.0,
        seal(R.VERIFIER_FAILED, "verifier: still running after seconds 50: case 7 of 9"),
    ),
    "one that ended before it was told to stop ended by itself": (
        spec(**VERIFIER),
        after(
            ended(at=76.0),
            verifier=running(25.0, ended(3, at=74.0, detail="no such file")),
            verifier_stop_at=75.0,
        ),
        76.0,
        seal(R.VERIFIER_FAILED, "verifier: exit code 3: no such file"),
    ),
    "a word that came before it was ended stands": (
        spec(**VERIFIER),
        after(
            ended(at=76.0),
            verifier=running(25.0, ended(at=75.5, message=left(reward=0.5, reward_info={}))),
            verifier_stop_at=75.0,
        ),
        76.0,
        seal(reward=0.5, reward_info={}),
    ),
    "its message is the reward": (
        spec(**VERIFIER),
        after(
            ended(), verifier=running(25.0, ended(at=26.0, message=left(reward=0.5, reward_info={"a": 1})))
        ),
        26.0,
        seal(reward=0.5, reward_info={"a": 1}),
    ),
    "without a message, the gateway is asked what it posted": (
        spec(**VERIFIER),
        after(ended(), verifier=running(25.0, ended(at=26.0))),
        26.0,
        [LookSession(ref())],
    ),
    "what it posted stands": (
        spec(**VERIFIER),
        after(ended(at=26.0), said(reward=0.5), verifier=running(25.0, ended(at=26.0))),
        26.0,
        seal(),
    ),
    "one that says nothing has failed: masked, and not tried again": (
        spec(**VERIFIER),
        after(ended(at=26.0), verifier=running(25.0, ended(at=26.0))),
        26.0,
        seal(
            R.VERIFIER_FAILED,
            "verifier: it ended well but gave no reward: its message was empty; a verifier writes "
            '{"reward": n} to $SANDGATE_TERMINATION_LOG, or posts it to $SANDGATE_REWARD_URL',
        ),
    ),
    "the word of one that crashed is not taken": (
        spec(**VERIFIER),
        after(ended(at=26.0), verifier=running(25.0, ended(1, at=26.0, message=left(reward=1.0)))),
        26.0,
        seal(R.VERIFIER_FAILED, "verifier: exit code 1"),
    ),
    "how one crashed is told as of an agent: its code and its last line": (
        spec(**VERIFIER),
        after(
            ended(at=26.0), verifier=running(25.0, ended(3, at=26.0, detail="KeyError: 'x'", traceback=True))
        ),
        26.0,
        seal(R.VERIFIER_FAILED, "verifier: exit code 3 with a traceback: KeyError: 'x'"),
    ),
    "a signal has its name": (
        spec(**VERIFIER),
        after(
            ended(at=26.0),
            verifier=running(25.0, ended(None, at=26.0, signal=11, detail="loading the judge")),
        ),
        26.0,
        seal(R.VERIFIER_FAILED, "verifier: killed by SIGSEGV: loading the judge"),
    ),
    "a crash is what is told of an agent that left its verifier nothing": (
        spec(**VERIFIER),
        after(ended(1, at=26.0), verifier=running(25.0, ended(1, at=26.0))),
        26.0,
        seal(R.AGENT_EXIT, "exit code 1; its verifier: exit code 1"),
    ),
    "a verifier that was lost is lost, whatever its agent did": (
        spec(**VERIFIER),
        after(
            ended(1, at=26.0), verifier=running(25.0, ended(None, at=26.0, reason=R.NODE_LOST, detail="gone"))
        ),
        26.0,
        seal(R.VERIFIER_LOST, "verifier: gone"),
    ),
    "one that its node did not take costs no attempt, as an agent does not": (
        spec(**VERIFIER),
        after(
            ended(at=26.0),
            verifier=running(None, ended(None, at=26.0, reason=R.NODE_REFUSED, detail="OutOfcpu")),
        ),
        26.0,
        seal(R.NODE_REFUSED, "verifier: OutOfcpu"),
    ),
    "a limit of an agent whose verifier failed is no reward of 0": (
        spec(**VERIFIER),
        after(
            ended(at=26.0), said(limit_reached="turns", turns=1), verifier=running(25.0, ended(1, at=26.0))
        ),
        26.0,
        seal(R.VERIFIER_FAILED, "verifier: exit code 1"),
    ),
    "a crash keeps its reason beside the verdict": (
        spec(**VERIFIER),
        after(ended(1), verifier=running(25.0, ended(at=20.0, message=left(reward=0.5)))),
        26.0,
        seal(R.AGENT_EXIT, "exit code 1", reward=0.5, reward_info={}),
    ),
    "a remote agent is waited for": (spec(), session(remote=True), 5.0, [WakeAt(100.0)]),
    "its /complete ends the session": (
        spec(**TRAINER),
        session(remote=True, summary=said("complete", turns=1), looked_at=7.0),
        8.0,
        seal(),
    ),
    "with what its agent says is its reward": (
        spec(**{**TRAINER, "reward": {"source": "agent"}}),
        session(
            remote=True,
            summary=said("complete", turns=1, complete_info={"reward": 0.5, "why": "x"}),
            looked_at=7.0,
        ),
        8.0,
        seal(reward=0.5, reward_info={"reward": 0.5, "why": "x"}),
    ),
    "a remote agent's exit code is seen by nobody, and no reward": (
        spec(),
        session(remote=True, summary=said("complete", turns=1, complete_info={"reward": 1.0}), looked_at=7.0),
        8.0,
        seal(),
    ),
    "what a listing leaves out is looked at first": (
        spec(**{**TRAINER, "reward": {"source": "agent"}}),
        session(remote=True, summary=said("complete", turns=1, has_complete_info=True), looked_at=7.0),
        8.0,
        [LookSession(ref())],
    ),
    "its time ends it too": (
        spec(),
        session(remote=True),
        100.0,
        [StopAttempt(ref(), Stop(R.SESSION_TIMEOUT, "not complete after sessionSeconds 100"))],
    ),
}


@pytest.mark.parametrize(("wanted", "observed", "now", "actions"), STEPS.values(), ids=STEPS)
def test_plan_session(
    wanted: RolloutJobSpec, observed: SessionObserved, now: float, actions: list[Action]
) -> None:
    assert plan_session(wanted, observed, now) == actions


ENDS: dict[str, tuple[RolloutJobSpec, SessionObserved, list[Action]]] = {
    "exit 0 is a good end": (spec(), after(ended()), scored(0, True)),
    "out of memory by its own limit is its own": (
        spec(),
        after(ended(None, signal=9, reason=R.OOM_KILLED, detail="too much")),
        seal(
            R.OOM_KILLED,
            "too much",
            reward=0.0,
            reward_info={"exit_code": None} | told("SIGKILL", "too much"),
        ),
    ),
    "a program that cannot be started is the sandbox's": (
        spec(),
        after(ended(None, reason=R.START_FAILED, detail="no such file")),
        seal(R.START_FAILED, "no such file"),
    ),
    "a timeout is the policy's": (
        spec(),
        after(ended(None, signal=15, at=101.5), stop=Stop(R.SESSION_TIMEOUT, "too long")),
        timed_out("too long"),
    ),
    "a timeout under a failing engine is the engine's": (
        spec(),
        after(
            ended(None, signal=15, at=101.5), said(engine_errors=2), stop=Stop(R.SESSION_TIMEOUT, "too long")
        ),
        seal(R.ENGINE_ERROR, "too long; the engine failed 2 calls of it"),
    ),
    "where /complete is the end, one that had completed only lingered": (
        spec(**COMPLETE),
        after(
            ended(None, signal=15, at=101.5),
            said("complete", turns=1),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        seal(),
    ),
    "the turn limit is the policy's, also if the agent dies of it": (
        spec(),
        after(ended(1), said(turns=3, limit_reached="turns")),
        scored(1, False, R.TURN_LIMIT, "limit reached: turns"),
    ),
    "and if it takes it well": (
        spec(),
        after(ended(0), said(turns=3, limit_reached="totalTokens")),
        scored(0, False, R.TOKEN_LIMIT, "limit reached: totalTokens"),
    ),
    "who had more than its share of the journal is judged, and masked": (
        spec(),
        after(ended(1), said(turns=3, limit_reached="journalShare")),
        scored(1, False, R.JOURNAL_PRESSURE, FULL),
    ),
    "also if the journal was full meanwhile": (
        spec(),
        after(
            ended(1),
            said(turns=3, limit_reached="journalShare", engine_errors=2, engine_reason="JournalUnavailable"),
        ),
        scored(1, False, R.JOURNAL_PRESSURE, FULL),
    ),
    "and if it waited until its time was up": (
        spec(),
        after(
            ended(None, signal=15, at=101.5),
            said(turns=3, limit_reached="journalShare", engine_errors=2),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        seal(
            R.JOURNAL_PRESSURE,
            FULL,
            reward=0.0,
            reward_info={"exit_code": None} | told(detail=FULL),
        ),
    ),
    "the window is the policy's": (
        spec(),
        after(ended(1), said(turns=3, limit_reached="context")),
        scored(1, False, R.CONTEXT_EXCEEDED, "limit reached: context"),
    ),
    "a crash under a failing engine is the engine's": (
        spec(),
        after(ended(1), said(turns=3, engine_errors=1)),
        seal(R.ENGINE_ERROR, "exit code 1; the engine failed 1 calls of it"),
    ),
    "an agent that hides that no turn got through is found out": (
        spec(),
        after(ended(0), said(turns=0, engine_errors=4)),
        seal(R.ENGINE_ERROR, "no turn got through: the engine failed"),
    ),
    "an engine error that a retry mended is none": (
        spec(),
        after(ended(0), said(turns=2, engine_errors=1)),
        scored(0, True),
    ),
    "exit without /complete is the agent's, where /complete is asked for": (
        spec(**COMPLETE),
        after(ended(0)),
        seal(R.AGENT_EXIT, "exited without a POST to /complete"),
    ),
    "the turn limit is the policy's, also if it takes that well and does not say that it is done": (
        spec(**COMPLETE),
        after(ended(0), said(turns=3, limit_reached="turns")),
        seal(R.TURN_LIMIT, "limit reached: turns"),
    ),
    "so is the window": (
        spec(**COMPLETE),
        after(ended(0), said(turns=3, limit_reached="context")),
        seal(R.CONTEXT_EXCEEDED, "limit reached: context"),
    ),
    "exit just after /complete is a good end": (
        spec(**COMPLETE),
        after(ended(0), said("complete", turns=1)),
        seal(),
    ),
    "stopped after /complete is a good end, however it died": (
        spec(**COMPLETE),
        after(ended(None, signal=9), said("complete", turns=1), stop=Stop(None)),
        seal(),
    ),
    "nor who ended it: a node that did not answer, a kill by force": (
        spec(**COMPLETE),
        after(ended(None, reason=R.EVICTED), said("complete", turns=1), stop=Stop(None)),
        seal(),
    ),
    "of a signal, though that was seen before it was told to stop": (
        spec(**COMPLETE),
        after(ended(None, signal=15), said("complete", turns=1)),
        seal(),
    ),
    "of a code": (spec(**COMPLETE), after(ended(1), said("complete", turns=1)), seal()),
    "by force, as it did not end": (
        spec(**COMPLETE),
        after(
            ended(None, reason=R.EVICTED, detail="the pod was deleted"),
            said("complete", turns=1),
            stop=Stop(None),
            killed=True,
        ),
        seal(),
    ),
    "of its node's end": (
        spec(**COMPLETE),
        after(ended(None, reason=R.NODE_LOST, detail="gone"), said("complete", turns=1)),
        seal(),
    ),
    "of its memory": (
        spec(**COMPLETE),
        after(ended(None, signal=9, reason=R.OOM_KILLED), said("complete", turns=1), stop=Stop(None)),
        seal(),
    ),
    "but of what may still run nothing is taken": (
        spec(**COMPLETE),
        after(ended(None, signal=9, reason=R.ESCAPED, detail="runs"), said("complete", turns=1)),
        seal(R.ESCAPED, "runs"),
    ),
    "and with its node went what its verifier was to see": (
        spec(**JUDGED_AT_COMPLETE),
        after(ended(None, reason=R.NODE_LOST, detail="gone"), said("complete", turns=1)),
        seal(R.NODE_LOST, "gone"),
    ),
    "which is nobody's doing but its own where it waited for force": (
        spec(**JUDGED_AT_COMPLETE),
        after(
            ended(None, reason=R.EVICTED, detail="the pod was deleted"),
            said("complete", turns=1),
            stop=Stop(None),
            killed=True,
        ),
        [StartVerifier(ref())],
    ),
    "nor did the message come that was to have its own reward": (
        spec(**JUDGES_ITSELF),
        after(ended(None, reason=R.NODE_LOST, detail="gone"), said("complete", turns=1)),
        seal(R.NODE_LOST, "gone"),
    ),
    "where it came there is no other attempt": (
        spec(**JUDGES_ITSELF),
        after(ended(None, reason=R.EVICTED, message=left(reward=0.25)), said("complete", turns=1)),
        seal(reward=0.25, reward_info={}, discount=0.5),
    ),
    "nor where it had posted one": (
        spec(**JUDGES_ITSELF),
        after(ended(None, reason=R.NODE_LOST, detail="gone"), said("complete", turns=1, reward=0.0)),
        seal(discount=0.5),
    ),
    "nor where it waited for force": (
        spec(**JUDGES_ITSELF),
        after(
            ended(None, reason=R.EVICTED, detail="deleted"),
            said("complete", turns=1),
            stop=Stop(None),
            killed=True,
        ),
        seal(discount=0.5),
    ),
    "a limit stands beside /complete, stopped or not": (
        spec(**COMPLETE),
        after(ended(1), said("complete", turns=3, limit_reached="turns")),
        seal(R.TURN_LIMIT, "limit reached: turns"),
    ),
    "but a window that was full at some time does not, if it says that it is done": (
        spec(**COMPLETE),
        after(ended(None, signal=9), said("complete", turns=3, limit_reached="context"), stop=Stop(None)),
        seal(),
    ),
    "whose every call the engine failed, has done nothing": (
        spec(**COMPLETE),
        after(ended(None, signal=9), said("complete", turns=0, engine_errors=2), stop=Stop(None)),
        seal(R.ENGINE_ERROR, "no turn got through: the engine failed"),
    ),
    "the agent's own word counts where the job says so": (
        spec(**AGENT),
        after(ended(message=left(reward=0.25, reward_info={"b": 2}))),
        seal(reward=0.25, reward_info={"b": 2}, discount=0.5),
    ),
    "and only there": (spec(**TRAINER), after(ended(message=left(reward=0.25))), seal()),
    "without a message, what it posted stands": (spec(**AGENT), after(ended()), seal(discount=0.5)),
    "an infra failure is never scored": (
        spec(**AGENT),
        after(ended(None, reason=R.EVICTED, message=left(reward=1.0))),
        seal(R.EVICTED),
    ),
}


@pytest.mark.parametrize(("wanted", "observed", "actions"), ENDS.values(), ids=ENDS)
def test_how_a_session_ended(
    wanted: RolloutJobSpec, observed: SessionObserved, actions: list[Action]
) -> None:
    assert plan_session(wanted, observed, 30.0) == actions


def test_no_infra_failure_carries_a_reward() -> None:
    sealed = [one for _, _, actions in ENDS.values() for one in actions if isinstance(one, SealSession)]
    infra = [one.outcome for one in sealed if one.outcome.failure_class is FailureClass.INFRA]
    assert len(infra) >= 5
    assert all(one.reward is None and "reward" not in one.body() for one in infra)
