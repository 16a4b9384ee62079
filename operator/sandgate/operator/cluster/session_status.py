"""The status of an AgentSession, made from what is observed of the session. (pure)

Conditions, in the order of a life. One that is not reached yet is absent, or False with a reason where that reason is
worth knowing: Finished=False says that the agent is being stopped and why, and a new operator reads it back.
"""

from __future__ import annotations

from collections.abc import Iterator

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import DETAIL_CHARS_MAX, SessionState
from sandgate.contract.status import AgentSessionStatus, Condition, ConditionStatus, SessionCondition
from sandgate.operator.cluster.agent_end import agent_end
from sandgate.operator.plan.actions import SessionObserved, Stop
from sandgate.operator.plan.ends import seconds, stamp

COMPLETED = "Completed"
"""Reason of Finished for a good end, and of one that is stopped because it had completed."""

Fact = tuple[SessionCondition, bool, str, str]
"""(type, status, reason, message)."""


def session_status(
    seen: SessionObserved,
    before: AgentSessionStatus,
    now: float,
    *,
    base_url: str,
    node: str = "",
    detail: str = "",
) -> AgentSessionStatus:
    """The status to write; equal to `before` if there is nothing new in it. `detail`: of a failure, for people."""
    said = seen.summary
    has_sandbox = seen.sandbox is not None
    reward = said.reward if said is not None and said.failure_class != "infra" else None
    return AgentSessionStatus(
        base_url=base_url,
        pod_name=seen.ref.name if has_sandbox and not seen.remote else before.pod_name,
        node=node or before.node,
        agent_end=None if said is not None and said.state.ended else agent_end(seen.sandbox),
        conditions=tuple(_condition(before, fact, now) for fact in _facts(seen, detail)),
        turns=said.turns if said is not None else before.turns,
        tokens=said.tokens if said is not None else before.tokens,
        reward=reward,
        failure_class=said.failure_class if said is not None else before.failure_class,
        failure_reason=said.failure_reason if said is not None else before.failure_reason,
    )


def held_status(before: AgentSessionStatus, reason: str, why: str, now: float) -> AgentSessionStatus:
    """Of a remote one that is not open."""
    fact = SessionCondition.SCHEDULED, False, reason, why[:DETAIL_CHARS_MAX]
    return AgentSessionStatus(conditions=(_condition(before, fact, now),))


def stop_told(status: AgentSessionStatus) -> Stop | None:
    """Why a session was being stopped when an operator last wrote its status."""
    for one in status.conditions:
        if one.type == SessionCondition.FINISHED and one.status is ConditionStatus.FALSE:
            known = one.reason in FailureReason.__members__.values()
            return Stop(FailureReason(one.reason) if known else None, one.message)
    return None


def stopped_late(status: AgentSessionStatus) -> bool:
    """Its agent's end was known when that was written: Running was False by then."""
    since = {
        one.type: seconds(one.last_transition_time)
        for one in status.conditions
        if one.status is ConditionStatus.FALSE
    }
    ended, stopped = since.get(SessionCondition.RUNNING), since.get(SessionCondition.FINISHED)
    return status.agent_end is not None and ended is not None and stopped is not None and ended <= stopped


def _facts(seen: SessionObserved, detail: str) -> Iterator[Fact]:
    said, agent = seen.summary, seen.sandbox
    over = said is not None and said.state.ended
    yield SessionCondition.SCHEDULED, True, "Remote" if seen.remote else "Asked", ""
    started = seen.remote or (agent is not None and agent.started_at is not None)
    ended = over or (agent is not None and agent.exit is not None)
    if started or ended:
        why = "Ended" if ended else "Started"
        yield SessionCondition.RUNNING, started and not ended, why if started else "NeverStarted", ""
    if over:
        reason = said.failure_reason if said is not None else None
        aborted = said is not None and said.state is SessionState.ABORTED
        named = FailureReason.ABORTED.value if aborted else reason or COMPLETED
        yield SessionCondition.FINISHED, True, named, detail[:DETAIL_CHARS_MAX]
        if aborted:
            yield SessionCondition.FINALIZED, False, "Discarded", "it was aborted; nothing of it is kept"
        else:
            yield SessionCondition.FINALIZED, True, "Sealed", ""
            if seen.committed:
                yield SessionCondition.TRAJECTORY_COMMITTED, True, "Acknowledged", ""
    elif seen.stop is not None:
        why = COMPLETED if seen.stop.reason is None else seen.stop.reason.value
        yield SessionCondition.FINISHED, False, why, seen.stop.detail[:DETAIL_CHARS_MAX]


def _condition(before: AgentSessionStatus, fact: Fact, now: float) -> Condition:
    kind, value, reason, message = fact
    status = ConditionStatus.TRUE if value else ConditionStatus.FALSE
    old = next((one for one in before.conditions if one.type == kind), None)
    since = old.last_transition_time if old is not None and old.status is status else stamp(now)
    return Condition(
        type=kind.value,
        status=status,
        reason=reason,
        message=message,
        observed_generation=1,  # its spec is immutable
        last_transition_time=since,
    )
