"""Sandgate in a cluster, from the chart, with images built from this clone; jobs to run in it.

The engine is a real vLLM: its 5 GB environment is mounted from this machine instead of pulled as an image.
"""

from __future__ import annotations

import base64
import copy
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from sandgate.contract.names import API_VERSION
from sandgate.operator.manifests.workload import API_VERSION as KUEUE_VERSION
from tests.chart.released import Release, can_be_deleted
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import PYTHON
from tests.cluster.harness.machines import GPU_NODE
from tests.cluster.harness.rest import Refused
from tests.images.ours import IMAGES, ROOT, build
from tests.support.waiting import until_now

SHOP = ROOT / "examples" / "shop"
SYSTEM = "sandgate-system"
REGISTRY, TAG = "localhost", "e2e"
"""Of our images: a node has them, nobody serves them."""
VALUES: dict[str, Any] = {
    "images": {
        "registry": REGISTRY,
        "pullPolicy": "Never",
        **{name: {"tag": TAG} for name in ("operator", "gateway", "fetcher")},
    },
    "kueue": {"enabled": True},
    # Two cores serve three nodes: asking for what production asks for would leave pods waiting.
    "operator": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
    "jobs": {
        "gateway": {
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
        },
        "sandbox": {"resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}, "unreachableSeconds": 5},
    },
}
SANDGATE = f"/apis/{API_VERSION}"
PATHS: dict[str, tuple[str, str]] = {
    "pod": ("/api/v1", "pods"),
    "pods": ("/api/v1", "pods"),
    "secrets": ("/api/v1", "secrets"),
    "leases": ("/apis/coordination.k8s.io/v1", "leases"),
    "rolloutjob": (SANDGATE, "rolloutjobs"),
    "ags": (SANDGATE, "agentsessions"),
    "agentsessions": (SANDGATE, "agentsessions"),
    "workloads.kueue.x-k8s.io": (f"/apis/{KUEUE_VERSION}", "workloads"),
}
"""Kind, as kubectl takes it -> the API group's path, and the plural."""
JOB_S = 240.0
"""A job of the shop: a vLLM on a shared core starts in 20-60 s, its sessions take seconds."""
READY_S = 120.0


def image(name: str) -> str:
    """One of ours, as pods name it; the shop's as its manifest does."""
    return "docker.io/library/sandgate-shop:latest" if name == "shop" else f"{REGISTRY}/sandgate-{name}:{TAG}"


def load_images(cluster: Cluster, *names: str) -> None:
    """Built when this clone changed, and into every node."""
    for name in names or tuple(IMAGES):
        cluster.load_image(build(name, image(name)))


@dataclass(frozen=True)
class World:
    """Sandgate runs in this cluster."""

    cluster: Cluster
    release: Release

    def operators(self) -> list[dict[str, Any]]:
        """The operator's pods that are not being deleted."""
        return [
            pod
            for pod in self.list("pods", SYSTEM, "app.kubernetes.io/name=sandgate-operator")
            if "deletionTimestamp" not in pod["metadata"]
        ]

    def leader(self) -> str:
        """Pod name of the replica that holds the Lease."""
        found = self.list("leases", SYSTEM)
        holders = [one["spec"].get("holderIdentity") or "" for one in found]
        assert len(holders) == 1, holders
        return str(holders[0]).split("_")[0]

    def list(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """As `kubectl get -o json` has them; kinds that are looked at all the time without a kubectl."""
        if kind in PATHS:
            every: list[dict[str, Any]] = self._read(kind, namespace, f"?labelSelector={quote(labels)}")[
                "items"
            ]
            return every
        selector = ("-l", labels) if labels else ()
        said = self.cluster.kubectl("get", kind, "-n", namespace, *selector, "-o", "json")
        found: list[dict[str, Any]] = json.loads(said)["items"]
        return found

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        if kind in PATHS:
            return self._read(kind, namespace, f"/{name}")
        found: dict[str, Any] = json.loads(
            self.cluster.kubectl("get", kind, name, "-n", namespace, "-o", "json")
        )
        return found

    def _read(self, kind: str, namespace: str, rest: str) -> dict[str, Any]:
        """Raises AssertionError, as kubectl's."""
        prefix, plural = PATHS[kind]
        path = f"{prefix}/namespaces/{namespace}/{plural}{rest}"
        try:
            return self.cluster.rest().get(path)
        except (Refused, OSError, HTTPException) as error:
            raise AssertionError(f"GET {path}: {error}") from error


@contextmanager
def installed(cluster: Cluster, values: Mapping[str, Any] | None = None) -> Iterator[World]:
    """The chart in its own namespace, ready; uninstalled afterwards."""
    load_images(cluster)
    drop_definitions(cluster)
    with system_namespace(cluster):
        release = Release(cluster, SYSTEM)
        release.install({**VALUES, **(values or {})})
        try:
            world = World(cluster, release)
            until_now(lambda: all_ready(world), what="the operator's replicas are ready", within_s=READY_S)
            yield world
        finally:
            release.uninstall()


def drop_definitions(cluster: Cluster) -> None:
    """Those that other tests applied: helm takes over only what is its own."""
    names = ("rolloutjobs.sandgate.dev", "agentsessions.sandgate.dev")
    can_be_deleted(cluster)
    cluster.kubectl("delete", "crd", *names, "--ignore-not-found", "--wait=true", "--timeout=60s")


def all_ready(world: World) -> bool:
    pods = world.operators()
    return len(pods) == 2 and all(is_ready(pod) for pod in pods)


def fresh_operators(world: World) -> None:
    """Ready, and none that was killed before: the kubelet would wait longer and longer with its next life."""
    for pod in world.operators():
        if any(one["restartCount"] for one in pod["status"].get("containerStatuses", ())):
            name = pod["metadata"]["name"]
            world.cluster.kubectl("delete", "pod", name, "-n", SYSTEM, "--grace-period=0", "--force")
    until_now(lambda: all_ready(world), what="fresh replicas of the operator are ready", within_s=READY_S)


def is_ready(pod: Mapping[str, Any]) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ())
    )


@contextmanager
def system_namespace(cluster: Cluster) -> Iterator[None]:
    """Made, and gone with all that is in it."""
    cluster.kubectl("create", "namespace", SYSTEM)
    cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield
    finally:
        cluster.kubectl("delete", "namespace", SYSTEM, "--wait=true", "--timeout=60s", check=False)


# -- jobs ------------------------------------------------------------------------------------------------------------


def tokenizer_files() -> dict[str, Any]:
    """What a gateway needs of the model, as a ConfigMap: everything but the weights."""
    files = {
        path.name: base64.b64encode(path.read_bytes()).decode()
        for path in sorted((SHOP / "model").iterdir())
        if path.suffix != ".safetensors"
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "shop-tokenizer"},
        "binaryData": files,
    }


def shop_job(name: str = "shop", **spec: Any) -> dict[str, Any]:
    """examples/shop/job.yaml, with other blocks of the spec; in a cluster at least the engine's."""
    body: dict[str, Any] = yaml.safe_load((SHOP / "job.yaml").read_text("utf-8"))
    body["metadata"]["name"] = name
    body["spec"] |= copy.deepcopy(spec)
    return body


def vllm_engine(gpus: int = 1) -> dict[str, Any]:
    """A managed vLLM on (pretended) GPUs: it computes on the CPU, in Debian's Python with this machine's packages."""
    venv = subprocess.run(
        [ROOT / "scripts" / "engine-env.sh"], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    job = yaml.safe_load((SHOP / "job.yaml").read_text("utf-8"))
    arguments = job["spec"]["engine"]["managed"]["args"]
    libnuma = Path("/usr/lib/x86_64-linux-gnu/libnuma.so.1").resolve()
    volumes = {
        "packages": (f"{venv}/lib/python3.11/site-packages", "/opt/vllm", "Directory"),
        "libnuma": (str(libnuma), "/usr/lib/x86_64-linux-gnu/libnuma.so.1", "File"),
        "model": (str(SHOP / "model"), "/models/model", "Directory"),
    }
    return {
        "kind": "vllm",
        "logprobsMode": "processed_logprobs",
        "managed": {
            "image": PYTHON,
            "replicas": 1,
            "gpus": gpus,
            "args": [*arguments, "--gpu-memory-utilization=0.05"],
            "env": {
                "PYTHONPATH": "/opt/vllm",
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "TORCHDYNAMO_DISABLE": "1",  # there is no C++ compiler in the image
            },
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "engine",
                            "imagePullPolicy": "Never",
                            "volumeMounts": [
                                {"name": name, "mountPath": there, "readOnly": True}
                                for name, (_, there, _) in volumes.items()
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": name, "hostPath": {"path": here, "type": kind}}
                        for name, (here, _, kind) in volumes.items()
                    ],
                }
            },
        },
    }  # fmt: skip


def conditions(body: Mapping[str, Any]) -> dict[str, str]:
    """Type -> status."""
    return {one["type"]: one["status"] for one in body.get("status", {}).get("conditions", ())}


def wait_for(
    world: World, namespace: str, name: str, condition: str, within_s: float = JOB_S
) -> dict[str, Any]:
    """The RolloutJob once a condition is True. Says where it stands when that does not happen."""
    last: dict[str, Any] = {}

    def there() -> bool:
        nonlocal last
        try:
            last = world.get("rolloutjob", namespace, name)
        except (
            Refused,
            AssertionError,
            subprocess.CalledProcessError,
        ):  # the API server may be what a test breaks
            return False
        return conditions(last).get(condition) == "True"

    try:
        until_now(there, what=f"{name} is {condition}", within_s=within_s)
    except AssertionError as error:
        pods = world.cluster.kubectl("get", "pods,ags", "-n", namespace, "-o", "wide", check=False)
        raise AssertionError(f"{error}\n{json.dumps(last.get('status'), indent=1)}\n{pods}") from None
    return last


GPU_MACHINE = GPU_NODE
TAINT = "nvidia.com/gpu=present:NoSchedule"


@contextmanager
def gpu_node_for_gpus(cluster: Cluster) -> Iterator[None]:
    """The node with GPUs takes only what tolerates its taint, as GPU pools do."""
    cluster.kubectl("taint", "node", GPU_MACHINE, TAINT, "--overwrite")
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", GPU_MACHINE, f"{TAINT}-", check=False)
