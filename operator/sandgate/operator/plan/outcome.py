"""How did a session end, and what is it worth? (pure)

Whose fault a failure is decides what becomes of it: the policy's is trained on, the agent program's is masked,
infrastructure's is tried again and never becomes a reward of 0.
"""

from __future__ import annotations

from sandgate.contract.errors import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.job import Completion, RewardSource, RolloutJobSpec
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary
from sandgate.operator.plan.actions import Exit, SessionObserved

LIMITS = {
    "turns": FailureReason.TURN_LIMIT,
    "totalTokens": FailureReason.TOKEN_LIMIT,
    "context": FailureReason.CONTEXT_EXCEEDED,
}
"""What the gateway says refused a turn."""

Failure = tuple[FailureReason | None, str]
"""(reason or None for a good end, detail for people)."""


def failure(seen: SessionObserved, end: Exit, completion: Completion) -> Failure:
    """Why the session ended, from what sandbox, driver and gateway know. The most specific knowledge wins."""
    said = seen.summary
    completed = said is not None and said.state is SessionState.COMPLETE
    if said is not None and said.state is SessionState.ABORTED:
        return FailureReason.ABORTED, "aborted at the gateway"
    if seen.stop is not None and seen.stop.reason is not None:
        return _stopped(seen.stop.reason, seen.stop.detail, said, completed)
    if end.reason is not None:
        return end.reason, end.detail
    if seen.stop is not None:  # stopped because it had completed: how it died does not matter
        return _limit(said)
    if end.signal is not None:
        return FailureReason.AGENT_SIGNAL, end.detail or f"killed by signal {end.signal}"
    if end.code != 0:
        return _crashed(end, said)
    if completion is Completion.COMPLETE and not completed:
        return FailureReason.AGENT_EXIT, "exited without a POST to /complete"
    if said is not None and said.engine_errors and not said.turns:
        return FailureReason.ENGINE_ERROR, "no turn got through: the engine failed"
    if said is not None and said.limit_reached == "context":
        return None, ""  # it compacted its history and went on: it ended well by its own account
    return _limit(said)


def _stopped(reason: FailureReason, detail: str, said: SessionSummary | None, completed: bool) -> Failure:
    if reason is not FailureReason.SESSION_TIMEOUT:
        return reason, detail
    if completed:  # it was done; only the process lingered
        return _limit(said)
    if said is not None and said.engine_errors:
        return FailureReason.ENGINE_ERROR, f"{detail}; the engine failed {said.engine_errors} calls of it"
    return reason, detail


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
    if is_infra(reason):
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
        return SessionOutcome(failure_reason=reason, detail=detail)
    return SessionOutcome(
        failure_reason=reason,
        detail=detail,
        reward=message.reward,
        reward_info=message.reward_info,
        discount=discount,
    )
