"""Whose end it is where an engine or a gateway was away under a session: what its agent got over explains nothing."""

from __future__ import annotations

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import Action, Exit, Outage, Running, SessionObserved, Stop
from sandgate.operator.plan.session import plan_session
from tests.operator.plans import VERIFIER, after, ended, left, running, said, scored, seal, spec, timed_out

R = FailureReason


def judged(end: Exit) -> Running:
    """A verifier that began at 24."""
    return running(24.0, end)


ENDS: dict[str, tuple[RolloutJobSpec, SessionObserved, list[Action]]] = {
    "a crash while the gateway was away is the gateway's": (
        spec(),
        after(ended(1), outages=(Outage(15.0, None, R.GATEWAY_LOST),)),
        seal(R.GATEWAY_LOST, "exit code 1; its gateway was away meanwhile"),
    ),
    "a signal while no engine answered is the engine's": (
        spec(),
        after(ended(None, signal=9), outages=(Outage(15.0, 18.0, R.ENGINE_LOST),)),
        seal(R.ENGINE_LOST, "killed by SIGKILL; no engine answered meanwhile"),
    ),
    "an outage before it began is no excuse": (
        spec(),
        after(ended(1), outages=(Outage(-5.0, 0.5, R.GATEWAY_LOST),)),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "one that it may have died of counts, whatever was away since then": (
        spec(),
        after(ended(1), outages=(Outage(15.0, 18.0, R.GATEWAY_LOST), Outage(80.0, 90.0, R.ENGINE_LOST))),
        seal(R.GATEWAY_LOST, "exit code 1; its gateway was away meanwhile"),
    ),
    "one long after its end neither": (
        spec(),
        after(ended(1), outages=(Outage(60.0, None, R.GATEWAY_LOST),)),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "a good end in an outage is a good end": (
        spec(),
        after(ended(0), outages=(Outage(15.0, None, R.GATEWAY_LOST),)),
        scored(0, True),
    ),
    "a limit that was reached is the policy's, outage or not": (
        spec(),
        after(ended(1), said(turns=3, limit_reached="turns"), outages=(Outage(15.0, None, R.GATEWAY_LOST),)),
        scored(1, False, R.TURN_LIMIT, "limit reached: turns"),
    ),
    "a wrong answer after an outage that its agent got over is wrong": (
        spec(),
        after(ended(1), said(turns=2, turned_at=19.0), outages=(Outage(15.0, 18.0, R.GATEWAY_LOST),)),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "a crash in a restart that nobody else noticed is the gateway's": (
        spec(),
        after(ended(1), said(turns=2, turned_at=12.0, restarted_at=15.0)),
        seal(R.GATEWAY_LOST, "exit code 1; its gateway restarted meanwhile"),
    ),
    "one just before its gateway was back, too": (
        spec(),
        after(ended(1), said(turns=2, turned_at=12.0, restarted_at=22.0)),
        seal(R.GATEWAY_LOST, "exit code 1; its gateway restarted meanwhile"),
    ),
    "one that asked again, and was never answered, too": (
        spec(),
        after(ended(1), said(turns=2, turned_at=12.0, restarted_at=15.0, asked_again_at=15.5)),
        seal(R.GATEWAY_LOST, "exit code 1; its gateway restarted meanwhile"),
    ),
    "one that could not say that it is done for a restart has not failed": (
        spec(agent__completion="Complete", reward__source="agent"),
        after(ended(0), said(turns=2, turned_at=12.0, restarted_at=15.0)),
        seal(R.GATEWAY_LOST, "exited without a POST to /complete; its gateway restarted meanwhile"),
    ),
    "a wrong answer after a restart that its agent got over is wrong": (
        spec(),
        after(ended(1), said(turns=2, turned_at=16.0, restarted_at=15.0, asked_again_at=15.5)),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "a restart before it began is no excuse": (
        spec(),
        after(ended(1), said(restarted_at=0.5)),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "a restart long after its end neither": (
        spec(),
        after(ended(1), said(turns=2, turned_at=12.0, restarted_at=60.0)),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "a limit that was reached is the policy's, restart or not": (
        spec(),
        after(ended(1), said(turns=3, limit_reached="turns", restarted_at=15.0)),
        scored(1, False, R.TURN_LIMIT, "limit reached: turns"),
    ),
    "a verifier that crashed while its gateway was away, to which it posts its word, has not failed": (
        spec(**VERIFIER),
        after(
            ended(at=26.0), verifier=judged(ended(1, at=26.0)), outages=(Outage(25.0, None, R.GATEWAY_LOST),)
        ),
        seal(R.GATEWAY_LOST, "verifier: exit code 1; its gateway was away meanwhile"),
    ),
    "nor one whose gateway restarted meanwhile": (
        spec(**VERIFIER),
        after(ended(at=26.0), said(restarted_at=25.0), verifier=judged(ended(1, at=26.0))),
        seal(R.GATEWAY_LOST, "verifier: exit code 1; its gateway restarted meanwhile"),
    ),
    "nor one that ran out of time in that": (
        spec(**VERIFIER),
        after(
            ended(at=26.0),
            said(restarted_at=25.0),
            verifier=judged(ended(None, at=26.0, signal=9)),
            verifier_stop_at=25.5,
        ),
        seal(R.GATEWAY_LOST, "verifier: still running after seconds 50; its gateway restarted meanwhile"),
    ),
    "a restart before it started is no excuse": (
        spec(**VERIFIER),
        after(ended(at=26.0), said(restarted_at=23.0), verifier=judged(ended(1, at=26.0))),
        seal(R.VERIFIER_FAILED, "verifier: exit code 1"),
    ),
    "nor is an engine, which it does not need": (
        spec(**VERIFIER),
        after(
            ended(at=26.0), verifier=judged(ended(1, at=26.0)), outages=(Outage(25.0, None, R.ENGINE_LOST),)
        ),
        seal(R.VERIFIER_FAILED, "verifier: exit code 1"),
    ),
    "nor is anything for what it did to itself": (
        spec(**VERIFIER),
        after(
            ended(at=26.0),
            verifier=judged(ended(None, at=26.0, reason=R.OOM_KILLED, detail="too much")),
            outages=(Outage(25.0, None, R.GATEWAY_LOST),),
        ),
        seal(R.VERIFIER_FAILED, "verifier: too much"),
    ),
    "its word counts, whatever was away": (
        spec(**VERIFIER),
        after(
            ended(at=26.0),
            verifier=judged(ended(at=26.0, message=left(reward=0.5))),
            outages=(Outage(25.0, None, R.GATEWAY_LOST),),
        ),
        seal(reward=0.5),
    ),
    "a good end after a restart is a good end": (
        spec(),
        after(ended(0), said(turns=2, turned_at=12.0, restarted_at=15.0)),
        scored(0, True),
    ),
    "a wrong answer after a failure of the engine that its agent got over is wrong": (
        spec(),
        after(ended(1), said(turns=2, engine_errors=3, engine_failing=0)),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "one after the engine's last word was a failure is the engine's": (
        spec(),
        after(ended(1), said(turns=2, engine_errors=3, engine_failing=1)),
        seal(R.ENGINE_ERROR, "exit code 1; the engine failed 1 calls of it"),
    ),
    "one that died of a journal that could not be written is the gateway's": (
        spec(),
        after(ended(1), said(turns=2, engine_errors=1, engine_failing=1, engine_reason="JournalUnavailable")),
        seal(
            R.GATEWAY_LOST,
            "exit code 1; its gateway, which could not write its journal, failed 1 calls of it",
        ),
    ),
    "a wrong answer after a full journal that its agent got over is wrong": (
        spec(),
        after(ended(1), said(turns=2, engine_errors=1, engine_failing=0, engine_reason="JournalUnavailable")),
        scored(1, False, R.ANSWER_WRONG, "exit code 1"),
    ),
    "one that could not say that it is done has not failed": (
        spec(agent__completion="Complete", reward__source="agent"),
        after(ended(0), said(turns=2, engine_errors=1, engine_failing=1, engine_reason="JournalUnavailable")),
        seal(
            R.GATEWAY_LOST,
            "exited without a POST to /complete; its gateway, which could not write its journal, failed 1 calls of it",
        ),
    ),
    "a timeout after a failure of the engine that its agent got over is its own": (
        spec(),
        after(
            ended(None, signal=15, at=101.5),
            said(turns=2, engine_errors=3, engine_failing=0),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        timed_out("too long"),
    ),
    "a timeout that an outage took much of is the gateway's": (
        spec(),
        after(
            ended(None, signal=15, at=101.0),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
            outages=(Outage(20.0, 60.0, R.GATEWAY_LOST),),
        ),
        seal(R.GATEWAY_LOST, "too long; its gateway was away for 40 s of it"),
    ),
    "a short one does not excuse it": (
        spec(),
        after(
            ended(None, signal=15, at=101.0),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
            outages=(Outage(20.0, 25.0, R.GATEWAY_LOST),),
        ),
        timed_out("too long"),
    ),
    "an agent that waited on a dead connection is the gateway's": (
        spec(),
        after(
            ended(None, signal=15, at=101.0),
            said(turns=1, restarted_at=25.0),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
            outages=(Outage(20.0, 25.0, R.GATEWAY_LOST),),
        ),
        seal(R.GATEWAY_LOST, "too long; its gateway restarted, and heard nothing of it for 76 s"),
    ),
    "one that asked the restarted gateway at last, too": (
        spec(),
        after(
            ended(None, signal=15, at=101.0),
            said(turns=2, restarted_at=25.0, asked_again_at=85.0),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        seal(R.GATEWAY_LOST, "too long; its gateway restarted, and heard nothing of it for 60 s"),
    ),
    "one that asked it soon ran out of time by itself": (
        spec(),
        after(
            ended(None, signal=15, at=101.0),
            said(turns=9, restarted_at=25.0, asked_again_at=27.0),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        timed_out("too long"),
    ),
    "a restart after its end does not excuse it": (
        spec(),
        after(
            ended(None, signal=15, at=101.0),
            said(turns=9, restarted_at=102.0),
            stop=Stop(R.SESSION_TIMEOUT, "too long"),
        ),
        timed_out("too long"),
    ),
}


@pytest.mark.parametrize(("wanted", "observed", "actions"), ENDS.values(), ids=ENDS)
def test_whose_end_it_is(wanted: RolloutJobSpec, observed: SessionObserved, actions: list[Action]) -> None:
    assert plan_session(wanted, observed, 30.0) == actions
