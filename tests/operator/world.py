"""A job's world in memory: gateways that know sessions, agents that end as a seed says, a clock that jumps.

Only the store, the plans and this interpreter of actions are real; there are no processes and no time. Whatever order
things happen in, the laws at the end must hold.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from sandgate.contract.errors import FAILURE_CLASS, FailureReason
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary, TerminationMessage
from sandgate.contract.status import JobCondition
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.plan import actions
from sandgate.operator.plan.actions import Action, Exit, JobWant, Ref, Running
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.session import plan_session
from sandgate.operator.plan.status import is_over

ENDS = ["ok", "ok", "ok", "crash", "oom", "hang", "limit", "engine", "start", "signal", "evicted"]


@dataclass
class World:
    """`run` until the job is over; `restart` at any time is a driver that died."""

    want: JobWant
    rng: random.Random
    tasks: list[str]
    now: float = 1000.0
    sessions: dict[str, SessionSummary] = field(default_factory=dict)
    """The gateways' truth; survives a driver."""
    placed: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    agents: dict[str, tuple[Ref, Running]] = field(default_factory=dict)
    verifiers: dict[str, tuple[Ref, Running]] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    """Attempts that were started, by name."""
    most: int = 0
    """Live sessions at once."""
    most_starting: int = 0
    dirty: set[str] = field(default_factory=set)
    timers: dict[str, float] = field(default_factory=dict)
    failed_actions: float = 0.0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A driver is born: it knows only what gateways tell. Agents of the one before are dead."""
        self.agents, self.verifiers, self.dirty, self.timers = {}, {}, set(), {}
        self.store = Observed(self.want, self.dirty.add, started_at=self.now)
        for gateway in ("g0", "g1"):
            mine = [one for one in self.sessions.values() if self.placed[one.session_id] == gateway]
            self.store.found(gateway, mine)
        self.store.tasks(self.tasks)
        for gateway in ("g0", "g1"):
            self.store.gateway(gateway, ready=True)

    # -- time goes on -------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return any(is_over(self.store.status, kind) for kind in (JobCondition.COMPLETE, JobCondition.FAILED))

    def step(self) -> bool:
        """One random thing that can happen now; False if nothing can any more."""
        able: list[Any] = [lambda key=key: self.turn(key) for key in sorted(self.dirty)]
        able += [lambda name=name: self.agent_goes_on(name) for name in sorted(self.agents)]
        able += [lambda name=name: self.verifier_goes_on(name) for name in sorted(self.verifiers)]
        if not self.dirty and self.timers:
            able.append(self.jump)
        if not able:
            return False
        self.rng.choice(able)()
        return True

    def jump(self) -> None:
        """The clock goes to the next timer."""
        self.now = max(self.now, min(self.timers.values()))
        for key in [key for key, at in self.timers.items() if at <= self.now]:
            del self.timers[key]
            self.store.waits(key, None)
            self.dirty.add(key)

    def plan(self, key: str) -> list[Action]:
        if key == JOB_KEY:
            return plan_job(self.want, self.store.job(), self.now)
        seen = self.store.sessions.get(key)
        return [] if seen is None else plan_session(self.want.spec, seen, self.now)

    def turn(self, key: str) -> None:
        self.dirty.discard(key)
        for action in self.plan(key):
            if self.rng.random() < self.failed_actions:  # a gateway was away: the rest is planned again
                self.dirty.add(key)
                return
            self.carry_out(key, action)
        live = self.store.live
        self.most = max(self.most, len(live))
        starting = [
            one for one in live if not one.lost and (one.sandbox is None or one.sandbox.started_at is None)
        ]
        self.most_starting = max(self.most_starting, len(starting))

    # -- agents -------------------------------------------------------------------------------------------------------

    def agent_goes_on(self, name: str) -> None:
        ref, seen = self.agents[name]
        self.now += self.rng.random()
        if seen.started_at is None and self.rng.random() < 0.7:
            self.agents[name] = ref, Running(seen.asked_at, self.now)
            self.store.sandbox(ref, self.agents[name][1])
            return
        self.end_agent(name, self.rng.choice(ENDS))

    def end_agent(self, name: str, how: str) -> None:
        ref, seen = self.agents[name]
        if how == "hang":
            return
        del self.agents[name]
        code, reason = {"ok": 0, "limit": 1, "engine": 1, "crash": 1}.get(how), None
        if how in ("oom", "start", "evicted"):
            reasons = {"oom": FailureReason.OOM_KILLED, "evicted": FailureReason.EVICTED}
            reason = reasons.get(how, FailureReason.START_FAILED)
        if how in ("limit", "engine"):
            more = {"limit_reached": "turns"} if how == "limit" else {"engine_errors": 1}
            self.sessions[name] = replace(self.sessions[name], **more)
        self.sessions[name] = replace(self.sessions[name], turns=1)
        end = Exit(at=self.now, code=code, signal=None if code is not None else 9, reason=reason)
        self.store.sandbox(ref, Running(seen.asked_at, seen.started_at or self.now, end))

    def verifier_goes_on(self, name: str) -> None:
        ref, seen = self.verifiers.pop(name)
        well = self.rng.random() < 0.9
        message = TerminationMessage(reward=1.0) if well else TerminationMessage()
        end = Exit(at=self.now, code=0 if well else 1, message=message)
        self.store.verifier(ref, Running(seen.asked_at, self.now, end))

    # -- actions ------------------------------------------------------------------------------------------------------

    def carry_out(self, key: str, action: Action) -> None:  # noqa: C901 - one case per kind of action
        match action:
            case actions.OpenSession(ref, gateway):
                if ref.name not in self.sessions:
                    self.sessions[ref.name] = self._opened(ref)
                    self.placed[ref.name] = gateway
                self.store.opened(ref, gateway, self.now)
            case actions.StartAttempt(ref):
                self.begun[ref.name] += 1
                self.agents[ref.name] = ref, Running(self.now)
                self.store.sandbox(ref, self.agents[ref.name][1])
            case actions.StopAttempt(ref, stop):
                self.store.stopping(ref, stop, self.now)
                if ref.name in self.agents:
                    self.end_agent(ref.name, "signal")
            case actions.LookSession(ref):
                self.store.told(self.sessions[ref.name], self.now)
            case actions.StartVerifier(ref):
                self.verifiers[ref.name] = ref, Running(self.now, self.now)
                self.store.verifier(ref, self.verifiers[ref.name][1])
            case actions.StopVerifier(ref):
                self.store.stopping_verifier(ref, self.now)
                self.verifier_goes_on(ref.name)
            case actions.SealSession(ref, outcome):
                self._seal(ref, outcome)
            case actions.CloseGroup(uid, _):
                self.closed.add(uid)
                self.store.closed(uid)
            case actions.Forget(ref):
                self.store.forget(ref)
                self.timers.pop(key, None)
            case actions.WriteStatus(status):
                self.store.wrote(status)
            case actions.WakeAt(at):
                self.timers[key] = at
                self.store.waits(key, at)

    def _opened(self, ref: Ref) -> SessionSummary:
        return SessionSummary(
            session_id=ref.name,
            state=SessionState.OPEN,
            job=ref.job,
            uid=ref.uid,
            sample_index=ref.sample,
            attempt=ref.attempt,
            created_at=self.now,
        )

    def _seal(self, ref: Ref, outcome: SessionOutcome) -> None:
        said = self.sessions[ref.name]
        if said.state is SessionState.OPEN:
            reason = outcome.failure_reason
            said = replace(
                said,
                state=SessionState.FINALIZED,
                failure_reason=None if reason is None else reason.value,
                failure_class=None if reason is None else FAILURE_CLASS[reason].value,
                reward=outcome.reward,
                changed_at=self.now,
            )
            self.sessions[ref.name] = said
        self.store.told(said, self.now)
