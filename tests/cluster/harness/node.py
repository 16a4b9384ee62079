"""A worker node: a little machine of namespaces with containerd, kubelet, kube-proxy and the policy engine inside.

It ends with its process number 1, as a machine ends when its plug is pulled: kubelet, containerd, containers and mounts
are gone at once, and what was on its disk is still there when it starts again.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.harness.config import conflist, containerd_toml, kube_proxy, kubelet
from tests.cluster.harness.flavour import flavour
from tests.cluster.harness.network import Wire, enter, forget_pods
from tests.cluster.harness.process import Ledger, Proc, kill, spawn
from tests.cluster.harness.programs import binary
from tests.support.waiting import until_now

CGROUPS = Path("/sys/fs/cgroup")
QUEUE = 100
"""Number of the netfilter queue in which the policy engine finds first packets."""
BOOTS_WITHIN_S = 60.0

INIT = """
mount --make-rshared /
# Fixed paths that two nodes would share: /run/netns, the NRI socket, /var/log/containers, device-plugins.
for folder in /run /var/log /var/lib; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/netns /run/lock
hostname "$1"
exec "$2"
"""


class Node:
    """`folder` is its disk."""

    def __init__(self, folder: Path, wire: Wire, ledger: Ledger, pki: Path, gpus: int = 0) -> None:
        self.folder = folder
        self.wire = wire
        self.name = wire.name
        self.ledger = ledger
        self.pki = pki
        self.gpus = gpus

    @property
    def running(self) -> bool:
        """Whether it has power."""
        init = self.ledger.get(f"init-{self.name}")
        return init is not None and init.alive()

    def boot(self, images: Sequence[Path] = ()) -> None:
        """Power on, up to the container runtime: what needs no API server."""
        assert not self.running, f"node {self.name} runs already"
        for name in ("cni", "log", "kubelet", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._write_config()
        make_cgroups(self.name)
        self._boot()
        if flavour.policies:
            self._guard_door()
        env = {**os.environ, "PATH": f"{binary('containerd').parent}:{os.environ['PATH']}"}
        self._start("containerd", f"--config={self.folder / 'containerd.toml'}", env=env)
        self.wait(lambda: self._succeeds(*self._ctr("version")), "containerd answers")
        for archive in images:
            self.load_image(archive)

    def join(self) -> None:
        """Start what makes it a node. The API server says when it is Ready."""
        self._start(
            "kubelet",
            f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--config={self.folder / 'kubelet.json'}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet' / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.wire.ip}",
        )
        self._start("kube-proxy", f"--config={self.folder / 'kube-proxy.json'}")
        if flavour.policies:
            self.start_netpol()
        if self.gpus:
            self.start_gpus()

    def start_netpol(self) -> None:
        """The policy engine. While it is not there, no new connection of a pod gets through."""
        flags = {
            "node": self.name,
            "pods": self.wire.pods,
            "kubeconfig": str(self.folder / "netpol.kubeconfig"),
        }
        flags["queue"] = str(QUEUE)
        self._start("netpol", *(f"-{name}={value}" for name, value in flags.items()))

    def start_gpus(self) -> None:
        """The device plugin; the kubelet forgets its devices when it ends."""
        self._start("fake-gpu-plugin", str(self.gpus))

    def cut_power(self) -> None:
        """At once, and everything on it."""
        if found := [p for role in ("init", "power") if (p := self.ledger.get(f"{role}-{self.name}"))]:
            kill(found)
        forget_pods(self.name)

    def kill(self, program: str) -> None:
        """SIGKILL to one daemon of the node: containerd, kubelet, kube-proxy, netpol, fake-gpu-plugin."""
        self.ledger.kill(f"{program}-{self.name}")

    def kill_container(self, container: str) -> bool:
        """SIGKILL to process 1 of a container, by `containerID` as in a pod's status. False: it had ended by itself."""
        name = container.removeprefix("containerd://")
        return self._succeeds(*self._ctr("tasks", "kill", "-s", "SIGKILL", name))

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command inside; what it printed."""
        done = subprocess.run([*self.enter(), *argv], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{' '.join(argv)} on {self.name}: {done.stderr.strip()}"
        return done.stdout

    def enter(self) -> list[str]:
        """The command that goes inside and runs the rest there."""
        init = self.ledger.get(f"init-{self.name}")
        assert init is not None, f"node {self.name} was never started"
        assert init.alive(), f"node {self.name} has no power"
        return ["nsenter", "-t", str(init.pid), "-n", "-m", "-p", "-u", "-i", "--"]

    def load_image(self, archive: Path) -> None:
        """Import an archive, unless that was the last of its image; pods that name the image need imagePullPolicy
        Never or IfNotPresent. Another content has another file name, see images.build_image."""
        known = self.folder / "loaded" / archive.parent.name
        if known.exists() and known.read_text() == archive.name:
            return
        self.run(*self._ctr("images", "import", str(archive)))
        known.parent.mkdir(exist_ok=True)
        known.write_text(archive.name)

    def wait(self, condition: Any, what: str) -> None:
        until_now(
            condition, what=f"{what} on {self.name} (logs: {self.folder / 'logs'})", within_s=BOOTS_WITHIN_S
        )

    def _ctr(self, *args: str) -> list[str]:
        return [str(binary("ctr")), "-a", str(self.folder / "containerd.sock"), "-n", "k8s.io", *args]

    def _succeeds(self, *argv: str) -> bool:
        return subprocess.run([*self.enter(), *argv], capture_output=True, check=False).returncode == 0

    def _boot(self) -> None:
        unshare = [
            "unshare",
            "--mount",
            "--propagation=slave",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        command = [*unshare, "--uts", "--ipc", "sh", "-ec", INIT, "sh", self.name, str(binary("pause"))]
        power = spawn([*enter(self.name), *command], self.folder / "logs" / "init.log")
        self.ledger.add(f"power-{self.name}", power)
        pause = binary("pause").resolve()

        def init() -> Proc | None:
            for line in Path(f"/proc/{power.pid}/task/{power.pid}/children").read_text("utf-8").split():
                with suppress(OSError):
                    if Path(f"/proc/{line}/exe").resolve() == pause:
                        return Proc.of(int(line))
            return None

        self.wait(lambda: init() is not None, "process 1 runs")
        found = init()
        assert found is not None
        self.ledger.add(f"init-{self.name}", found)

    def _guard_door(self) -> None:
        """First packets from and to pods wait for the policy engine; nobody there to judge them means no."""
        rules = [
            ["FORWARD", "-m", "conntrack", "--ctstate", "NEW"],
            ["INPUT", "-s", self.wire.pods, "-m", "conntrack", "--ctstate", "NEW"],
        ]
        for rule in rules:
            rule += ["-j", "NFQUEUE", "--queue-num", str(QUEUE)]
            if not self._succeeds("iptables", "-C", *rule):  # rules stay through power cuts
                self.run("iptables", "-A", *rule)

    def _write_config(self) -> None:
        folder = self.folder
        (folder / "resolv.conf").write_text(
            "nameserver 127.0.0.1\n"
        )  # of pods with dnsPolicy Default: nobody answers
        (folder / "containerd.toml").write_text(containerd_toml(folder))
        (folder / "cni" / "10-sandgate.conflist").write_text(json.dumps(conflist(self.wire)))
        (folder / "kubelet.json").write_text(json.dumps(kubelet(self.wire, folder, self.pki)))
        (folder / "kube-proxy.json").write_text(json.dumps(kube_proxy(self.wire, folder)))

    def _start(self, program: str, *flags: str, env: Mapping[str, str] | None = None) -> None:
        """Inside. The process that is noted is the daemon itself, as the host sees it."""
        wrapper = spawn(
            [*self.enter(), str(binary(program)), *flags], self.folder / "logs" / f"{program}.log", env=env
        )
        # nsenter into a PID namespace forks: the daemon is its child.
        children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children")
        self.wait(lambda: bool(children.read_text("utf-8").split()), f"{program} starts")
        daemon = Proc.of(int(children.read_text("utf-8").split()[0]))
        assert daemon is not None, f"{program} ended at once; see {self.folder / 'logs'}"
        self.ledger.add(f"{program}-{self.name}", daemon)


def hierarchies() -> list[Path]:
    """Roots of cgroups: one of version 2, or one for each controller of version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def make_cgroups(node: str) -> None:
    """Where a node's pods are counted and limited."""
    for root in hierarchies():
        folder = root / f"{flavour.prefix}{node}"
        folder.mkdir(exist_ok=True)
        if root.name == "cpuset":  # a new one is empty, and nothing can join it
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((root / name).read_text("utf-8"))


def remove_cgroups() -> None:
    """Of all nodes whose processes have ended; the kernel may need a moment for the last of them."""
    tops = [folder for root in hierarchies() for folder in root.glob(f"{flavour.prefix}*")]
    inner = [path for top in tops for path in top.rglob("*") if path.is_dir()]
    for folder in sorted([*tops, *inner], reverse=True):  # the innermost first
        until_now(partial(removed, folder), what=f"{folder} is empty")


def removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
