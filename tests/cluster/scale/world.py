"""An operator, jobs and their gateways on a played plane: all of Sandgate but the agents.

The operator is `python -m sandgate.operator` with the chart's settings, as the chart's ServiceAccount. Pods have no
network here, so a job's gateways are processes of this host: started from the job's own ConfigMap and Secret, with the
names they have in the cluster. Agents do not run: their sessions end without a turn, and a trainer takes those too.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.contract.names import gateway_name, gateways_name, signing_name, trainer_name
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.operator.manifests.policies import CLOSED
from sandgate.trainer import tinymodel
from tests.chart.rendering import render
from tests.chart.test_settings import text_of
from tests.cluster.harness.api import Api, free_ports
from tests.cluster.harness.control import Control
from tests.cluster.harness.pki import CONTEXT
from tests.cluster.harness.process import Proc, spawn
from tests.cluster.harness.rest import Refused, Rest
from tests.cluster.scale.hosts import PORT, Hosts
from tests.support.waiting import until

Json = dict[str, Any]

SYSTEM, SPACE = "sg-system", "jobs"
OPERATOR = f"system:serviceaccount:{SYSTEM}:sandgate-operator"
"""In the audit log."""
ENGINE = "engine.jobs.svc.cluster.local"
MODEL = "tiny"
GROUP = 4
"""Sessions of a task."""
LEASE = 64
"""Groups that the trainer takes at once."""
LOOK_S = 0.5
"""Between looks at what is left: looking costs the API server more than a session does."""
IDLE_S = 0.2
"""The trainer's pause when there is none."""
ROLES = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Lease")
KINDS = (
    *("pods", "agentsessions", "rolloutjobs", "secrets", "configmaps", "services", "statefulsets"),
    *(
        "controllerrevisions",
        "deployments",
        "persistentvolumeclaims",
        "poddisruptionbudgets",
        "networkpolicies",
    ),
)
"""Of which a job has objects, or its objects have."""
LAST_WORDS = 2000
TTL_S = 60.0
"""Of the trainer's lease."""
STARTED_S = 60.0


@dataclass(frozen=True)
class Shape:
    """Of one job. `sessions`: a multiple of GROUP."""

    name: str
    sessions: int
    parallelism: int
    gateways: int = 1


@dataclass
class World:
    """Jobs may be run one after the other."""

    api: Api
    control: Control
    hosts: Hosts
    operator: Proc
    metrics: str
    """URL of the operator's metrics."""

    @property
    def rest(self) -> Rest:
        return self.api.rest()

    def lives(self) -> None:
        """Raises AssertionError with its last words if the operator ended; nobody starts it again here."""
        if not self.operator.alive():
            log = self.control.folder / "log" / "operator.log"
            raise AssertionError(f"the operator ended: {log.read_text('utf-8')[-LAST_WORDS:]}")

    def jobs(self, name: str = "") -> str:
        return path("rolloutjobs", name, group="apis/sandgate.dev/v1alpha1")

    def job(self, name: str) -> Json:
        return self.rest.get(self.jobs(name))

    def sessions(self) -> list[Json]:
        found: list[Json] = self.rest.get(path("agentsessions", group="apis/sandgate.dev/v1alpha1"))["items"]
        return found

    def pods(self) -> list[Json]:
        """Of agents."""
        query = "?labelSelector=sandgate.dev/role%20in%20(agent,verifier)"
        found: list[Json] = self.rest.get(path("pods") + query)["items"]
        return found

    def secrets(self) -> list[str]:
        """Names of those that hold keys of sessions."""
        found = self.rest.get(path("secrets"))["items"]
        return [one["metadata"]["name"] for one in found if "-keys-" in one["metadata"]["name"]]

    def left(self) -> dict[str, list[str]]:
        """Kind -> names of what is in the namespace, but for what every namespace (with jobs) has."""
        found = json.loads(self.api.kubectl("get", ",".join(KINDS), "-n", SPACE, "-o", "json"))["items"]
        left: dict[str, list[str]] = {}
        for one in found:
            if one["metadata"]["name"] not in ("kube-root-ca.crt", CLOSED):
                left.setdefault(one["kind"], []).append(one["metadata"]["name"])
        return left

    def secret(self, name: str, entry: str) -> str:
        return base64.b64decode(self.rest.get(path("secrets", name))["data"][entry]).decode()

    @asynccontextmanager
    async def job_of(self, shape: Shape) -> AsyncIterator[list[Proc]]:
        """It exists, and its gateways run: they are given. Afterwards it is deleted."""
        name = shape.name
        tasks = path("configmaps", f"{name}-tasks")
        self.rest.create(path("configmaps"), task_map(shape))
        self.rest.create(self.jobs(), manifest(shape))
        async with AsyncExitStack() as stack:
            stack.callback(self.rest.call, "DELETE", tasks)
            stack.callback(self.rest.call, "DELETE", self.jobs(name))

            async def made() -> bool:
                try:
                    self.rest.get(path("configmaps", gateways_name(name)))
                    self.rest.get(path("secrets", trainer_name(name)))
                except Refused:
                    return False
                return True

            await until(made, what="the gateways are configured", within_s=STARTED_S)
            started = [self._gateway(shape, index) for index in range(shape.gateways)]
            stack.callback(self.control.ledger.kill, *(gateway_name(name, i) for i in range(shape.gateways)))
            yield started

    def _gateway(self, shape: Shape, index: int) -> Proc:
        """As its container would run, but for paths."""
        name = gateway_name(shape.name, index)
        home = self.control.folder / name
        home.mkdir()
        told = self.rest.get(path("configmaps", gateways_name(shape.name)))["data"]["gateway.json"]
        (home / "secret").write_text(self.secret(signing_name(shape.name), "secret"))
        config = json.loads(told)
        config["listen"]["host"] = self.hosts.address(gateway_host(shape.name, index))
        config |= {"journal": str(home / "journal.sqlite"), "secret_file": str(home / "secret")}
        config["log_level"] = "WARNING"
        config["model"]["tokenizer"] = str(tinymodel.write_tiny_model(home / "model"))
        (home / "gateway.json").write_text(json.dumps(config))
        argv = [sys.executable, "-m", "sandgate.gateway", "--config", str(home / "gateway.json")]
        env = {**os.environ, "POD_NAME": name, "NODE_NAME": ""}
        process = spawn(self.hosts.command(argv), self.control.folder / "log" / f"{name}.log", env=env)
        self.control.ledger.add(name, process)
        return process

    async def run(self, shape: Shape, within_s: float) -> None:
        """Until the job is complete, all is acknowledged, and pods and keys are gone. Its gateways run already."""
        await self._train(shape, within_s)

        async def over() -> bool:
            self.lives()
            job = self.job(shape.name)["status"]
            done = any(one["type"] == "Complete" and one["status"] == "True" for one in job["conditions"])
            return done and job["committed"] == shape.sessions and not self.pods() and not self.secrets()

        what = "the job is over and cleared away"
        await until(over, what=what, within_s=within_s, every_s=LOOK_S)

    async def _train(self, shape: Shape, within_s: float) -> None:
        """Lease and acknowledge until all sessions were had."""
        key, taken = self.secret(trainer_name(shape.name), "api_key"), 0
        async with AsyncExitStack() as stack:
            clients = []
            for index in range(shape.gateways):
                origin = f"http://{self.hosts.address(gateway_host(shape.name, index))}:{PORT}"
                clients.append(await stack.enter_async_context(GatewayClient(origin, key)))

            async def all_taken() -> bool:
                nonlocal taken
                self.lives()
                for client in clients:
                    while lease := await client.lease(job=shape.name, max_groups=LEASE, ttl_s=TTL_S):
                        await client.ack(lease.lease_id)
                        taken += len(lease.sessions)
                return taken == shape.sessions

            await until(all_taken, what="all sessions are acknowledged", within_s=within_s, every_s=IDLE_S)


@asynccontextmanager
async def world(api: Api, control: Control, settings: Json) -> AsyncIterator[World]:
    """The operator leads. `settings`: over the chart's."""
    hosts = Hosts(control.folder / "hosts")
    rendered = render(namespace=SYSTEM)
    for name in (SYSTEM, SPACE):
        api.rest().create("/api/v1/namespaces", {"metadata": {"name": name}})
    api.apply(*(one for one in rendered.objects if one["kind"] in ROLES))
    player = Player(
        [],
        encode=tinymodel.encode,
        decode=tinymodel.decode,
        eos_ids=[tinymodel.END],
        vocab_size=tinymodel.VOCAB_SIZE,
    )
    (port,) = free_ports(1)
    file = control.folder / "settings.json"
    file.write_text(json.dumps(json.loads(text_of(rendered)) | settings))
    argv = [
        *(sys.executable, "-m", "sandgate.operator", f"--settings={file}", "--lease=sandgate-operator"),
        *(f"--http=127.0.0.1:{port}", f"--kubeconfig={account(api, control)}"),
    ]
    env = {**os.environ, "POD_NAME": "sandgate-operator-0", "POD_NAMESPACE": SYSTEM}
    async with ScriptedServer(player, model=MODEL, host=hosts.address(ENGINE), port=PORT):
        process = spawn(hosts.command(argv), control.folder / "log" / "operator.log", env=env)
        control.ledger.add("operator", process)
        yield World(api, control, hosts, process, f"http://127.0.0.1:{port}/metrics")
        control.ledger.kill("operator")


def account(api: Api, control: Control) -> Path:
    """A kubeconfig of the operator's ServiceAccount."""
    config = json.loads(api.kubeconfig.read_text("utf-8"))
    token = api.token(SYSTEM, "sandgate-operator", seconds=6 * 3600)
    config["users"][0]["user"] = {"token": token}
    assert config["current-context"] == CONTEXT
    file = control.folder / "operator.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config))
    return file


def gateway_host(job: str, index: int) -> str:
    """Its name in the cluster."""
    return f"{gateway_name(job, index)}.{gateways_name(job)}.{SPACE}.svc.cluster.local"


def task_map(shape: Shape) -> Json:
    """A prompt of each task, as JSON lines."""
    lines = (json.dumps({"uid": f"t{n:05}", "prompt": f"task {n}"}) for n in range(shape.sessions // GROUP))
    return {"metadata": {"name": f"{shape.name}-tasks"}, "data": {"tasks.jsonl": "\n".join(lines)}}


def manifest(shape: Shape) -> Json:
    """Agents that would exit by themselves, rewarded for it."""
    agent = {"name": "agent", "image": "agent:1", "command": ["agent"]}
    return {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": shape.name},
        "spec": {
            "model": {"name": MODEL, "tokenizer": "tiny", "maxModelLen": 4096},
            "engine": {"endpoints": [f"http://{ENGINE}:{PORT}"]},
            "gateway": {"replicas": shape.gateways},
            "tasks": {"configMap": {"name": f"{shape.name}-tasks", "key": "tasks.jsonl"}},
            "groupSize": GROUP,
            "parallelism": shape.parallelism,
            "agent": {"template": {"spec": {"containers": [agent]}}},
            "reward": {"source": "exitCode"},
        },
    }


def path(plural: str, name: str = "", *, group: str = "api/v1") -> str:
    """In the namespace of jobs."""
    return f"/{group}/namespaces/{SPACE}/{plural}" + (f"/{name}" if name else "")
