"""A job's world in memory: gateways that know sessions, agents that end as a seed says, a clock that jumps.

The store, the plans and the driver are real; this is its third back end, without processes and without time. Whatever
order things happen in, the laws at the end must hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sandgate.contract.errors import Unavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import Metadata, RolloutJob, Task
from sandgate.contract.names import API_VERSION
from sandgate.contract.session import SessionHandle, SessionOutcome, SessionSummary, TerminationMessage
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.driver.job_driver import JobDriver
from sandgate.operator.driver.state import DriverState
from sandgate.operator.observed import events
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.observed.restarts import recalled
from sandgate.operator.plan.actions import (
    Action,
    Exit,
    JobWant,
    Outage,
    Ref,
    Running,
    SessionObserved,
    WakeAt,
)
from sandgate.operator.plan.conditions import is_over
from sandgate.operator.plan.job import plan_job
from tests.operator.fake_gateway import FakeGateway

ENDS = ["ok", "ok", "ok", "crash", "oom", "hang", "limit", "engine", "start", "signal", "evicted"]


@dataclass
class World:
    """`run` until the job is over; `restart` at any time is a driver that died."""

    want: JobWant
    rng: random.Random
    tasks: list[str]
    now: float = 1000.0
    gateways: dict[str, FakeGateway] = field(default_factory=dict)
    """They survive a driver."""
    agents: dict[str, tuple[Ref, Running]] = field(default_factory=dict)
    verifiers: dict[str, tuple[Ref, Running]] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    """Attempts that were started, by name."""
    most: int = 0
    """Live sessions at once."""
    most_starting: int = 0
    dirty: set[str] = field(default_factory=set)
    timers: dict[str, float] = field(default_factory=dict)
    failed_calls: float = 0.0
    """Share of calls that fail; of half of these only the answer is lost."""
    away: Outage | None = None
    """What the gateways are found to have been."""
    stubborn: bool = False
    """Programs do not end when they are told to stop."""
    task_chars_max: int | None = None

    def __post_init__(self) -> None:
        self.gateways = {
            name: FakeGateway(lambda: self.now, fail=self.may_fail, lose=self.may_fail)
            for name in ("g0", "g1")
        }
        self.restart()

    def restart(self) -> None:
        """A driver is born: it knows only what gateways tell. Agents of the one before are dead."""
        self.agents, self.verifiers, self.dirty, self.timers = {}, {}, set(), {}
        meta = Metadata(name=self.want.name)
        job = RolloutJob(api_version=API_VERSION, kind=RolloutJob.KIND, metadata=meta, spec=self.want.spec)
        tasks = {uid: Task(uid=uid) for uid in self.tasks}
        seen = Observed(want=self.want, started_at=self.now)
        self.state = DriverState(
            job=job, observed=seen, changed=self.dirty.add, now=lambda: self.now, tasks=tasks
        )
        self.driver = JobDriver(
            state=self.state,
            backend=self,
            gateways=self,
            watcher=self,
            forget_timers=self.forget_timers,
        )
        for name, gateway in self.gateways.items():
            known = recalled(self.want, list(gateway.sessions.values()))
            self.state.observe(events.SessionsFound(name, known))
        self.state.observe(events.TasksAdded(tuple(self.tasks)))
        for name in self.gateways:
            self.state.observe(events.GatewayChanged(name, ready=True))

    @property
    def store(self) -> Observed:
        """What the driver has observed."""
        return self.state.observed

    # -- time goes on -------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return is_over(self.store.status)

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
            self.state.observe(events.TimerSet(key, None))
            self.dirty.add(key)

    def plan(self, key: str) -> list[Action]:
        if key == JOB_KEY:
            return plan_job(self.want, self.state.job_observed(), self.now)
        return self.driver.plan_session(key) if key in self.store.sessions else []

    def turn(self, key: str) -> None:
        self.dirty.discard(key)
        for action in self.plan(key):
            if isinstance(action, WakeAt):
                self.timers[key] = action.at
            try:
                at_once(self.driver.carry_out(key, action))
            except Unavailable:  # the rest is planned again
                self.dirty.add(key)
                return
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
            self.state.observe(events.AgentSeen(ref, self.agents[name][1]))
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
            self.said(name, **more)
        self.said(name, turns=1)
        end = Exit(at=self.now, code=code, signal=None if code is not None else 9, reason=reason)
        self.state.observe(events.AgentSeen(ref, Running(seen.asked_at, seen.started_at or self.now, end)))

    def verifier_goes_on(self, name: str) -> None:
        ref, seen = self.verifiers.pop(name)
        well = self.rng.random() < 0.9
        message = TerminationMessage(reward=1.0) if well else TerminationMessage()
        end = Exit(at=self.now, code=0 if well else 1, message=message)
        self.state.observe(events.VerifierSeen(ref, Running(seen.asked_at, self.now, end)))

    # -- gateways (driver.backend.Gateways) ---------------------------------------------------------------------------

    def client(self, gateway: str) -> FakeGateway:
        return self.gateways[gateway]

    def gateway_of(self, ref: Ref) -> str:
        if not (gateway := self.store.placed.get(ref.name, "")):
            raise Unavailable(f"{ref.name} has ended")
        return gateway

    async def absence(self, gateway: str, now: float) -> Outage | None:
        return self.away

    def forget_timers(self, key: str) -> None:
        self.timers.pop(key, None)

    def may_fail(self, call: str) -> None:
        if self.rng.random() < self.failed_calls / 2:
            raise Unavailable(f"{call}: the gateway is away")

    @property
    def sessions(self) -> dict[str, SessionSummary]:
        """The gateways' truth."""
        return {name: said for one in self.gateways.values() for name, said in one.sessions.items()}

    @property
    def placed(self) -> dict[str, str]:
        """Session -> its gateway."""
        return {session: name for name, one in self.gateways.items() for session in one.sessions}

    @property
    def closed(self) -> set[str]:
        return {uid for one in self.gateways.values() for uid in one.closed}

    def said(self, session: str, **more: Any) -> None:
        """Something came to pass at its gateway."""
        held = self.gateways[self.placed[session]].sessions
        held[session] = replace(held[session], **more)

    # -- sandboxes (driver.backend.SandboxBackend) --------------------------------------------------------------------

    def metadata(self, task: Task) -> Mapping[str, Any]:
        return {}

    async def prepare(self, ref: Ref, gateway: str) -> str:
        return gateway

    def refused(self, ref: Ref, why: str) -> None:
        """Nobody is told."""

    def opened(self, ref: Ref, handle: SessionHandle) -> None:
        pass

    async def start(self, ref: Ref, task: Task) -> None:
        self.begun[ref.name] += 1
        self.agents[ref.name] = ref, Running(self.now)
        self.state.observe(events.AgentSeen(ref, self.agents[ref.name][1]))

    async def stop(self, ref: Ref) -> None:
        self.may_fail("stop")
        if ref.name in self.agents and not self.stubborn:
            self.end_agent(ref.name, "signal")

    async def kill(self, ref: Ref) -> None:
        if ref.name in self.agents:
            self.end_agent(ref.name, "signal")

    async def start_verifier(self, ref: Ref, task: Task, end: Exit | None) -> None:
        self.verifiers[ref.name] = ref, Running(self.now, self.now)
        self.state.observe(events.VerifierSeen(ref, self.verifiers[ref.name][1]))

    async def stop_verifier(self, ref: Ref) -> None:
        if ref.name in self.verifiers and not self.stubborn:
            self.verifier_goes_on(ref.name)

    async def kill_verifier(self, ref: Ref) -> None:
        if ref.name in self.verifiers:
            self.verifier_goes_on(ref.name)

    async def forget(self, ref: Ref) -> None:
        pass

    # -- what happens (driver.backend.JobWatcher) ---------------------------------------------------------------------

    def stands(self, gateway: str, said: SessionSummary) -> None:
        pass

    def sealed(self, seen: SessionObserved, said: SessionSummary, outcome: SessionOutcome) -> None:
        pass

    def wrote(self, status: RolloutJobStatus) -> None:
        pass


def at_once(what: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing: here all answers are there."""
    try:
        what.send(None)
    except StopIteration:
        return
    what.close()
    raise AssertionError("it waits for something")
