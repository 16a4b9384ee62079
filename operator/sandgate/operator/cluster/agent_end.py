"""How an agent ended, as its AgentSession keeps it for an operator that finds no pod any more. (pure)

Side-cars are ended before their session is judged, by force if they must be, and then no pod is left that could say
what the agent came to: an operator which starts anew would take it for evicted, and it would be tried again.
"""

from __future__ import annotations

from dataclasses import replace

from sandgate.contract.exits import one_line
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import DETAIL_CHARS_MAX, termination_of, termination_text
from sandgate.contract.status import AgentEnd
from sandgate.operator.observed.pod_record import PodSeen
from sandgate.operator.plan.actions import Exit, Running, SideCars
from sandgate.operator.plan.ends import seconds, stamp


def agent_end(agent: Running | None) -> AgentEnd | None:
    """To be written down; None while it runs."""
    end = agent.exit if agent is not None else None
    if agent is None or end is None:
        return None
    return AgentEnd(
        started_at="" if agent.started_at is None else stamp(agent.started_at),
        ended_at=stamp(end.at),
        exit_code=end.code,
        signal=end.signal,
        reason="" if end.reason is None else end.reason.value,
        detail=one_line(end.detail, DETAIL_CHARS_MAX),
        message=termination_text(end.message),
        traceback=end.traceback,
        stopped=end.stopped,
    )


def ended_agent(told: AgentEnd, asked_at: float, pod: PodSeen | None) -> Running:
    """What a new operator knows by it; `pod` is what is left of its pod. An end stays what it was, whatever that says
    by now."""
    known = told.reason in FailureReason.__members__.values()
    end = Exit(
        at=seconds(told.ended_at),
        code=told.exit_code,
        signal=told.signal,
        reason=FailureReason(told.reason) if known else None,
        detail=told.detail,
        message=termination_of(told.message),
        traceback=told.traceback,
        stopped=told.stopped,
    )
    started_at = seconds(told.started_at) or None
    if pod is None:
        return Running(asked_at, started_at, end)
    left = pod.running.side_cars if pod.running.exit is not None else SideCars.RUN
    return replace(
        pod.running, started_at=started_at, exit=end, side_cars=SideCars.NONE if pod.over else left
    )
