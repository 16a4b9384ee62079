"""Decides how a session ended: its reward and its failure class, from exit, limits and verifier. (pure)

Whose fault a failure is decides what becomes of it: the policy's is trained on, the agent program's is masked,
infrastructure's is tried again and never becomes a reward of 0. Only what was seen scores: what an agent says of itself
(/complete, a message it leaves) is neither an exit code nor, where exit codes are rewards, a reward.
"""

from __future__ import annotations

from typing import Any, Final

from sandgate.contract.errors import JournalUnavailable
from sandgate.contract.exits import one_line, signal_name
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.job import Completion, RewardSource, RolloutJobSpec
from sandgate.contract.session import DETAIL_CHARS_MAX, DROPPED, SessionOutcome, SessionState, SessionSummary
from sandgate.operator.plan.actions import Exit, Outage, Running, SessionObserved

JOURNAL_SHARE: Final = "journalShare"
LIMITS = {
    "turns": FailureReason.TURN_LIMIT,
    "totalTokens": FailureReason.TOKEN_LIMIT,
    "journalBytes": FailureReason.TOKEN_LIMIT,
    JOURNAL_SHARE: FailureReason.JOURNAL_PRESSURE,
    "context": FailureReason.CONTEXT_EXCEEDED,
}
"""What the gateway says refused a turn."""

SLACK_S = 30.0
"""An outage that was noticed this long after the agent's end may have begun before it: long polls notice late."""
CLOCKS_S: Final = 10.0
"""By how much the clocks of a node and of who stops an agent there, or takes its pod away, may differ. An end that lies
longer before an agent's time was up cannot be that of one that was stopped for it."""
SHARE = 0.1
"""Of its time: an agent that lost less than that to an outage and ran out of time, would have done so anyway."""

RIGHT: Final = 0
WRONG: Final = 1
"""What an agent says by its exit code, where that is the reward. Any other code says that it broke."""
ITS_OWN = (FailureReason.ANSWER_WRONG, FailureReason.AGENT_EXIT, FailureReason.AGENT_SIGNAL)
"""Ends that an agent comes to when what it needs is away."""

RESTARTED: Final = "its gateway restarted meanwhile"

Failure = tuple[FailureReason | None, str]
"""(reason or None for a good end, detail for people)."""


def failure(spec: RolloutJobSpec, seen: SessionObserved, end: Exit) -> Failure:
    """Why the session ended, from what sandbox, driver and gateway know. The most specific knowledge wins."""
    said = seen.summary
    completes = seen.remote or spec.agent.completion is Completion.COMPLETE
    completed = completes and said is not None and said.state is SessionState.COMPLETE
    if said is not None and said.state is SessionState.ABORTED:
        return FailureReason.ABORTED, "aborted at the gateway"
    stop = None if _was_over(spec, seen, end) else seen.stop
    if stop is not None and stop.reason is not None:
        return _stopped(seen, stop.reason, stop.detail, end, completed=completed)
    if completed and not _took_its_result(spec, seen, end):  # how it died does not matter, stopped or not
        return _well(said)
    if end.reason is not None:
        return end.reason, in_words(end)
    if stop is not None:  # by an operator of another version: what it made of that says nothing
        return FailureReason.ABORTED, stop.detail or "stopped for a reason that is not known here"
    if end.signal is not None:
        return _or_outage(seen, end, (FailureReason.AGENT_SIGNAL, in_words(end)))
    if end.code != RIGHT and not seen.remote:
        by_code = spec.reward.source is RewardSource.EXIT_CODE
        return _or_outage(seen, end, _exited(end, said, by_code=by_code))
    if completes:
        return _or_outage(seen, end, _unfinished(said))
    return _well(said)


def _took_its_result(spec: RolloutJobSpec, seen: SessionObserved, end: Exit) -> bool:
    """It had said that it is done, and then it ended so that nobody can go by what it left: something of it may still
    run, or its place was taken away with what its verifier was to see, or with the message that has its reward, before
    it was told to stop. After that no end is such: else it could wait for force, and so choose another attempt instead
    of its reward."""
    if end.reason is FailureReason.ESCAPED:
        return True
    if not is_infra(end.reason) or seen.stop is not None:
        return False
    if spec.reward.source is RewardSource.AGENT:
        posted = seen.summary is not None and seen.summary.reward is not None
        return not posted and end.message.reward is None
    return spec.reward.source is RewardSource.VERIFIER


def _well(said: SessionSummary | None) -> Failure:
    """It ended well by its own account."""
    if said is not None and said.engine_errors and not said.turns:
        return _failed_by(said), f"no turn got through: {_who(said)}{_engine_said(said)}"
    if said is not None and said.limit_reached == "context":
        return None, ""  # it compacted its history and went on
    return _limit(said)


def _was_over(spec: RolloutJobSpec, seen: SessionObserved, end: Exit) -> bool:
    """It had ended by itself well before its time was up, and that was seen too late: by a watch that lagged, a driver
    that stood still. Whoever is stopped ends after it, whatever it says: not even CLOCKS_S by another clock before
    it."""
    stop, agent = seen.stop, seen.sandbox
    if stop is not None and _was_clearing(spec, seen, end):
        return True
    if stop is None or stop.reason is not FailureReason.SESSION_TIMEOUT:
        return False
    if agent is None or agent.started_at is None or end.reason is not None or end.stopped:
        return False
    limit = spec.limits.session_seconds
    seen_end = end.code is not None or end.signal is not None
    return seen_end and end.at < agent.started_at + limit - min(CLOCKS_S, SHARE * limit)


def _was_clearing(spec: RolloutJobSpec, seen: SessionObserved, end: Exit) -> bool:
    """Only its side-cars still ran when it was told to stop. While a verifier judges a stop counts, as nobody knows its
    word yet."""
    if seen.sandbox is None or spec.reward.source is RewardSource.VERIFIER:
        return False
    return seen.stop_late and seen.sandbox.exit is end and not end.stopped


def _stopped(
    seen: SessionObserved, reason: FailureReason, detail: str, end: Exit, *, completed: bool
) -> Failure:
    said = seen.summary
    if reason is not FailureReason.SESSION_TIMEOUT:
        return reason, detail
    if completed:  # it was done; only the process lingered
        return _well(said)
    if said is not None and said.limit_reached == JOURNAL_SHARE:  # it may have waited for what never came
        return _limit(said)
    if said is not None and (failed := _failing(said)):
        return _failed_by(said), f"{detail}; {failed}"
    begun = _begun(seen)
    for away in reversed(seen.outages):
        until = end.at if away.until is None else away.until
        if until - max(away.since, begun) > SHARE * (end.at - begun):
            return away.reason, f"{detail}; {_missing(away)} for {until - away.since:.0f} s of it"
    if said is not None and (waited := _waited(said, end, begun)) > SHARE * (end.at - begun):
        return (
            FailureReason.GATEWAY_LOST,
            f"{detail}; its gateway restarted, and heard nothing of it for {waited:.0f} s",
        )
    return reason, detail


def _waited(said: SessionSummary, end: Exit, begun: float) -> float:
    """Seconds until its agent asked again, after its gateway had restarted: it may have waited for an answer that
    could not come any more. An agent cannot make its gateway restart."""
    if said.restarted_at is None or not begun < said.restarted_at < end.at:
        return 0.0
    return min(said.asked_again_at or end.at, end.at) - said.restarted_at


def _or_outage(seen: SessionObserved, end: Exit, failed: Failure) -> Failure:
    """An agent that crashed while what it needs was away, crashed of that; a limit it had reached is its own."""
    if failed[0] not in ITS_OWN:
        return failed
    begun = _begun(seen)
    for away in reversed(seen.outages):
        if _meanwhile(away, end, begun) and not _over(seen, away):
            return away.reason, f"{failed[1]}; {_missing(away)} meanwhile"
    if _restarted(seen.summary, end, begun):
        return FailureReason.GATEWAY_LOST, f"{failed[1]}; {RESTARTED}"
    return failed


def gateway_away(seen: SessionObserved, verifier: Running, verdict: Exit) -> str:
    """What its verifier may have died of, in words, if its gateway was away: it posts its word there. Engines it does
    not need; what ended it for what it did to itself (memory) is no outage's doing."""
    if verdict.reason is not None or verifier.started_at is None:
        return ""
    for away in reversed(seen.outages):
        if away.reason is FailureReason.GATEWAY_LOST and _meanwhile(away, verdict, verifier.started_at):
            return f"{_missing(away)} meanwhile"
    return RESTARTED if _restarted(seen.summary, verdict, verifier.started_at) else ""


def _meanwhile(away: Outage, end: Exit, begun: float) -> bool:
    return away.since <= end.at + SLACK_S and (away.until is None or away.until >= begun)


def _restarted(said: SessionSummary | None, end: Exit, begun: float) -> bool:
    """Its gateway says so itself, and that the agent had no turn since. One that was back between two looks was away
    for nobody else."""
    if said is None or said.restarted_at is None:
        return False
    return begun < said.restarted_at <= end.at + SLACK_S and said.turned_at <= said.restarted_at


def _over(seen: SessionObserved, away: Outage) -> bool:
    """It got over it: it had a turn afterwards. Only what went on with it is judged by its end, as right as wrong."""
    said = seen.summary
    return said is not None and away.until is not None and said.turned_at > away.until


def _begun(seen: SessionObserved) -> float:
    """When its agent started."""
    started = seen.sandbox.started_at if seen.sandbox is not None else None
    return seen.opened_at if started is None else started


def _missing(away: Outage) -> str:
    return "its gateway was away" if away.reason is FailureReason.GATEWAY_LOST else "no engine answered"


def _exited(end: Exit, said: SessionSummary | None, *, by_code: bool) -> Failure:
    """A non-zero exit: agents commonly die of the answer that a limit or a failing engine gives."""
    limit, detail = _limit(said)
    if limit is not None:
        return limit, detail
    text = in_words(end)
    if said is not None and (failed := _failing(said)):
        return _failed_by(said), f"{text}; {failed}"
    return FailureReason.ANSWER_WRONG if by_code and end.code == WRONG else FailureReason.AGENT_EXIT, text


def _unfinished(said: SessionSummary | None) -> Failure:
    """It took its end well, and did not say that it is done."""
    limit, detail = _limit(said)
    if limit is not None:
        return limit, detail
    text = "exited without a POST to /complete"
    if said is not None and (failed := _failing(said)):
        return _failed_by(said), f"{text}; {failed}"
    return FailureReason.AGENT_EXIT, text


def in_words(end: Exit) -> str:
    """How a program ended, for people; nothing for a good end."""
    if end.reason is not None or end.code == RIGHT:
        return "" if end.reason is None else one_line(end.detail, DETAIL_CHARS_MAX)
    how = f"exit code {end.code}" if end.signal is None else f"killed by {signal_name(end.signal)}"
    how += " with a traceback" if end.traceback else ""
    return f"{how}: {one_line(end.detail)}" if end.detail else how


def _failing(said: SessionSummary) -> str:
    """What the engine, or its gateway's journal, did to it at its end, in words; nothing if it had a turn since. What
    an agent got over must not excuse a wrong answer: right ones would be kept, and wrong ones drawn again until they
    are right."""
    calls = said.engine_errors if said.engine_failing is None else said.engine_failing
    return f"{_who(said)} {calls} calls of it{_engine_said(said)}" if calls else ""


def _failed_by(said: SessionSummary) -> FailureReason:
    full = said.engine_reason == JournalUnavailable.reason
    return FailureReason.GATEWAY_LOST if full else FailureReason.ENGINE_ERROR


def _who(said: SessionSummary) -> str:
    full = said.engine_reason == JournalUnavailable.reason
    return "its gateway, which could not write its journal, failed" if full else "the engine failed"


def _engine_said(said: SessionSummary) -> str:
    return f": {said.engine_error}" if said.engine_error else ""


def _limit(said: SessionSummary | None) -> Failure:
    if said is None or said.limit_reached is None:
        return None, ""
    reason = LIMITS.get(said.limit_reached, FailureReason.TOKEN_LIMIT)
    more = ": its gateway's volume is nearly full" if reason is FailureReason.JOURNAL_PRESSURE else ""
    return reason, f"limit reached: {said.limit_reached}{more}"


def is_infra(reason: FailureReason | None) -> bool:
    """Tried again, never scored."""
    return reason is not None and FAILURE_CLASS[reason] is FailureClass.INFRA


def unscored(reason: FailureReason | None) -> bool:
    """Nobody judges it: it never came so far, was cut for its group's sake, or may still be at work on its result."""
    return is_infra(reason) or reason in (FailureReason.STRAGGLER, FailureReason.ESCAPED)


def reward_of(
    spec: RolloutJobSpec,
    reason: FailureReason | None,
    detail: str,
    end: Exit,
    verdict: Exit | None,
) -> SessionOutcome:
    """The outcome to seal with. `verdict`: the verifier's exit, where there is one. No reward of its own means: what
    was posted to the gateway stands (a verifier, a trainer, the agent's /complete, rewards of its turns), and is
    discounted as the job says."""
    discount = spec.reward.discount
    if is_infra(reason):
        return SessionOutcome(failure_reason=reason, detail=detail)
    if unscored(reason):
        return SessionOutcome(failure_reason=reason, detail=detail, discount=discount)
    message = end.message if spec.reward.source is RewardSource.AGENT else None
    if spec.reward.source is RewardSource.EXIT_CODE:
        if reason is None and end.code != RIGHT:  # nobody saw one, so nothing is scored
            return SessionOutcome(discount=discount)
        return SessionOutcome(
            failure_reason=reason,
            detail=detail,
            reward=float(reason is None),
            reward_info=_how(reason, detail, end),
            discount=discount,
        )
    if spec.reward.source is RewardSource.VERIFIER and verdict is not None:
        message = verdict.message
    if message is None or message.reward is None:
        note = {DROPPED: message.reward_info[DROPPED]} if message and DROPPED in message.reward_info else {}
        return SessionOutcome(failure_reason=reason, detail=detail, reward_info=note, discount=discount)
    return SessionOutcome(
        failure_reason=reason,
        detail=detail,
        reward=message.reward,
        reward_info=message.reward_info,
        discount=discount,
    )


def _how(reason: FailureReason | None, detail: str, end: Exit) -> dict[str, Any]:
    """What a record says of an exit code and of an end without one: `exit_code` and `signal` are the agent's own, so
    those of one that was stopped are null; `detail` is the last line that it wrote, or why it was stopped."""
    if reason is None:
        return {"exit_code": end.code}
    stopped = reason is FailureReason.JOURNAL_PRESSURE and end.code is None  # by itself it is an AgentSignal
    if reason is FailureReason.SESSION_TIMEOUT or stopped:
        return {"exit_code": None, "signal": None, "detail": one_line(detail), "traceback": False}
    signal = None if end.signal is None else signal_name(end.signal)
    said = {"exit_code": end.code, "signal": signal, "detail": one_line(end.detail)}
    return said | {"traceback": end.traceback}
