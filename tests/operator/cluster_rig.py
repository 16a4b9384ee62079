"""A cluster in one process: the API server in memory, real gateways with a scripted engine, pods that are coroutines.

The operator under test is a `JobController`; `crash` is kill -9 of it, another one starts with what there is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from sandgate.contract.errors import Unavailable
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.labels import AGENT, ROLE, VERIFIER
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.engine.api import EngineStatus
from sandgate.gateway.journal.memory import MemoryStore
from sandgate.operator.cluster import (
    engine_discovery,
    garbage_collection,
    gateway_monitor,
    job_queue,
    resync,
    status_writer,
    workload_looks,
)
from sandgate.operator.cluster.job_controller import JobController
from sandgate.operator.driver import reconcile
from sandgate.operator.observed import job as observed_job
from sandgate.operator.plan import retries
from sandgate.operator.settings import Settings
from tests.operator.fake_kube import FakeKube
from tests.support.gateway import SECRET, WITHIN_S, Running, engine, gateway

Json = Any
NAMESPACE = "lab"
SETTINGS = Settings(history=1000, failed_pods=0)
"""So that all pods are seen to go; test_cluster_ends keeps some."""

ACCEPTED = 8
"""Turns of the loop after which a server knows a connection that it accepted; it takes three. One that it gets to know
only after it was closed would stay open for ever, and nobody would answer there (Python 3.11)."""

Agent = Callable[["Box"], Awaitable[int]]
"""A program: returns its exit code."""


class Engines:
    """One scripted engine behind as many URLs as the gateway is told."""

    def __init__(self, script: Any) -> None:
        self.inner = engine(script)
        self.facts = self.inner.facts
        self.urls: Sequence[str] = ("http://10.0.0.4:8000",)
        self.healthy = True

    async def generate(self, *args: Any, **more: Any) -> Any:
        return await self.inner.generate(*args, **more)

    async def set_urls(self, urls: Sequence[str], here: Collection[str] = ()) -> None:
        self.urls = tuple(urls)

    def status(self) -> list[EngineStatus]:
        why = "" if self.healthy else "connection refused"
        return [EngineStatus(url, self.healthy, 0, why) for url in self.urls]

    async def aclose(self) -> None:
        await self.inner.aclose()

    @property
    def generations(self) -> int:
        return self.inner.generations


class Crash(Exception):
    """A program's own."""


@dataclass
class Box:
    """A pod that runs: what its program sees."""

    world: World
    name: str
    env: dict[str, str]
    message: str = ""
    """Its termination message."""

    async def ask(self, *texts: str) -> str:
        """One turn."""
        url = self.world.resolve(self.env["OPENAI_BASE_URL"])
        body = {"model": "shop", "messages": [{"role": "user", "content": text} for text in texts]}
        async with httpx.AsyncClient(timeout=WITHIN_S, verify=False) as http:
            answer = await http.post(
                f"{url}/chat/completions",
                json=body,
                headers={"authorization": f"Bearer {self.env['OPENAI_API_KEY']}"},
            )
        answer.raise_for_status()
        text = str(answer.json()["choices"][0]["message"]["content"])
        self.world.told.append((self.env["SANDGATE_SESSION_ID"], text))
        return text


async def buys(box: Box) -> int:
    """The agent that does well."""
    await box.ask(box.env.get("SANDGATE_PROMPT", "hello"))
    return 0


async def judges(box: Box) -> int:
    """The verifier that likes everything."""
    box.message = json.dumps({"reward": 1.0})
    return 0


@dataclass
class World:
    """Everything but the operator; and the operator, while it lives."""

    kube: FakeKube
    stack: AsyncExitStack
    folder: Path
    script: Any = ()
    settings: Settings = SETTINGS
    config: dict[str, Any] = field(default_factory=dict)
    """Further settings of the gateways."""
    agents: list[tuple[str, Agent]] = field(default_factory=list)
    """(part of the pod's name, program): the first that fits runs; else `buys` or `judges`."""
    gateways: dict[str, Running] = field(default_factory=dict)
    stores: dict[str, MemoryStore] = field(default_factory=dict)
    engines: dict[str, Engines] = field(default_factory=dict)
    nodes: bool = True
    """There are some that run pods."""
    told: list[tuple[str, str]] = field(default_factory=list)
    """(session, what its agent was told), one per turn."""
    hub: JobController | None = None
    pods: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Pods that a kubelet could not run: a mistake of the driver."""
    taken: set[str] = field(default_factory=set)
    """Pods that somebody took away."""
    deaf: bool = False
    """The watch is cut."""
    _operator: asyncio.Task[None] | None = None
    _doors: dict[str, AsyncExitStack] = field(default_factory=dict)

    # -- gateways -----------------------------------------------------------------------------------------------------

    async def gateway_up(self, name: str, job: str = "shop", *, empty: bool = False) -> None:
        """Start it, with the journal it had."""
        if empty:
            self.stores.pop(name, None)
        store = self.stores.setdefault(name, MemoryStore())
        self.engines[name] = Engines(self.script)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        stack = AsyncExitStack()
        self.gateways[name] = await stack.enter_async_context(
            gateway(self.engines[name], store=store, folder=folder, job=job, **self.config)
        )
        self._doors[name] = stack

    async def gateway_down(self, name: str) -> None:
        """It is gone until it is up again."""
        gone = self.gateways.pop(name)
        loop = asyncio.get_running_loop()
        for listening in (sock for server in gone.servers for sock in server.sockets):
            loop.remove_reader(listening.fileno())
        for _ in range(ACCEPTED):
            await asyncio.sleep(0)
        for connection in list(gone.connections):
            connection.transport.abort()
        await self._doors.pop(name).aclose()

    def resolve(self, url: str) -> str:
        """Where a name of the cluster leads to here."""
        parts = urlsplit(url)
        name = (parts.hostname or "").partition(".")[0]
        if name not in self.gateways:
            raise Unavailable(f"{name} is away", retry_after=0.0)
        return self.gateways[name].origin + parts.path

    def connect(self, origin: str, key: str, deadline_s: float) -> GatewayClient:
        return _Client(self, origin, key, deadline_s)

    def trainer(self, name: str, job: str = "shop") -> GatewayClient:
        """A trainer's client of one gateway."""
        return GatewayClient(self.gateways[name].origin, mint(SECRET, Key(Scope.TRAINER, job=job)))

    async def train(self, job: str = "shop") -> int:
        """Lease and acknowledge all that is ready; how many sessions."""
        count = 0
        for name in list(self.gateways):
            async with self.trainer(name, job) as client:
                while (lease := await client.lease(max_groups=64, ttl_s=60.0, job=job)) is not None:
                    count += len(lease.sessions)
                    await client.ack(lease.lease_id)
        return count

    # -- the operator -------------------------------------------------------------------------------------------------

    def operator_up(self) -> JobController:
        """A new one, that knows nothing."""
        self.hub = JobController(self.kube, self.settings, connect=self.connect)
        self._operator = asyncio.ensure_future(self.hub.run())
        self.relist()
        return self.hub

    def relist(self) -> None:
        """As a watch begins: everything there is."""
        assert self.hub is not None
        self.deaf = False
        for body in list(self.kube.objects.values()):
            if body["kind"] in ("RolloutJob", "AgentSession", "Pod"):
                self.hub.saw(body["kind"], None, body)

    async def operator_down(self) -> None:
        """kill -9: nothing is finished, nothing is said."""
        assert self._operator is not None
        assert self.hub is not None
        hub, self.hub = self.hub, None
        self._operator.cancel()
        await asyncio.gather(self._operator, return_exceptions=True)
        for one in hub.runs.values():
            await one.stop()

    def tell(self, kind: str, event: str, body: Json) -> None:
        """The watch."""
        if kind == "RolloutJob" and event == "ADDED" and body["metadata"]["name"] == "shop":
            self._sign(body["metadata"]["uid"])
        if kind == "Pod":
            self._kubelet(event, body)
        if self.hub is not None and not self.deaf and kind in ("RolloutJob", "AgentSession", "Pod"):
            self.hub.saw(kind, event, body)

    def _sign(self, job: str) -> None:
        """The job's signing Secret is what the gateways have, and its own."""
        owner = {"kind": "RolloutJob", "name": "shop", "uid": job, "controller": True}
        meta = {
            "name": "shop-signing",
            "namespace": NAMESPACE,
            "uid": f"{job}-signing",
            "resourceVersion": "1",
        }
        self.kube.objects["Secret", NAMESPACE, "shop-signing"] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**meta, "ownerReferences": [owner]},
            "data": {"secret": base64.b64encode(SECRET.hex().encode()).decode()},
        }

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _kubelet(self, event: str, body: Json) -> None:
        name, role = body["metadata"]["name"], body["metadata"]["labels"].get(ROLE)
        if role not in (AGENT, VERIFIER):
            return
        if event == "ADDED" and self.nodes:
            made = asyncio.ensure_future(self._run(body))
            self.pods[name] = made
            made.add_done_callback(lambda task: self._gone(name, task))
        elif event == "DELETED" or body["metadata"].get("deletionTimestamp"):
            if (task := self.pods.get(name)) is not None:
                task.cancel()
            if event != "DELETED":
                asyncio.get_running_loop().call_soon(self.kube.remove, "Pod", NAMESPACE, name)
        elif body["spec"].get("activeDeadlineSeconds") == 1 and (task := self.pods.get(name)) is not None:
            task.cancel()

    def _gone(self, name: str, task: asyncio.Task[None]) -> None:
        self.pods.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append(f"{name}: {error!r}")

    async def _run(self, body: Json) -> None:
        name = body["metadata"]["name"]
        container = body["spec"]["containers"][0]
        box = Box(self, name, self._env(container["env"]))
        default = judges if body["metadata"]["labels"][ROLE] == VERIFIER else buys
        program = next((run for part, run in self.agents if part in name), default)
        await asyncio.sleep(0)
        self._status(body, box, {"running": {"startedAt": _now()}}, "Running")
        started = _now()
        try:
            code, reason = await program(box), ""
        except asyncio.CancelledError:
            code, reason = 137, "DeadlineExceeded"
        except (httpx.HTTPError, Unavailable, Crash):
            code, reason = 1, ""
        ended = {
            "exitCode": code,
            "startedAt": started,
            "finishedAt": _now(),
            "message": box.message,
            "reason": "Completed" if code == 0 else "Error",
        }
        self._status(body, box, {"terminated": ended}, "Succeeded" if code == 0 else "Failed", reason)

    def _status(self, body: Json, box: Box, state: Json, phase: str, reason: str = "") -> None:
        container = body["spec"]["containers"][0]["name"]
        status = {"phase": phase, "containerStatuses": [{"name": container, "state": state}]}
        self.kube.pod_status(box.name, NAMESPACE, status | ({"reason": reason} if reason else {}))

    def _env(self, entries: list[Json]) -> dict[str, str]:
        env = {}
        for one in entries:
            if "value" in one:
                env[one["name"]] = one["value"]
            else:
                ref = one["valueFrom"]["secretKeyRef"]
                secret = self.kube.objects["Secret", NAMESPACE, ref["name"]]
                env[one["name"]] = base64.b64decode(secret["data"][ref["key"]]).decode()
        return env

    # -- looks --------------------------------------------------------------------------------------------------------

    def job(self, name: str = "shop") -> Json:
        return self.kube.objects["RolloutJob", NAMESPACE, name]

    def condition(self, kind: str, name: str = "shop") -> tuple[str, str]:
        """(status, reason) of a condition of the job."""
        for one in (self.job(name).get("status") or {}).get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""

    def sessions(self) -> dict[str, Json]:
        """AgentSessions by name."""
        return {name: body for (kind, _, name), body in self.kube.objects.items() if kind == "AgentSession"}


class _Client(GatewayClient):
    """Finds its gateway anew for every call, as a name does."""

    def __init__(self, world: World, origin: str, key: str, deadline_s: float) -> None:
        super().__init__(origin, key, deadline_s=deadline_s)
        self._world, self._named = world, origin

    async def _once(self, *args: Any, **more: Any) -> Any:
        self.origin = self._world.resolve(self._named)
        return await super()._once(*args, **more)


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def manifest(*tasks: str, name: str = "shop", **spec: Any) -> Json:
    """A RolloutJob; a task per text, its uid is the first word."""
    container = {"name": "agent", "image": "agent:1", "command": ["agent"]}
    fields = {
        "model": {"name": "shop", "tokenizer": "shop"},
        "engine": {"endpoints": ["http://10.0.0.5:8000"]},
        "tasks": {"inline": [{"uid": text.split()[0], "prompt": text} for text in tasks]},
        "agent": {"template": {"spec": {"containers": [container]}}},
        "reward": {"source": "exitCode"},
        "limits": {"sessionSeconds": 30, "startSeconds": 30},
        **spec,
    }
    return {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": fields,
    }


def follow(up: World, kind: str, body: Json) -> None:
    """The StatefulSet's controller, as one of the kube's watchers: a gateway comes and goes as its replicas say."""
    if kind != "StatefulSet" or body["metadata"]["name"] != "shop-gateway":
        return

    async def scale() -> None:
        async with scaling:
            wanted = up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]["spec"]["replicas"]
            if wanted and "shop-gateway-0" not in up.gateways:
                await up.gateway_up("shop-gateway-0")
            elif not wanted and "shop-gateway-0" in up.gateways:
                await up.gateway_down("shop-gateway-0")

    scaling = up.__dict__.setdefault("scaling", asyncio.Lock())
    name = f"scale-{len(up.pods)}-{body['metadata'].get('resourceVersion')}"
    up.pods[name] = asyncio.ensure_future(scale())
    up.pods[name].add_done_callback(lambda task: up._gone(name, task))


async def engine_pod(up: World) -> None:
    """The Deployment's controller, once."""
    await up.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "shop-engine-x",
                "namespace": NAMESPACE,
                "labels": {
                    "app.kubernetes.io/managed-by": "sandgate",
                    "sandgate.dev/job": "shop",
                    "sandgate.dev/role": "engine",
                },
            },
            "spec": {"nodeName": "gpu-1", "containers": [{"name": "engine"}]},
        }
    )
    ready = {"phase": "Running", "podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "True"}]}
    up.kube.pod_status("shop-engine-x", NAMESPACE, ready)


QUICK: dict[Any, dict[str, float]] = {
    gateway_monitor: {"POLL_S": 0.02, "EVENTS_S": 0.2, "STATUS_S": 0.05},
    garbage_collection: {"LINGER_S": 0.02, "AGAIN_S": 0.05},
    status_writer: {"EVERY_S": 0.02, "AGAIN_S": 0.05},
    resync: {"GATHER_S": 5.0, "TASKS_S": 0.05},
    engine_discovery: {"ENGINES_S": 0.05, "TASKS_S": 0.05},
    retries: {"RETRY_S": 0.05},
    workload_looks: {"EVERY_S": 0.05},
    job_queue: {"GONE_S": 0.02},
    observed_job: {"PROOF_S": 0.05},
    reconcile: {"BACKOFF_S": 0.01, "BACKOFF_S_MAX": 0.2},
}
"""Periods, so that a test lives to see several of each."""


def hurry(patch: Any) -> None:
    """With pytest's monkeypatch."""
    for module, periods in QUICK.items():
        for name, value in periods.items():
            patch.setattr(module, name, value)


@asynccontextmanager
async def world(
    folder: Path,
    script: Any = lambda ids, number: "done",
    *,
    gateways: int = 1,
    kind: type[World] = World,
    **config: Any,
) -> AsyncIterator[World]:
    """Gateways of the job `shop` are up, with the signing Secret that it will have; no operator yet. `config`: of
    gateways."""
    async with AsyncExitStack() as stack:
        made = kind(FakeKube(time.time), stack, folder, script, config=config)
        made.kube.watchers.append(made.tell)
        try:
            for index in range(gateways):
                await made.gateway_up(f"shop-gateway-{index}")
            yield made
        finally:
            if made.hub is not None:
                await made.operator_down()
            for task in list(made.pods.values()):
                task.cancel()
            await asyncio.gather(*made.pods.values(), return_exceptions=True)
            for name in list(made.gateways):
                with suppress(Unavailable):
                    await made.gateway_down(name)
