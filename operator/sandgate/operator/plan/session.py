"""Plans one attempt, from its opening to its end. (pure)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sandgate.contract.exits import one_line
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.job import Completion, RewardSource, RolloutJobSpec
from sandgate.contract.session import SessionOutcome, SessionState, TerminationMessage, finite
from sandgate.operator.plan.actions import (
    AbortSession,
    Action,
    Exit,
    Forget,
    KillAttempt,
    KillVerifier,
    LookSession,
    Running,
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
    WakeAt,
    WriteSession,
)
from sandgate.operator.plan.outcome import failure, gateway_away, in_words, is_infra, reward_of, unscored
from sandgate.operator.plan.rewards import PLACE, left

FORCE_S = 60.0
"""How long a stopped agent may take to end; a pod's grace is 30 s, and its node must tell."""
SIGKILL: Final = 9
WAITS_S = 72_000.0
"""A sandbox for which there is no room waits so long, 20 h, and is then tried anew: keys outlive a session's longest
life by a day (`cluster.key_life.KEY_MARGIN_S`), and an agent whose key ran out would look like one that failed."""
TOO_LATE = Stop(FailureReason.ABORTED, "no room for it within 20 h: tried anew, with keys that last")
PULLS = 4
"""So many startSeconds for an image that is on its way: the next attempt may have to begin at its first byte."""
SHOW_S = 30.0
"""Sessions shorter than this never say Running: a write each, for what hardly anybody reads in time. Without it a
session with a verifier costs five writes and its share of keys."""


def longest_start(spec: RolloutJobSpec) -> int:
    """Seconds that a sandbox may take to start once it has a node: its image may be on its way."""
    return PULLS * spec.limits.start_seconds


def plan_session(
    spec: RolloutJobSpec, seen: SessionObserved, now: float, *, gated: bool = True
) -> list[Action]:
    """Next actions for one attempt. Pure: `now` is unix seconds. Not `gated`: nobody asks after the attempt once it is
    sealed, so it is not kept for its commit.

    Carrying out the plan and planning again at the same `now` gives the next step or [], never the same step.
    """
    ref, state = seen.ref, _state(seen)
    if state is SessionState.FINALIZED:
        return _sealed(seen, gated=gated)
    if state is SessionState.ABORTED and (seen.sandbox is None or seen.sandbox.exit is not None):
        return _sealed(seen, gated=gated)
    if seen.deleted and state is not SessionState.ABORTED:
        return [AbortSession(ref)]
    if seen.lost:
        outcome = SessionOutcome(
            failure_reason=FailureReason.DRIVER_LOST, detail="its driver died while it ran"
        )
        return [SealSession(ref, outcome)]
    if seen.remote:
        return _remote(spec, seen, now)
    if seen.sandbox is None:
        if seen.stop is None:
            late = now >= seen.opened_at + WAITS_S
            return [StopAttempt(ref, TOO_LATE) if late else StartAttempt(ref)]
        return _seal(spec, seen, Exit(at=now))
    if seen.sandbox.exit is None:
        return _running(spec, seen, seen.sandbox, now)
    return _ended(spec, seen, seen.sandbox.exit, now)


def _state(seen: SessionObserved) -> SessionState:
    return seen.summary.state if seen.summary is not None else SessionState.OPEN


def _sealed(seen: SessionObserved, *, gated: bool) -> list[Action]:
    """Say so, wait for the commit, say that too, and let it go."""
    due = Told.COMMITTED if seen.committed else Told.FINALIZED
    if seen.told is not None and seen.told < due:
        return [WriteSession(seen.ref)]
    return [Forget(seen.ref)] if not gated or _collectable(seen) else []


def _collectable(seen: SessionObserved) -> bool:
    """The commit gate: what ended well enough to be trained on is kept until a trainer has it."""
    said = seen.summary
    if said is None:
        return seen.committed
    return seen.committed or said.state is SessionState.ABORTED or said.failure_class == "infra"


def _running(spec: RolloutJobSpec, seen: SessionObserved, agent: Running, now: float) -> list[Action]:
    if seen.stop is not None:
        if seen.killed:
            return []
        by = seen.stop_at + FORCE_S
        return [KillAttempt(seen.ref)] if now >= by else wake(seen.wake_at, by)
    state = _state(seen)
    if state is SessionState.ABORTED:
        return [StopAttempt(seen.ref, Stop(FailureReason.ABORTED, "aborted at the gateway"))]
    if state is SessionState.COMPLETE and spec.agent.completion is Completion.COMPLETE:
        return [StopAttempt(seen.ref, Stop(None))]
    if agent.started_at is None:
        if agent.unplaced:  # nothing starts; room comes back
            by = seen.opened_at + WAITS_S
            return [StopAttempt(seen.ref, TOO_LATE)] if now >= by else wake(seen.wake_at, by)
        until, stop = _start_by(spec, agent), _not_started(spec, agent)
    else:
        limit = spec.limits.session_seconds
        until = _started(agent, agent.started_at) + limit
        stop = Stop(FailureReason.SESSION_TIMEOUT, f"still running after sessionSeconds {limit}")
    if now >= until:
        return [StopAttempt(seen.ref, stop)]
    return [*_show(seen, agent, now), *wake(seen.wake_at, min(_times(seen, agent, until, now)))]


def _started(one: Running, at: float) -> float:
    """Its node's clock may be behind: nothing starts before it was asked for."""
    return max(at, one.asked_at)


def _start_by(spec: RolloutJobSpec, one: Running) -> float:
    """When one that has a node is to have started."""
    begun = one.asked_at if one.placed_at is None else one.placed_at
    return begun + _tries(one) * spec.limits.start_seconds


def _tries(one: Running) -> int:
    """More while its image is on its way: that goes on by itself."""
    return PULLS if one.waiting is not None and one.waiting.pulls else 1


def _not_started(spec: RolloutJobSpec, one: Running) -> Stop:
    times = _tries(one)
    text = (
        f"not started within {f'{times} times ' if times > 1 else ''}startSeconds {spec.limits.start_seconds}"
    )
    if one.waiting is None:
        return Stop(FailureReason.START_TIMEOUT, text)
    return Stop(one.waiting.reason, f"{text}: {one.waiting.words}")


def _show(seen: SessionObserved, agent: Running, now: float) -> list[Action]:
    due = agent.started_at is not None and now >= agent.started_at + SHOW_S
    return [WriteSession(seen.ref)] if seen.told is Told.NOTHING and due else []


def _times(seen: SessionObserved, agent: Running, limit_at: float, now: float) -> Iterator[float]:
    yield limit_at
    if seen.told is Told.NOTHING and agent.started_at is not None and now < agent.started_at + SHOW_S:
        yield agent.started_at + SHOW_S


def _ended(spec: RolloutJobSpec, seen: SessionObserved, end: Exit, now: float) -> list[Action]:
    if seen.looked_at < end.at:  # what the gateway knew before the end may have changed with it
        return [LookSession(seen.ref)]
    reason, _ = failure(spec, seen, end)
    if not is_infra(reason) and (rest := _clearing(seen, end, now)) is not None:
        return rest
    unjudged = unscored(reason) or reason is FailureReason.AGENT_MISSING
    if spec.reward.source is not RewardSource.VERIFIER or spec.reward.verifier is None or unjudged:
        return _seal(spec, seen, end)
    judge = seen.verifier
    if judge is None:
        return [StartVerifier(seen.ref)]
    if judge.exit is None:
        return _judging(spec, seen, judge, now)
    if judge.exit.message.reward is None and seen.looked_at < judge.exit.at:
        return [LookSession(seen.ref)]  # it may have posted the reward itself
    return _seal(spec, seen, end, judge.exit)


def _clearing(seen: SessionObserved, end: Exit, now: float) -> list[Action] | None:
    """Side-cars are the agent's, too: they are told to stop, then ended by force, before anything of it is judged or
    sealed. None: nothing runs any more, as far as anybody can tell."""
    there = SideCars.NONE if seen.sandbox is None else seen.sandbox.side_cars
    if there is SideCars.NONE or seen.killed:
        return None
    told = seen.side_cars_stop_at if seen.stop is None else seen.stop_at
    by = end.at if there is SideCars.RUN else end.at + FORCE_S
    if told is None:
        return [StopSideCars(seen.ref)] if now >= by else wake(seen.wake_at, by)
    by = told + FORCE_S
    return [KillAttempt(seen.ref)] if now >= by else wake(seen.wake_at, by)


def _judging(spec: RolloutJobSpec, seen: SessionObserved, judge: Running, now: float) -> list[Action]:
    """The verifier has its time to start, and then its own; then it is told to stop, then it is ended by force, as an
    agent is."""
    if seen.verifier_stop_at is None:
        until = _judged_by(spec, judge)
        return [StopVerifier(seen.ref)] if now >= until else wake(seen.wake_at, until)
    if seen.verifier_killed:
        return []
    by = seen.verifier_stop_at + FORCE_S
    return [KillVerifier(seen.ref)] if now >= by else wake(seen.wake_at, by)


def _judged_by(spec: RolloutJobSpec, judge: Running) -> float:
    """Its keys last as long (`cluster.key_life.verifier_needs`)."""
    if judge.started_at is not None:
        assert spec.reward.verifier is not None
        return _started(judge, judge.started_at) + spec.reward.verifier.seconds
    return judge.asked_at + WAITS_S if judge.unplaced else _start_by(spec, judge)


def _seal(
    spec: RolloutJobSpec,
    seen: SessionObserved,
    end: Exit,
    verdict: Exit | None = None,
) -> list[Action]:
    reason, detail = failure(spec, seen, end)
    verdict = _of_its_time(spec, seen, verdict)
    if verdict is not None and (why := _no_verdict(spec, seen, verdict)):
        reason, detail = _unjudged(spec, seen, verdict, why, (reason, detail))
        verdict = None
    return [SealSession(seen.ref, reward_of(spec, reason, detail, end, verdict))]


def _of_its_time(spec: RolloutJobSpec, seen: SessionObserved, verdict: Exit | None) -> Exit | None:
    """A verifier that was told to stop, as its time was up, ended of that, whatever then became of its pod: what the
    agent left may have made it hang until it was ended by force."""
    if verdict is None or not is_infra(verdict.reason) or not _time_up(spec, seen, verdict):
        return verdict
    return replace(verdict, signal=SIGKILL, reason=None, detail="")


def _time_up(spec: RolloutJobSpec, seen: SessionObserved, verdict: Exit) -> str:
    """That it was told to stop after all its time, in words; nothing if it was not, or had ended before."""
    judge, stopped, verifier = seen.verifier, seen.verifier_stop_at, spec.reward.verifier
    if judge is None or judge.started_at is None or stopped is None or verifier is None:
        return ""
    if verdict.at < stopped and not verdict.stopped:
        return ""
    return f"still running after seconds {verifier.seconds}"


def _unjudged(
    spec: RolloutJobSpec,
    seen: SessionObserved,
    verdict: Exit,
    why: str,
    agent: tuple[FailureReason | None, str],
) -> tuple[FailureReason, str]:
    """Its input is the agent's: only what befell it from outside is infrastructure's. An agent that failed may have
    left nothing to judge: its failure is named first."""
    never = _never_judged(spec, seen)
    if verdict.reason is FailureReason.NODE_REFUSED:  # so it has the patience that such an agent has
        return FailureReason.NODE_REFUSED, why
    if is_infra(verdict.reason) or never:
        return FailureReason.VERIFIER_LOST, never or why
    if seen.verifier is not None and (away := gateway_away(seen, seen.verifier, verdict)):
        return FailureReason.GATEWAY_LOST, f"{why}; {away}"
    reason, detail = agent
    if reason is not None and FAILURE_CLASS[reason] is FailureClass.AGENT:
        return reason, f"{detail}; its {why}"
    return FailureReason.VERIFIER_FAILED, why


def _never_judged(spec: RolloutJobSpec, seen: SessionObserved) -> str:
    """Why the verifier was stopped before it had started, if it was: nobody knows what it would have said."""
    judge = seen.verifier
    if seen.verifier_stop_at is None or judge is None or judge.started_at is not None:
        return ""
    if judge.placed_at is None:
        return "verifier: no room for it within 20 h"
    return f"verifier: {_not_started(spec, judge).detail}"


def _no_verdict(spec: RolloutJobSpec, seen: SessionObserved, verdict: Exit) -> str:
    """Why the verifier's word cannot be taken, or nothing."""
    if verdict.reason is not None:
        return f"verifier: {in_words(verdict) or verdict.reason.value}"
    if verdict.signal is not None or verdict.code != 0:
        if late := _time_up(spec, seen, verdict):
            return f"verifier: {late}: {one_line(verdict.detail)}" if verdict.detail else f"verifier: {late}"
        return f"verifier: {in_words(verdict)}"
    posted = seen.summary is not None and seen.summary.reward is not None
    if verdict.message.reward is None and not posted:
        where = f"a verifier {PLACE}, or posts it to $SANDGATE_REWARD_URL"
        return f"verifier: it ended well but gave no reward: its {left(verdict.message)}; {where}"
    return ""


def _remote(spec: RolloutJobSpec, seen: SessionObserved, now: float) -> list[Action]:
    """The agent runs elsewhere: /complete ends it, or its time does. What a sandbox would leave as its termination
    message, it leaves there, as `reward_info`. Nobody sees an exit code."""
    said = seen.summary.complete_info if seen.summary is not None else None
    info = said or {}
    done = Exit(at=seen.looked_at, message=TerminationMessage(finite(info.get("reward")), info, said))
    if seen.told is Told.NOTHING:  # what its agent needs to know stands there
        return [WriteSession(seen.ref)]
    if seen.stop is not None:
        return _seal(spec, seen, Exit(at=now))
    if _state(seen) is SessionState.COMPLETE:
        if said is None and seen.summary is not None and seen.summary.has_complete_info:
            return [LookSession(seen.ref)]  # a listing does not say what it said
        return _ended(spec, seen, done, now)
    until = seen.opened_at + spec.limits.session_seconds
    if now < until:
        return wake(seen.wake_at, until)
    why = Stop(
        FailureReason.SESSION_TIMEOUT, f"not complete after sessionSeconds {spec.limits.session_seconds}"
    )
    return [StopAttempt(seen.ref, why)]


def wake(planned: float | None, at: float) -> list[Action]:
    """WakeAt, unless that is planned already."""
    return [] if planned == at else [WakeAt(at)]
