"""One session's life in a cluster without time: real operators over an API server in memory, one after the other.

Nodes do what a `Life` says, a clock jumps from one thing that happens to the next, and the operator dies where it is
told to: before a call took effect, after it, or between two of its turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Any

from sandgate.contract.errors import Unavailable
from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import AGENT, ROLE
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.session import SessionOutcome, SessionState
from sandgate.operator.cluster.job import ClusterJob
from sandgate.operator.observed import events
from sandgate.operator.observed.job import JOB_KEY
from sandgate.operator.plan.actions import Outage, Provide, Provided, WakeAt
from tests.operator.cluster_rig import NAMESPACE, SETTINGS, manifest
from tests.operator.fake_gateway import FakeGateway
from tests.operator.fake_kube import FakeKube
from tests.support.gateway import SECRET

Json = Any
GATEWAY = "shop-gateway-0"
BEGIN = 1_800_000_000.0
SOON_S = 5.0
"""Until what heeds its node has ended."""
WORKS_S = 40.0
"""An agent, and a verifier."""
STEPS_MAX = 500
WRITES = frozenset({"create", "patch", "patch_status", "delete"})


class Died(BaseException):
    """kill -9 of the operator, within a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a session's pods do."""

    reward: Json
    code: int | None = 0
    """The agent's; None: it does not end by itself."""
    message: str = ""
    """What it leaves."""
    completes: bool = False
    """It POSTs /complete, which is its end."""
    heeds: bool = True
    """It ends when it is told to."""
    beside: str = ""
    """Beside it runs a `container`, or an `init` container that stays; empty: nothing does."""
    beside_s: float = inf
    """How long after it was told to end that does."""
    verdict: Json = None
    """The terminated state of its verifier. None: that never ends."""


@dataclass
class Monitor:
    """A gateway that answers."""

    client: FakeGateway
    name: str = GATEWAY
    origin: str = "http://shop-gateway-0.shop-gateway.lab.svc:8000"
    open: bool = True
    absences: Collection[Outage] = ()

    async def status(self) -> tuple[Json, bool]:
        return {"journal": {"healthy": True}}, True


@dataclass
class Lives:
    """`run` it, once."""

    life: Life
    before: int = -1
    """The operator dies before the call of this number takes effect, counted from 0; or"""
    after: int = -1
    """after that; or"""
    between: int = -1
    """behind the turn of this number."""
    away_s: float = 0.0
    """How long there is none then."""
    now: float = BEGIN
    calls: int = 0
    """That change something."""
    turns: int = 0
    wrong: list[str] = field(default_factory=list)
    """Laws that were broken."""
    untold: bool = False
    """It died when there was the session's object and no pod: for all that the next one knows, there had been one."""
    operator: ClusterJob | None = None
    happens: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)
    dirty: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kube = FakeKube(lambda: self.now)
        self.kube.fail, self.kube.lose = self._begins, lambda verb, kind: self._done()
        self.kube.watchers.append(self._news)
        self.gateway = FakeGateway(lambda: self.now, fail=self._asks, lose=lambda call: self._done())

    async def run(self) -> SessionOutcome | None:
        """To its seal. None: nothing of it counts, it is tried again."""
        self.job = decode(RolloutJob, await self.kube.create(self._manifest()), ignore_unknown=True)
        await self._operator_up()
        while not self._over():
            assert self.turns < STEPS_MAX, "it has no end"
            await self._step()
        await self._operator_down()
        name, said = next(iter(self.gateway.sessions.items()))
        counts = said.state is SessionState.FINALIZED and said.failure_class != "infra"
        return self.gateway.outcomes[name] if counts else None

    def made(self, role: str) -> int:
        """How often a pod of it was, of one attempt at most."""
        numbers = (
            number
            for (kind, name), number in self.kube.made.items()
            if kind == "Pod" and name.endswith("-v") is (role == "verifier")
        )
        return max(numbers, default=0)

    def _manifest(self) -> Json:
        tool = {"name": "tool", "image": "tool:1"}
        pod: Json = {"containers": [{"name": "agent", "image": "agent:1", "command": ["agent"]}]}
        if self.life.beside == "container":
            pod["containers"].append(tool)
        elif self.life.beside:
            pod["initContainers"] = [tool | {"restartPolicy": "Always"}]
        agent: Json = {"template": {"spec": pod}}
        if self.life.completes:
            agent["completion"] = "Complete"
        limits = {"sessionSeconds": 100, "startSeconds": 30}
        return manifest("a 1", agent=agent, reward=self.life.reward, limits=limits)

    # -- the operators ------------------------------------------------------------------------------------------------

    def _begins(self, verb: str, kind: str) -> None:
        if self.operator is not None and verb in WRITES:
            self.calls += 1
            if self.calls - 1 == self.before:
                raise Died

    def _asks(self, call: str) -> None:
        if call == "finalize":
            self._judged()
        self._begins("create" if call in ("create", "finalize") else call, "")

    def _done(self) -> None:
        if self.operator is not None and self.calls - 1 == self.after:
            raise Died

    def _over(self) -> bool:
        held = self.gateway.sessions.values()
        return any(one.state.ended for one in held) and not self.dirty

    async def _step(self) -> None:
        try:
            if self.dirty:
                await self._turn(next(iter(self.dirty)))
            else:
                self._jump()
            for _ in range(3):  # what the operator does beside
                await asyncio.sleep(0)
            self.turns += 1
            if self.turns - 1 == self.between:
                raise Died
        except Died:
            await self._another()

    async def _another(self) -> None:
        self.before = self.after = self.between = -1
        self.untold = bool(self.kube.named("AgentSession")) and not self.made("agent")
        await self._operator_down()
        until = self.now + self.away_s
        while self.happens and min(self.happens)[0] <= until:
            self._jump()
        self.now = max(self.now, until)
        await self._operator_up()

    async def _operator_up(self) -> None:
        one = ClusterJob(
            self.kube,
            SETTINGS,
            self.job,
            None,
            touch=lambda key: self.dirty.update({key: None}),
            forget=lambda key: self.timers.update({key: inf}),
            connect=lambda *_: self.gateway,  # type: ignore[arg-type]
            now=lambda: self.now,
        )
        self.operator = one
        one.at.signed(SECRET)
        one.at.observe(events.EngineProvided(Provided.RUNNING, 1))
        one.at.observe(events.EnginesCounted(1, ""))
        monitor: Any = Monitor(self.gateway)
        one.at.monitors[GATEWAY] = monitor
        await one.intake.arrived(monitor, list(self.gateway.sessions.values()))
        self.dirty |= {JOB_KEY: None, **dict.fromkeys(one.observed.sessions)}

    async def _operator_down(self) -> None:
        one, self.operator = self.operator, None
        if one is not None:
            await one.stop()
        self.dirty.clear()
        self.timers.clear()

    async def _turn(self, key: str) -> None:
        assert self.operator is not None
        del self.dirty[key]
        for action in self.operator.plan(key):
            if isinstance(action, WakeAt):
                self.timers[key] = action.at
            if isinstance(action, Provide):  # all that it needs is there
                self.operator.at.observe(events.EngineProvided(action.what, 1))
                continue
            try:
                await self.operator.driver.carry_out(key, action)
            except Unavailable:
                self.dirty[key] = None
                return

    def _jump(self) -> None:
        """To what happens next."""
        at, key = min(((at, key) for key, at in self.timers.items()), default=(inf, ""))
        if self.happens and min(self.happens)[0] <= at:
            first = min(self.happens)
            self.happens.remove(first)
            self.now = max(self.now, first[0])
            first[2]()
            return
        assert at < inf, "nothing can happen any more"
        self.now = max(self.now, at)
        del self.timers[key]
        assert self.operator is not None
        self.operator.at.observe(events.TimerSet(key, None))
        self.dirty[key] = None

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _later(self, after: float, what: Callable[[], None]) -> None:
        if after < inf:
            self._number = getattr(self, "_number", 0) + 1  # the first of several at once
            self.happens.append((self.now + after, self._number, what))

    def _news(self, kind: str, event: str, body: Json) -> None:
        gone = event == "DELETED"
        if kind == "Pod":
            self._node(event, body)
        if self.operator is not None and kind == "Pod":
            self.operator.saw_pod(body, gone=gone)
        elif self.operator is not None and kind == "AgentSession":
            self.operator.saw_session(body, gone=gone)

    def _node(self, event: str, body: Json) -> None:
        name, agent = body["metadata"]["name"], is_agent(body)
        if event == "ADDED":
            if not agent:
                self._judged()
            self._later(1.0, lambda: self._starts(name))
        elif event == "MODIFIED" and body["spec"].get("activeDeadlineSeconds") == 1:
            heeds = self.life.heeds if agent else self.life.verdict is not None
            ended = {"exitCode": 137}
            self._later(
                SOON_S if heeds else inf, lambda: self._ends(name, "agent" if agent else "verifier", ended)
            )
            self._later(self.life.beside_s, lambda: self._ends(name, "tool", ended))

    def _starts(self, name: str) -> None:
        if (pod := self.kube.objects.get(("Pod", NAMESPACE, name))) is None:
            return
        began = {"running": {"startedAt": self._stamp()}}
        states = [{"name": one["name"], "state": began} for one in pod["spec"]["containers"]]
        inits = [{"name": "tool", "state": began}] if is_agent(pod) and self.life.beside == "init" else []
        status = {"phase": "Running", "containerStatuses": states, "initContainerStatuses": inits}
        self.kube.pod_status(name, NAMESPACE, status)
        if is_agent(pod):
            self._later(WORKS_S, lambda: self._works(name))
        elif self.life.verdict is not None:
            self._later(WORKS_S, lambda: self._ends(name, states[0]["name"], self.life.verdict))

    def _works(self, name: str) -> None:
        """An agent has its turn, and comes to its end, or says so."""
        said = self.gateway.sessions[name]
        if not said.state.ended:
            state = SessionState.COMPLETE if self.life.completes else said.state
            said = self.gateway.sessions[name] = replace(said, turns=1, state=state)
        if self.operator is not None and self.life.completes:
            self.operator.at.observe(events.SessionReported(said, self.now))
        if self.life.code is not None:
            self._ends(name, "agent", {"exitCode": self.life.code, "message": self.life.message})

    def _ends(self, name: str, which: str, ended: Json) -> None:
        """A container of it does; and the pod with the last of them."""
        if (pod := self.kube.objects.get(("Pod", NAMESPACE, name))) is None:
            return
        told = pod["spec"].get("activeDeadlineSeconds") == 1
        lists = ("containerStatuses", "initContainerStatuses")
        status: Json = {
            kind: [self._ended(one, which, ended) for one in pod["status"][kind]] for kind in lists
        }
        if not running(status):
            code = status["containerStatuses"][0]["state"]["terminated"]["exitCode"]
            status |= {"phase": "Failed" if code or told else "Succeeded"}
            status |= {"reason": "DeadlineExceeded"} if told else {}
        self.kube.pod_status(name, NAMESPACE, status)

    def _ended(self, one: Json, which: str, ended: Json) -> Json:
        began = one["state"].get("running")
        if began is None or (one["name"] == "tool") is not (which == "tool"):
            return one
        return one | {
            "state": {"terminated": {"reason": "Error", **began, "finishedAt": self._stamp(), **ended}}
        }

    def _judged(self) -> None:
        """Nothing of an agent's pod may run then."""
        pods = [body for (kind, _, _), body in self.kube.objects.items() if kind == "Pod" and is_agent(body)]
        self.wrong += [f"{one['metadata']['name']} runs" for one in pods if running(one["status"])]

    def _stamp(self) -> str:
        return datetime.fromtimestamp(int(self.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_agent(pod: Json) -> bool:
    return bool(pod["metadata"]["labels"][ROLE] == AGENT)


def running(status: Json) -> bool:
    """A container does."""
    every = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return any("running" in one["state"] for one in every)
