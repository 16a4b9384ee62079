"""A control plane on this host with nodes and pods that kwok plays: thousands of pods, and nothing runs in them.

etcd, API server, controller manager and scheduler are real. A pod is Running as soon as it is bound to a node, and
Succeeded PLAYED_S later. Pods have no network: gateways are processes of this host (world.py).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import crds
from tests.cluster.harness.api import Api, api_of, free_ports
from tests.cluster.harness.control import Control, Place
from tests.cluster.harness.needs import why_no_api_server
from tests.cluster.harness.process import spawn
from tests.cluster.harness.programs import binary

Json = dict[str, Any]

NODES = 10
PODS_PER_NODE = 1000
PLAYED_S = 1.0
"""How long a pod runs; up to twice as long, by chance."""
QPS = 1000
"""Of controllers and scheduler, which bind each pod: their own limits are not what is measured."""
ROLE = '.metadata.labels.["sandgate.dev/role"]'
WORKERS = (
    "podPlayStageParallelism",
    "nodePlayStageParallelism",
    "nodeLeaseParallelism",
    "podsOnNodeSyncParallelism",
)
"""Of kwok; there are no defaults."""
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
CLIENTS = {
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "kwok": "/O=system:masters/CN=kwok",
}

_UP = """
{{ $now := Now }}
phase: Running
conditions:
- type: Ready
  status: "True"
  reason: Played
  message: ""
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
"""
_STARTED = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""
_ENDED = """
{{ $now := Now }}
{{ $begun := .status.startTime }}
phase: Succeeded
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: false
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $begun | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
"""


class HostControl(Control):
    """Several on one host, and as quick as the host is."""

    def _start(self, component: str, *flags: str, env: Mapping[str, str] | None = None) -> None:
        more: tuple[str, ...] = ()
        if component in ("kube-controller-manager", "kube-scheduler"):
            more = ("--secure-port=0", f"--kube-api-qps={QPS}", f"--kube-api-burst={2 * QPS}")
        super()._start(component, *flags, *more, env=env)


def why_no_plane() -> str:
    """Empty: it can be had here."""
    return why_no_api_server()


@contextmanager
def plane() -> Iterator[tuple[Api, Control]]:
    """Ready, with our definitions and nodes. Everything dies with this process, however it ends."""
    with tempfile.TemporaryDirectory(prefix="sandgate-scale-") as name:
        api_port, etcd, peer = free_ports(3)
        place = Place("127.0.0.1", api_port, etcd, peer, prefix=("setpriv", "--pdeathsig", "KILL", "--"))
        control = HostControl(Path(name), place)
        url = f"https://127.0.0.1:{api_port}"
        control.make_files([], url)
        for user, subject in CLIENTS.items():
            control.pki.cert(user, subject)
            control.pki.kubeconfig(user, url, control.folder / f"{user}.kubeconfig")
        try:
            control.start_etcd()
            control.start_apiserver()
            control.start_controllers()
            control.start_scheduler()
            api = api_of(control)
            crds.install(api)
            start_kwok(api, control)
            yield api, control
        finally:
            control.stop()


def start_kwok(api: Api, control: Control) -> None:
    """Nodes, and who plays them."""
    config = control.folder / "kwok.json"
    options = {"manageAllNodes": True, "nodeLeaseDurationSeconds": 40, **dict.fromkeys(WORKERS, 16)}
    parts = [
        {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options},
        *stages(),
    ]
    config.write_text("\n---\n".join(json.dumps(part) for part in parts))
    argv = [
        *control.place.prefix,
        str(binary("kwok")),
        f"--config={config}",
        f"--kubeconfig={control.folder / 'kwok.kubeconfig'}",
    ]
    control.ledger.add("kwok", spawn(argv, control.folder / "log" / "kwok.log"))
    for number in range(NODES):
        api.rest().create("/api/v1/nodes", node(f"node-{number}"))
    control.wait(
        lambda: all(map(schedulable, api.rest().get("/api/v1/nodes")["items"])), "pods may land on nodes"
    )


def node(name: str) -> Json:
    room = {"cpu": "1000", "memory": "4Ti", "ephemeral-storage": "4Ti", "pods": str(PODS_PER_NODE)}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room},
    }


def schedulable(body: Mapping[str, Any]) -> bool:
    """Nodes are born with a taint, which goes when they are seen to be ready."""
    return not body["spec"].get("taints")


def stages() -> list[Json]:
    """What becomes of nodes and pods."""
    stays = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    return [
        stage("node-up", "Node", [where(".status.phase", "NotIn", "Running")], _UP),
        stage("pod-starts", "Pod", [stays, where(".status.phase", "In", "Pending")], _STARTED),
        stage(
            "pod-ends",
            "Pod",
            [stays, where(".status.phase", "In", "Running"), where(ROLE, "In", "agent", "verifier")],
            _ENDED,
            delay={
                "durationMilliseconds": int(1000 * PLAYED_S),
                "jitterDurationMilliseconds": int(2000 * PLAYED_S),
            },
        ),
        stage(  # a pod that ended goes without its node
            "pod-goes",
            "Pod",
            [stays | {"operator": "Exists"}, where(".status.phase", "In", "Pending", "Running")],
            "",
            delete=True,
        ),
    ]


def where(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


def stage(name: str, kind: str, selector: list[Json], status: str, **more: Any) -> Json:
    then = {"delete": True} if more.pop("delete", False) else {"statusTemplate": status}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": selector},
            "next": then,
            **more,
        },
    }
