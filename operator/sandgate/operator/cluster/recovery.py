"""Recovery: what a new operator concludes about sessions from gateways, AgentSessions and pods. (pure)

Gateways remember what was sampled, objects remember what was decided, pods are what runs. Nothing is run twice: an open
session that has a pod goes on; one whose status says how its agent ended is judged by that; one without a pod is
started only if this very operator had it opened, and made no pod since. Otherwise its pod is gone, or may be: somebody
deleted it while no operator looked, and its container may run on for its grace, or longer where its node is cut off.
That its gateway does not know it says nothing: it may have lost its volume. That is infrastructure. Of a job that is
over none is started.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureReason
from sandgate.contract.names import group_hash
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.contract.status import SessionCondition
from sandgate.operator.cluster.agent_end import ended_agent
from sandgate.operator.cluster.object_store import PodKept, SessionSeen
from sandgate.operator.cluster.session_status import stop_told, stopped_late
from sandgate.operator.observed.remotes import METADATA
from sandgate.operator.plan.actions import Exit, Ref, Running, SessionObserved, SideCars, Told
from sandgate.operator.plan.ends import OVER
from sandgate.operator.plan.settling import JOURNAL_LOST

GIVEN_UP = FailureReason.DRIVER_LOST
GONE = "its pod is gone"
UNTOLD = "it is of an operator before this one, and has no pod: whether it had one cannot be told"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What is known of a job's sessions beside their gateways' word."""

    sessions: Mapping[str, SessionSeen]
    agents: Mapping[str, PodKept]
    """By session."""
    verifiers: Mapping[str, PodKept]
    now: float
    done: Container[str] = frozenset()
    """names.group_hash of tasks that are done: what is left of their AgentSessions is history."""
    over: bool = False
    """The job is complete, or failed."""
    before: Mapping[str, SessionObserved] = field(default_factory=dict)
    """What this operator had observed until now, by session."""
    met: bool = False
    """This operator knows what it opened at the gateway: it had taken in what that held before."""

    def recall(self, ref: Ref, said: SessionSummary) -> SessionObserved | None:
        """One that a gateway holds; None if nothing is left to be done for it."""
        kept = self.sessions.get(ref.name)
        if said.state.ended:
            return self._ended(ref, said, kept)
        agent, verifier = self.agents.get(ref.name), self.verifiers.get(ref.name)
        running = agent.seen.running if agent is not None else None
        if kept is not None and kept.status.agent_end is not None:
            running = ended_agent(
                kept.status.agent_end, said.created_at, agent.seen if agent is not None else None
            )
        remote = bool(ref.called)
        begun = said.turns > 0 or (kept is not None and bool(kept.status.pod_name)) or self.ran(ref.name)
        untold = not begun and self._untold(ref.name)
        stop = stop_told(kept.status) if kept is not None else None
        looked_at = 0.0
        if remote:
            running = None
        elif running is None and begun:
            gone = (GIVEN_UP, UNTOLD) if self.given_up(ref.name) else (FailureReason.EVICTED, GONE)
            running = self._ended_before(ref.name) or self._gone(said, *gone)
        elif running is None and self.over:
            stop = stop or OVER
        elif running is None and untold:
            running = self._gone(said, GIVEN_UP, UNTOLD)
            if said.state is SessionState.OPEN:  # its gateway may not know it, and knows nothing that matters
                looked_at = self.now
        return SessionObserved(
            ref=ref,
            opened_at=said.created_at,
            summary=said,
            sandbox=running,
            verifier=verifier.seen.running if verifier is not None else None,
            looked_at=looked_at,
            stop=stop,
            stop_at=self.now if stop is not None else 0.0,
            stop_late=kept is not None and stopped_late(kept.status),
            # An open session without its object: one that was deleted, or one whose making was cut short.
            deleted=(kept is None and (begun or untold or remote)) or (kept is not None and kept.deleting),
            told=kept.told if kept is not None else None if remote else Told.NOTHING,
            remote=remote,
        )

    def ran(self, session: str) -> bool:
        """This operator has seen a pod of it, or its end, or has found that there may have been one."""
        seen = self.before.get(session)
        return seen is not None and (seen.sandbox is not None or _is_over(seen))

    def _ended_before(self, session: str) -> Running | None:
        """Its agent, where this operator knows how that ended."""
        seen = self.before.get(session)
        if seen is None or seen.sandbox is None or seen.sandbox.exit is None:
            return None
        return replace(seen.sandbox, side_cars=SideCars.NONE)

    def given_up(self, session: str) -> bool:
        """It may have had a pod that this operator has not seen, and was found so before."""
        seen, agent = self.before.get(session), self._ended_before(session)
        if seen is not None and seen.summary is not None and seen.summary.failure_reason == GIVEN_UP:
            return True
        return agent is not None and agent.exit is not None and agent.exit.reason is GIVEN_UP

    def _untold(self, session: str) -> bool:
        """It may have had a pod that this operator has not seen."""
        return not self.met and session not in self.before

    def _gone(self, said: SessionSummary, reason: FailureReason, detail: str) -> Running:
        return Running(said.created_at, said.created_at, Exit(self.now, reason=reason, detail=detail))

    def _ended(self, ref: Ref, said: SessionSummary, kept: SessionSeen | None) -> SessionObserved | None:
        done = Told.COMMITTED if said.committed else Told.FINALIZED
        infra = said.state is SessionState.ABORTED or said.failure_class == "infra"
        # What its object says may be wrong since its gateway lost it.
        true = kept is not None and kept.status.failure_reason == said.failure_reason
        told = None if kept is None else kept.told if true else Told.NOTHING
        written = told is None or told >= done
        if written and (said.committed or infra) and ref.name not in self.agents:
            return None
        agent, verifier = self.agents.get(ref.name), self.verifiers.get(ref.name)
        return SessionObserved(
            ref=ref,
            opened_at=said.created_at,
            summary=said,
            looked_at=self.now,
            sandbox=agent.seen.running if agent is not None else None,
            verifier=verifier.seen.running if verifier is not None else None,
            told=told,
            remote=bool(ref.called),
            committed=said.committed,
        )


def unknown(gateway: str, listed: Iterable[SessionSummary], memory: Recovered) -> list[SessionSummary]:
    """Sessions that only their objects remember. Those that never began are still to be opened, unless the job is over.
    Of others the gateway lost its volume: attempts count on; what the trainer has for good stays done, if it has the
    whole group: half of one can be had nowhere any more."""
    known = {one.session_id for one in listed}
    mine = [
        one
        for one in memory.sessions.values()
        if one.gateway == gateway
        and one.name not in known
        and group_hash(one.spec.job_name, one.spec.task_uid) not in memory.done
    ]
    fresh = [one for one in mine if never_began(one, memory.agents) and not memory.ran(one.name)]
    unopened = {one.name for one in fresh}
    lost = [one for one in mine if one.name not in unopened]
    open_groups = {one.spec.task_uid for one in lost if not _final(one)}
    return [
        *(_begun(one, memory.now) for one in fresh if not memory.over),
        *(_made_up(one, memory, kept=one.spec.task_uid not in open_groups) for one in lost),
    ]


def _is_over(seen: SessionObserved) -> bool:
    return seen.summary is not None and seen.summary.state.ended


def never_began(one: SessionSeen, agents: Mapping[str, PodKept]) -> bool:
    """Nothing of it ran, as far as its object and pods tell."""
    pod = agents.get(one.name)
    return not one.spec.remote and not one.status.conditions and (pod is None or not pod.is_of(one))


def _begun(one: SessionSeen, now: float) -> SessionSummary:
    ref = one.ref
    return SessionSummary(
        session_id=one.name,
        state=SessionState.OPEN,
        job=ref.job,
        uid=ref.uid,
        sample_index=ref.sample,
        attempt=ref.attempt,
        created_at=now,
    )


def _final(one: SessionSeen) -> bool:
    infra = one.status.failure_class == "infra"
    return infra or one.is_true(SessionCondition.TRAJECTORY_COMMITTED)


def _made_up(one: SessionSeen, memory: Recovered, *, kept: bool) -> SessionSummary:
    status, ref = one.status, one.ref
    reason = status.failure_reason
    # One that failed of an outage before, and was told, lost nothing with the journal.
    lost = any(each.message == JOURNAL_LOST for each in status.conditions)
    if memory.given_up(one.name):  # it lost nothing with the journal
        reason = GIVEN_UP.value
    elif not kept and status.failure_class != "infra":
        reason, lost = FailureReason.GATEWAY_LOST.value, True
    return SessionSummary(
        session_id=one.name,
        state=SessionState.FINALIZED,
        job=ref.job,
        uid=ref.uid,
        sample_index=ref.sample,
        attempt=ref.attempt,
        turns=status.turns,
        tokens=status.tokens,
        reward=status.reward,
        failure_class=_class_of(reason) or status.failure_class,
        failure_reason=reason,
        failure_detail=JOURNAL_LOST if lost else "",
        changed_at=memory.now,
        committed=kept and one.is_true(SessionCondition.TRAJECTORY_COMMITTED),
        metadata=dict(METADATA) if one.spec.remote else {},
    )


def _class_of(reason: str | None) -> str | None:
    if reason is None or reason not in FailureReason.__members__.values():
        return None
    return FAILURE_CLASS[FailureReason(reason)].value
