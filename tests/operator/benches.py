"""The job driver on each of its back ends: real processes, pods of an API server in memory, and the simulation. Their
gateways are the same fake; programs wait, do not heed SIGTERM, and fail when they are told to."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.labels import AGENT, ROLE
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import pod_name, verifier_name
from sandgate.contract.session import agents_task
from sandgate.operator.cluster.job import ClusterJob
from sandgate.operator.driver.job_driver import JobDriver
from sandgate.operator.driver.state import DriverState
from sandgate.operator.driver.task_queue import take
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.gateways import LocalGateway, LocalGateways
from sandgate.operator.local.resuming import Recipe
from sandgate.operator.local.sandboxes import Sandboxes
from sandgate.operator.local.supervise import Supervised
from sandgate.operator.observed import events
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import Action, JobWant, Outage, Ref, SessionObserved
from sandgate.operator.settings import Settings
from sandgate.sandbox.process import Guard, ProcessSpec
from tests.operator.cluster_rig import NAMESPACE, manifest
from tests.operator.fake_gateway import FakeGateway
from tests.operator.fake_kube import FakeKube
from tests.operator.plans import want
from tests.operator.world import World
from tests.support.waiting import until

TASK = Task(uid="a", prompt="seven kiwis", data={"public": {"shop": 7}, "answer": 42})
VERIFIER = {"source": "verifier", "verifier": {"container": {"image": "v:1", "command": ["judge"]}}}
GROUP: dict[str, Any] = {"groupSize": 2, "reward": VERIFIER}
PROGRAM = """
import os, shutil, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(1))
shutil.copy(os.environ["SANDGATE_TASK_FILE"], sys.argv[1] + ".part")
os.rename(sys.argv[1] + ".part", sys.argv[1])
while True:
    signal.pause()
"""


class Bench(ABC):
    """A job of two samples of TASK, of which nothing is begun."""

    driver: JobDriver
    gateway: FakeGateway
    home: str
    """Its name."""
    forgotten: list[str]
    """Keys whose timers were dropped."""

    @property
    def state(self) -> DriverState:
        return self.driver.state

    @property
    def seen(self) -> SessionObserved:
        """The first sample's session."""
        return self.state.observed.sessions[Ref("shop", "a", 0, 0).name]

    async def act(self, *steps: Action) -> None:
        """One after the other."""
        for one in steps:
            await self.driver.carry_out("key", one)

    @abstractmethod
    async def agent_runs(self, ref: Ref) -> None:
        """It was started: now it is at work."""

    @abstractmethod
    async def agent_fails(self, ref: Ref) -> None:
        """Exit code 1."""

    @abstractmethod
    async def verifier_runs(self, ref: Ref) -> None:
        """The same of its verifier."""

    @abstractmethod
    def running(self) -> list[object]:
        """Who its programs are."""

    @abstractmethod
    def task_seen(self, ref: Ref) -> Any:
        """What the agent finds in its task file."""

    @abstractmethod
    def was_away(self, since: float, until_: float) -> None:
        """Its gateway was."""

    async def ended(self, which: str) -> SessionObserved:
        """Its `sandbox` or `verifier` has, and the store knows."""

        async def over() -> bool:
            running = getattr(self.seen, which)
            return running is not None and running.exit is not None

        await until(over, what=f"its {which} has ended")
        return self.seen

    def _filled(self) -> None:
        take(self.state, [TASK])
        self.state.observe(events.GatewayChanged(self.home, ready=True))


class Processes(Bench):
    """Real ones."""

    def __init__(self, folder: Path, guard: Guard) -> None:
        self.folder, self.home, self.forgotten = folder, "shop-gateway-0", []
        self.gateway = FakeGateway(time.time)
        command = [sys.executable, "-S", "-c", PROGRAM]
        fields = manifest("x 1", **GROUP)
        fields["spec"]["reward"]["verifier"]["container"] = {"command": [*command, str(folder / "judged")]}
        container = {"command": [*command, str(folder / "seen")]}
        fields["spec"]["agent"] = {"taskDelivery": "File", "template": {"spec": {"containers": [container]}}}
        job = decode(RolloutJob, fields)
        observed = Observed(want=JobWant(name="shop", spec=job.spec))
        state = DriverState(job=job, observed=observed, changed=lambda key: None, now=time.time)
        (folder / "logs").mkdir()
        self.beside: set[asyncio.Task[None]] = set()
        self.sandboxes = Sandboxes(
            state, folder, Folder(folder), guard, Recipe("digest", {}), self._spawn, lambda event: None
        )
        self.process = Supervised(self.home, _never, guard, on_restart=lambda *_: None)
        known = LocalGateway(self.home, self.gateway.origin, cast(Any, self.gateway), self.process)
        self.driver = JobDriver(
            state=state,
            backend=self.sandboxes,
            gateways=LocalGateways({self.home: known}, state),
            watcher=Nobody(),
            forget_timers=self.forgotten.append,
        )
        self._filled()

    def _spawn(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(what)
        self.beside.add(task)
        task.add_done_callback(self.beside.discard)

    async def close(self) -> None:
        await self.sandboxes.kill_all()
        await asyncio.gather(*self.beside)

    async def _there(self, name: str) -> None:
        async def there() -> bool:
            return (self.folder / name).exists()

        await until(there, what=f"{name} is written")

    async def agent_runs(self, ref: Ref) -> None:
        await self._there("seen")

    async def agent_fails(self, ref: Ref) -> None:
        os.kill(self.sandboxes.agents[ref.name].pid, signal.SIGUSR1)
        await self.ended("sandbox")

    async def verifier_runs(self, ref: Ref) -> None:
        await self._there("judged")

    def running(self) -> list[object]:
        return [one.pid for one in self.sandboxes.running]

    def task_seen(self, ref: Ref) -> Any:
        return json.loads((self.folder / "seen").read_bytes())

    def was_away(self, since: float, until_: float) -> None:
        self.process.ended_at, self.process.back_at = since, until_


class Nobody:
    """Is told of a job's progress."""

    def stands(self, gateway: str, said: Any) -> None:
        pass

    def sealed(self, seen: Any, said: Any, outcome: Any) -> None:
        pass

    def wrote(self, status: Any) -> None:
        pass


def _never() -> ProcessSpec:
    raise AssertionError("it is not started")


@dataclass
class Monitor:
    """What a cluster's driver has of a gateway."""

    name: str
    client: FakeGateway
    origin: str = "http://shop-gateway-0:8000"
    heard_at: float = 0.0
    same: bool = True

    async def status(self) -> tuple[dict[str, Any], bool]:
        return {"journal": {"healthy": True, "detail": ""}}, self.same


class Pods(Bench):
    """What a kubelet would tell of them is told by the test."""

    def __init__(self) -> None:
        self.home, self.forgotten = "shop-gateway-0", []
        self.gateway = FakeGateway(time.time)
        self.kube = FakeKube(time.time)
        fields = manifest("x 1", **GROUP)
        fields["metadata"] |= {"uid": "uid-job", "generation": 1}
        self.job = ClusterJob(
            self.kube,
            Settings(),
            decode(RolloutJob, fields),
            None,
            touch=lambda key: None,
            forget=self.forgotten.append,
            connect=cast(Any, None),
            now=time.time,
        )
        self.driver = self.job.driver
        self.monitor = Monitor(self.home, self.gateway)
        self.job.at.monitors[self.home] = cast(Any, self.monitor)
        self.job.at.secret = bytes(32)
        self.kube.watchers.append(self._news)
        self._filled()

    def _news(self, kind: str, event: str, body: Any) -> None:
        if kind == "Pod":
            self.job.saw_pod(body, gone=event == "DELETED")

    def _says(self, name: str, state: Any, phase: str) -> None:
        body = self.kube.objects["Pod", NAMESPACE, name]
        container = "agent" if body["metadata"]["labels"][ROLE] == AGENT else "verifier"
        status = {"phase": phase, "containerStatuses": [{"name": container, "state": state}]}
        self.kube.pod_status(name, NAMESPACE, status)

    async def agent_runs(self, ref: Ref) -> None:
        self._says(pod_name(ref.name), {"running": {"startedAt": _now()}}, "Running")

    async def agent_fails(self, ref: Ref) -> None:
        ended = {"exitCode": 1, **dict.fromkeys(("startedAt", "finishedAt"), _now())}
        self._says(pod_name(ref.name), {"terminated": ended}, "Failed")

    async def verifier_runs(self, ref: Ref) -> None:
        self._says(verifier_name(ref.name), {"running": {"startedAt": _now()}}, "Running")

    def running(self) -> list[object]:
        pods = [body for (kind, _, _), body in self.kube.objects.items() if kind == "Pod"]
        return [one["metadata"]["uid"] for one in pods]

    def task_seen(self, ref: Ref) -> Any:
        """As its gateway serves it to the pod's fetcher."""
        return agents_task(self.gateway.specs[ref.name].task)

    def was_away(self, since: float, until_: float) -> None:
        self.monitor.same, self.monitor.heard_at = False, since


def _now() -> str:
    return datetime.now(UTC).isoformat()


class Simulated(Bench):
    """No processes, and no time."""

    def __init__(self) -> None:
        self.forgotten = []
        self.world = World(want=want(**GROUP), rng=random.Random(1), tasks=["a"], stubborn=True)
        self.driver, self.home, self.gateway = self.world.driver, "g0", self.world.gateways["g0"]
        self.driver.forget_timers = self.forgotten.append
        self.state.tasks.clear()
        self._filled()

    async def agent_runs(self, ref: Ref) -> None:
        world = self.world
        world.agents[ref.name] = ref, replace(world.agents[ref.name][1], started_at=world.now)
        world.state.observe(events.AgentSeen(ref, world.agents[ref.name][1]))

    async def agent_fails(self, ref: Ref) -> None:
        self.world.end_agent(ref.name, "crash")

    async def verifier_runs(self, ref: Ref) -> None:
        assert ref.name in self.world.verifiers

    def running(self) -> list[object]:
        return [*self.world.agents, *self.world.verifiers]

    def task_seen(self, ref: Ref) -> Any:
        return agents_task(self.gateway.specs[ref.name].task)

    def was_away(self, since: float, until_: float) -> None:
        self.world.away = Outage(since, until_, FailureReason.GATEWAY_LOST)


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[Bench]:
    guard = Guard()
    made = Processes(folder, guard)
    try:
        yield made
    finally:
        await made.close()
        guard.close()


@asynccontextmanager
async def pods(folder: Path) -> AsyncIterator[Bench]:
    yield Pods()


@asynccontextmanager
async def simulated(folder: Path) -> AsyncIterator[Bench]:
    yield Simulated()


BENCHES: dict[str, Callable[[Path], AbstractAsyncContextManager[Bench]]] = {
    "processes": processes,
    "pods": pods,
    "simulation": simulated,
}
