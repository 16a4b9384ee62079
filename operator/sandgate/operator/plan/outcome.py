"""How did a session end, and what is it worth? (pure)

Whose fault a failure is decides what becomes of it: the policy's is trained on, the agent program's is masked,
infrastructure's is tried again and never becomes a reward of 0.
"""

from __future__ import annotations

from sandgate.contract.errors import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.job import Completion, RewardSource, RolloutJobSpec
from sandgate.contract.session import DROPPED, SessionOutcome, SessionState, SessionSummary
from sandgate.operator.plan.actions import Exit, Outage, SessionObserved

LIMITS = {
    "turns": FailureReason.TURN_LIMIT,
    "totalTokens": FailureReason.TOKEN_LIMIT,
    "context": FailureReason.CONTEXT_EXCEEDED,
}
"""What the gateway says refused a turn."""

SLACK_S = 30.0
"""An outage that was noticed this long after the agent's end may have begun before it: long polls notice late."""
SHARE = 0.1
"""Of its time: an agent that lost less than that to an outage and ran out of time, would have done so anyway."""

Failure = tuple[FailureReason | None, str]
"""(reason or None for a good end, detail for people)."""


def failure(seen: SessionObserved, end: Exit, completion: Completion) -> Failure:
    """Why the session ended, from what sandbox, driver and gateway know. The most specific knowledge wins."""
    said = seen.summary
    completed = said is not None and said.state is SessionState.COMPLETE
    if said is not None and said.state is SessionState.ABORTED:
        return FailureReason.ABORTED, "aborted at the gateway"
    if seen.stop is not None and seen.stop.reason is not None:
        return _stopped(seen, seen.stop.reason, seen.stop.detail, end, completed=completed)
    if end.reason is not None:
        return end.reason, end.detail
    if seen.stop is not None:  # stopped because it had completed: how it died does not matter
        return _limit(said)
    if end.signal is not None:
        text = end.detail or f"killed by signal {end.signal}"
        return _or_outage(seen, end, (FailureReason.AGENT_SIGNAL, text))
    if end.code != 0:
        return _or_outage(seen, end, _crashed(end, said))
    if completion is Completion.COMPLETE and not completed:
        return _or_outage(seen, end, (FailureReason.AGENT_EXIT, "exited without a POST to /complete"))
    if said is not None and said.engine_errors and not said.turns:
        return FailureReason.ENGINE_ERROR, "no turn got through: the engine failed"
    if said is not None and said.limit_reached == "context":
        return None, ""  # it compacted its history and went on: it ended well by its own account
    return _limit(said)


def _stopped(
    seen: SessionObserved, reason: FailureReason, detail: str, end: Exit, *, completed: bool
) -> Failure:
    said = seen.summary
    if reason is not FailureReason.SESSION_TIMEOUT:
        return reason, detail
    if completed:  # it was done; only the process lingered
        return _limit(said)
    if said is not None and said.engine_errors:
        return FailureReason.ENGINE_ERROR, f"{detail}; the engine failed {said.engine_errors} calls of it"
    begun = _begun(seen)
    for away in reversed(seen.outages):
        until = end.at if away.until is None else away.until
        if until - max(away.since, begun) > SHARE * (end.at - begun):
            return away.reason, f"{detail}; {_missing(away)} for {until - away.since:.0f} s of it"
    return reason, detail


def _or_outage(seen: SessionObserved, end: Exit, failed: Failure) -> Failure:
    """An agent that crashed while what it needs was away, crashed of that; a limit it had reached is its own."""
    if failed[0] not in (FailureReason.AGENT_EXIT, FailureReason.AGENT_SIGNAL):
        return failed
    begun = _begun(seen)
    for away in reversed(seen.outages):
        if away.since <= end.at + SLACK_S and (away.until is None or away.until >= begun):
            return away.reason, f"{failed[1]}; {_missing(away)} meanwhile"
    return failed


def _begun(seen: SessionObserved) -> float:
    """When its agent started."""
    started = seen.sandbox.started_at if seen.sandbox is not None else None
    return seen.opened_at if started is None else started


def _missing(away: Outage) -> str:
    return "its gateway was away" if away.reason is FailureReason.GATEWAY_LOST else "no engine answered"


def _crashed(end: Exit, said: SessionSummary | None) -> Failure:
    """A non-zero exit: agents commonly die of the answer that a limit or a failing engine gives."""
    limit, detail = _limit(said)
    if limit is not None:
        return limit, detail
    text = f"exit code {end.code}" + (f": {end.detail}" if end.detail else "")
    if said is not None and said.engine_errors:
        return FailureReason.ENGINE_ERROR, f"{text}; the engine failed {said.engine_errors} calls of it"
    return FailureReason.AGENT_EXIT, text


def _limit(said: SessionSummary | None) -> Failure:
    if said is None or said.limit_reached is None:
        return None, ""
    reason = LIMITS.get(said.limit_reached, FailureReason.TOKEN_LIMIT)
    return reason, f"limit reached: {said.limit_reached}"


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
    was posted to the gateway stands (a verifier, a trainer, the agent's /complete)."""
    discount = spec.reward.discount
    if unscored(reason):
        return SessionOutcome(failure_reason=reason, detail=detail)
    message = end.message if spec.reward.source is RewardSource.AGENT else None
    if spec.reward.source is RewardSource.EXIT_CODE:
        well = reason is None  # a completed agent that was stopped has no exit code of its own
        return SessionOutcome(
            failure_reason=reason,
            detail=detail,
            reward=float(well),
            reward_info={"exit_code": end.code},
            discount=discount,
        )
    if spec.reward.source is RewardSource.VERIFIER and verdict is not None:
        message = verdict.message
    if message is None or message.reward is None:
        note = {DROPPED: message.reward_info[DROPPED]} if message and DROPPED in message.reward_info else {}
        return SessionOutcome(failure_reason=reason, detail=detail, reward_info=note)
    return SessionOutcome(
        failure_reason=reason,
        detail=detail,
        reward=message.reward,
        reward_info=message.reward_info,
        discount=discount,
    )
