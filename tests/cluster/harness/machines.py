"""The machines of a whole cluster and the power over them: a control plane and its nodes, all in namespaces.

Of three, n1 carries the cluster's DNS and is left alone by tests; n2 is the one to break; n3 has two (pretended) GPUs.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.cluster.harness import forward, local_path, network, volumes
from tests.cluster.harness.api import Api, api_of
from tests.cluster.harness.control import Control, Place
from tests.cluster.harness.flavour import flavour
from tests.cluster.harness.images import COREDNS_IMAGE, PAUSE_IMAGE, PYTHON_IMAGE, image
from tests.cluster.harness.network import CONTROL, CONTROL_IP, Wire, wire_of
from tests.cluster.harness.node import Node, remove_cgroups
from tests.cluster.harness.packages import install_packages
from tests.cluster.harness.process import Proc, kill, spawn
from tests.cluster.harness.programs import PARTS, binary
from tests.cluster.harness.rest import Refused, Rest

STATE = flavour.state
"""Disks, logs and notes of the one cluster of its flavour that a machine can run."""
NODES = flavour.nodes
DISKS = 12 << 30
"""Of three nodes, at most: images of all tests in both releases, each on every node, packed and unpacked."""
MEMORY_NEEDED = 16 << 30
"""Available before disks are made of memory."""
DNS_NODE = NODES[0]
GPU_NODE = "n3"
GPUS = 2
HOST = "host"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane="
API_PORT = 6443
ETCD_PORT = 2379
DNS = Path(__file__).with_name("dns.yaml")
PROGRAMS = ("kubebox", "pause", "netpol", "containerd", "coredns")
CLIENTS = {
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "netpol": "/O=system:nodes/O=system:masters/CN=netpol",  # of the nodes' group, so its reading is not audited
}


class Machines:
    """All state is in files below STATE: any Python of this machine may go on with a cluster that runs."""

    def __init__(self) -> None:
        place = Place(CONTROL_IP, API_PORT, ETCD_PORT, 2380, prefix=tuple(network.enter(CONTROL)))
        self.control = Control(STATE, place, kept=True)
        self.ledger = self.control.ledger
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(NODES, 1):
            gpus = GPUS if name == GPU_NODE else 0
            wire = wire_of(name, number)
            self.nodes[name] = Node(STATE / "nodes" / name, wire, self.ledger, STATE / "pki", gpus)

    @property
    def api(self) -> Api:
        """As administrator, from the host."""
        return api_of(self.control)

    # -- life ----------------------------------------------------------------------------------------------------------

    def up(self, *, in_memory: bool = False) -> None:
        """Everything, in under twenty seconds from warm caches. Clears what an earlier run left.

        `in_memory`: disks too, where the machine has enough: half a million small files come and go at once.
        """
        prepare()
        self.down()
        STATE.mkdir(mode=0o700)
        if in_memory and memory_available() > MEMORY_NEEDED:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={DISKS},mode=700", "sandgate", STATE], check=True
            )
        network.create([Wire(CONTROL, CONTROL_IP), *(node.wire for node in self.nodes.values())])
        self._make_files()
        everywhere = [image(PAUSE_IMAGE), image(PYTHON_IMAGE)]
        with ThreadPoolExecutor(len(NODES)) as pool:  # machines boot while the API server starts
            more = {DNS_NODE: [image(COREDNS_IMAGE)]}
            boots = [
                pool.submit(node.boot, more.get(name, []) + everywhere) for name, node in self.nodes.items()
            ]
            self.control.start_etcd()
            self.control.start_apiserver()
            self.control.start_controllers()
            self.control.start_scheduler()
            rest = self.api.rest()
            self._offer_volumes(rest)
            dns = DNS.read_text("utf-8").replace(
                "kubernetes.io/hostname: n1", f"kubernetes.io/hostname: {DNS_NODE}"
            )
            self.api.kubectl("apply", "-f", "-", stdin=dns)
            for boot, node in zip(boots, self.nodes.values(), strict=True):
                boot.result()
                node.join()
        for name in self.nodes:
            self.wait_ready(name)
            if flavour.control_plane_runs_pods:
                self.api.kubectl("label", "node", name, CONTROL_PLANE)
        self.control.wait(self._names_are_answered, "DNS runs")

    def down(self) -> None:
        """End our processes and leave nothing: also after a run that was killed in the middle."""
        self.ledger.kill()
        kill([found for pid in network.inhabitants() if (found := Proc.of(pid)) is not None])
        network.remove()
        remove_cgroups()
        if STATE.is_mount():
            subprocess.run(["umount", "--lazy", STATE], check=True)
        shutil.rmtree(STATE, ignore_errors=True)
        assert not STATE.exists(), f"{STATE} cannot be removed"

    def healthy(self) -> bool:
        """Whether it can be used as it is."""
        if not (STATE / "admin.kubeconfig").exists() or not all(node.running for node in self.nodes.values()):
            return False
        return self.api.rest().answers() and all(self.ready(name) for name in self.nodes)

    def alive(self) -> bool:
        """Whether anything of it runs: nothing does after the session that started it was ended, or a reboot."""
        return any(process.alive() for process in self.ledger.all())

    # -- break and mend ------------------------------------------------------------------------------------------------

    def cut_power(self, name: str) -> None:
        """Of a node: everything on it ends at once; its disk stays. The API server notices 20 s later."""
        self.nodes[name].cut_power()

    def start(self, name: str) -> None:
        """A node without power; returns when it is Ready again."""
        self.nodes[name].boot()
        self.nodes[name].join()
        self.wait_ready(name)

    @contextmanager
    def powerless(self, name: str) -> Iterator[None]:
        """A power cut, and the power back however the block ends."""
        self.cut_power(name)
        try:
            yield
        finally:
            if not self.nodes[name].running:
                self.start(name)

    @contextmanager
    def unplugged(self, name: str) -> Iterator[None]:
        """A node (or `cp`) whose network cable is pulled; what runs on it runs on."""
        network.plug(name, connected=False)
        try:
            yield
        finally:
            network.plug(name, connected=True)
            if name in self.nodes and self.nodes[name].running:
                self.wait_ready(name)

    def kill(self, component: str) -> None:
        """SIGKILL to etcd, kube-apiserver, kube-controller-manager or kube-scheduler; `restart` brings it back."""
        self.control.stop(component)

    def restart(self, component: str) -> None:
        """Start one that was killed; etcd and the API server are waited for."""
        starts = {
            "etcd": self.control.start_etcd,
            "kube-apiserver": self.control.start_apiserver,
            "kube-controller-manager": self.control.start_controllers,
            "kube-scheduler": self.control.start_scheduler,
        }
        starts[component]()
        # One object is read from etcd; /readyz alone may still tell of a moment ago.
        for path in ("/readyz", "/api/v1/namespaces/kube-system"):
            self.control.wait(partial(self.api.rest().answers, path), f"the API server answers {path}")

    def compact_etcd(self) -> int:
        """Forget all history: whoever asks etcd for changes since an older revision is told that it is gone (410).

        The API server answers recent watches from its own memory; restart it to make it ask. Gives the revision.
        """
        with self.forward("127.0.0.1", ETCD_PORT) as port:
            anything = {"key": base64.b64encode(b"/").decode()}
            revision = int(etcd(port, "range", anything)["header"]["revision"])
            etcd(port, "compaction", {"revision": revision, "physical": True})
        return revision

    # -- reach ---------------------------------------------------------------------------------------------------------

    def run(self, *argv: str, where: str = CONTROL, check: bool = True) -> str:
        """A command of the host in a machine's network: pods are reached by address there. What it printed.

        `cp` is the control plane; policies count as for any stranger. A node, though, always reaches its own pods.
        `host` is where this runs.
        """
        inside = [] if where == HOST else network.enter(where)
        done = subprocess.run([*inside, *argv], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
        return done.stdout

    @contextmanager
    def forward(self, host: str, port: int, *, via: str = CONTROL) -> Iterator[int]:
        """A port of 127.0.0.1 here that leads to an address as machine `via` sees it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = self._forward(listener, network.namespace(via), host, port)
            found: int = listener.getsockname()[1]
        try:
            yield found
        finally:
            kill([process])

    @contextmanager
    def expose(self, port: int) -> Iterator[str]:
        """`address:port` by which pods reach a port of 127.0.0.1 here."""
        with network.socket_in(CONTROL, (CONTROL_IP, 0)) as listener:
            process = self._forward(listener, Path("/proc/self/ns/net"), "127.0.0.1", port)
            found = f"{CONTROL_IP}:{listener.getsockname()[1]}"
        try:
            yield found
        finally:
            kill([process])

    # -- see -----------------------------------------------------------------------------------------------------------

    def ready(self, name: str) -> bool:
        """Whether the API server holds a node for Ready (up to 20 s after it is no more)."""
        with suppress(Refused):
            conditions = self.api.rest().get(f"/api/v1/nodes/{name}")["status"].get("conditions", [])
            return any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
        return False

    def wait_ready(self, name: str) -> None:
        """Until a node is, and heard so from a kubelet of this life."""
        self.control.wait(lambda: self.ready(name) and self._kubelet_answers(name), f"node {name} is Ready")

    def _kubelet_answers(self, name: str) -> bool:
        return self.api.rest().answers(f"/api/v1/nodes/{name}/proxy/healthz")

    def _names_are_answered(self) -> bool:
        status = self.api.rest().get("/apis/apps/v1/namespaces/kube-system/deployments/coredns")["status"]
        return bool(status.get("availableReplicas"))

    def _offer_volumes(self, rest: Rest) -> None:
        if not flavour.provisions:
            volumes.create(rest, {name: node.folder / "volumes" for name, node in self.nodes.items()})
            return
        command = local_path.create(rest, STATE / "volumes", STATE / "local-path")
        argv = [str(binary("local-path-provisioner")), *command, f"--kubeconfig={self.control.kubeconfig}"]
        env = {**os.environ, "CONFIG_MOUNT_PATH": str(STATE / "local-path")}
        self.ledger.add("local-path", spawn(argv, STATE / "log" / "local-path.log", env=env))

    def _make_files(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            self.control.make_files([f"IP:{CONTROL_IP}"], url)
            process = self._forward(listener, network.namespace(CONTROL), "127.0.0.1", API_PORT)
            self.ledger.add("forward-api", process)
        inside = f"https://{CONTROL_IP}:{API_PORT}"
        pki = self.control.pki
        for user, subject in CLIENTS.items():
            pki.cert(user, subject)
            pki.kubeconfig(user, inside, STATE / f"{user}.kubeconfig")
        for name, node in self.nodes.items():
            server = [f"DNS:{name}", f"IP:{node.wire.ip}"]
            pki.cert(f"node-{name}", f"/O=system:nodes/CN=system:node:{name}", server=server)
            node.folder.mkdir(parents=True)
            pki.kubeconfig(f"node-{name}", inside, node.folder / "kubeconfig")
            for user in ("proxy", "netpol"):
                shutil.copy(STATE / f"{user}.kubeconfig", node.folder)

    def _forward(self, listener: socket.socket, there: Path, host: str, port: int) -> Proc:
        argv = [sys.executable, "-I", forward.__file__, str(there), host, str(port)]
        return spawn(argv, STATE / "log" / "forward.log", stdin=listener.fileno())


def etcd(port: int, method: str, body: dict[str, Any]) -> dict[str, Any]:
    """A call of etcd's JSON interface."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", f"/v3/kv/{method}", json.dumps(body))
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, f"etcd {method}: {said.decode('utf-8', 'replace')}"
    found: dict[str, Any] = json.loads(said)
    return found


def memory_available() -> int:
    """Of this machine, in bytes."""
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def prepare() -> None:
    """Packages, programs and images, made where they are missing: minutes once, then nothing."""
    install_packages()
    for name in PROGRAMS:
        PARTS[name].ensure()
    for part in (PAUSE_IMAGE, COREDNS_IMAGE, PYTHON_IMAGE):
        part.ensure()
