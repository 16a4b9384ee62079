"""What a round of chaos runs: a scripted engine as pods, a job that uses it, a trainer that takes all."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.contract.trajectory import Trajectory
from sandgate.operator.manifests.policies import CLOSED
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import cluster_fleet
from tests.chart.released import everything
from tests.cluster.e2e.chaos.witness import testify
from tests.cluster.e2e.world import World, image, shop_job, tokenizer_files, wait_for

log = logging.getLogger(__name__)

NAME = "chaos"
TASKS, SAMPLES, PARALLELISM = int(os.environ.get("SANDGATE_CHAOS_TASKS", "10")), 4, 8
"""`make chaos` has ten tasks. Each sample is two pods, and two cores are slow at making pods."""
RETRIES = 16
"""Of infra failures of one sample: a blow costs one attempt, or two where what is broken stays so for a while."""
ENGINE = {"app": "chaos-engine"}
SCRIPTED = {"kind": "vllm", "selector": {"matchLabels": ENGINE}}
ENGINES = 2
GATEWAYS = 2
DONE_S = 240.0
"""Of a whole round; without a blow a job takes a minute."""
HERE = Path(__file__).parent
MOUNT = "/chaos"
PROGRAMS = {"name": "programs", "mountPath": MOUNT, "readOnly": True}
SOON = [
    {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 3,
    }
    for taint in ("unreachable", "not-ready")
]
"""The engine moves from a dead node as fast as sandboxes do."""


def programs() -> dict[str, Any]:
    """Agent and engine as a ConfigMap."""
    data = {name: (HERE / name).read_text("utf-8") for name in ("agent.py", "engine.py")}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "data": data}


def engine_pods(book: Path) -> dict[str, Any]:
    """A Deployment that is not the job's: found by its labels, as an engine that serves several jobs is."""
    container = {
        "name": "engine",
        "image": image("gateway"),
        "imagePullPolicy": "Never",
        "command": ["python", f"{MOUNT}/engine.py", "/models/model", "/book"],
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
        "volumeMounts": [
            PROGRAMS,
            {"name": "model", "mountPath": "/models/model", "readOnly": True},
            {"name": "book", "mountPath": "/book"},
        ],
    }
    volumes = [
        {"name": "programs", "configMap": {"name": "programs"}},
        {"name": "model", "configMap": {"name": "shop-tokenizer"}},
        {"name": "book", "hostPath": {"path": str(book), "type": "Directory"}},
    ]
    pod = {
        "containers": [container],
        "volumes": volumes,
        "tolerations": SOON,
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": ENGINE},
            }
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chaos-engine"},
        "spec": {
            "replicas": ENGINES,
            "selector": {"matchLabels": ENGINE},
            "template": {"metadata": {"labels": ENGINE}, "spec": pod},
        },
    }


def chaos_job(engine: dict[str, Any]) -> dict[str, Any]:
    """Sessions of some five seconds, eight at once."""
    program = {"image": image("shop"), "imagePullPolicy": "IfNotPresent", "volumeMounts": [PROGRAMS]}
    agent = {"name": "agent", "command": ["python", f"{MOUNT}/agent.py"], **program}
    verifier = {"name": "verifier", "command": ["python", f"{MOUNT}/agent.py", "verify"], **program}
    volumes = [{"name": "programs", "configMap": {"name": "programs"}}]
    job = shop_job(
        NAME,
        engine=engine,
        tasks={"inline": [{"uid": f"task-{n}", "prompt": f"speak, {n}"} for n in range(TASKS)]},
        groupSize=SAMPLES,
        parallelism=PARALLELISM,
        agent={"template": {"spec": {"containers": [agent], "volumes": volumes}}},
        reward={"source": "verifier", "verifier": {"container": verifier}},
        group={"retry": {"infra": RETRIES}},
    )
    job["spec"]["gateway"]["replicas"] = GATEWAYS
    return job


@dataclass
class Round:
    """One job, from its start to its deletion."""

    world: World
    namespace: str
    book: Path
    """Folder where engines write down what they are asked."""
    rows: list[Trajectory] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    """As the trainer was given them."""

    def asked(self) -> list[dict[str, Any]]:
        """What engines were asked for, so far."""
        lines = [line for file in sorted(self.book.iterdir()) for line in file.read_bytes().splitlines(True)]
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def begin(self, engine: dict[str, Any] | None = None) -> None:
        """Everything applied; gateways are ready and an engine answers: the job's own, or the scripted one."""
        bodies = [tokenizer_files(), programs(), chaos_job(engine or SCRIPTED)]
        if engine is None:
            bodies.insert(2, engine_pods(self.book))
        cluster = self.world.cluster
        for body in bodies:
            cluster.kubectl("apply", "-n", self.namespace, "-f", "-", stdin=json.dumps(body))
        wait_for(self.world, self.namespace, NAME, "Ready")

    async def train(self) -> None:
        """Take and acknowledge groups until there are as many as tasks. Starts anew where nothing answers: as a trainer
        that a machine room restarts."""
        place = ClusterPlace(namespace=self.namespace, kubeconfig=str(self.world.cluster.kubeconfig))
        while len(set(self.groups)) < TASKS:
            try:
                async with cluster_fleet(NAME, place) as fleet, fleet.beating():
                    async for group in fleet.groups(idle_s=DONE_S):
                        async with group:
                            rows = group.trajectories
                        self.rows += rows  # acknowledged: never offered again
                        self.groups.append(group.uid)
                        if len(self.groups) >= TASKS:
                            break
            except SandgateError as error:
                log.warning("trainer: %s", error)

    def done(self) -> dict[str, Any]:
        """The job's object, Complete."""
        return wait_for(self.world, self.namespace, NAME, "Complete", within_s=DONE_S)

    def objects(self) -> set[tuple[str, str, str]]:
        """Of every kind in the namespace, and those of no namespace."""
        found = everything(self.world.cluster)
        return {one for one in found if one[1] in ("", self.namespace) and one[2] != CLOSED}

    def delete(self) -> None:
        """The job; what it owns goes with it."""
        self.world.cluster.kubectl(
            "delete", "rolloutjob", NAME, "-n", self.namespace, "--wait=true", "--timeout=60s"
        )


@contextmanager
def round_of(world: World, book: Path) -> Iterator[Round]:
    """In a namespace of its own. When it fails, the error says what is known of its sessions."""
    book.mkdir()
    book.chmod(0o777)  # engines run as nobody
    with world.cluster.namespace("chaos", security="privileged") as namespace:
        try:
            yield Round(world, namespace, book)
        except Exception as error:
            error.add_note(testify(world, namespace, NAME, book.with_name("seen")))
            raise
