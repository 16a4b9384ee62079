"""The wires of a cluster: network namespaces on a bridge in one of them. The host's own network is not touched.

A node's namespace stays through power cuts, like the socket in the wall.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.flavour import flavour
from tests.cluster.harness.forward import join

NAMESPACES = Path("/run/netns")
PREFIX = flavour.prefix
FABRIC = "net"
CONTROL = "cp"
CONTROL_IP = "10.231.0.10"
BRIDGE = "br0"
NAME_MAX = 15
"""Of a network interface, in Linux."""
FORWARD = "net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0".split()


@dataclass(frozen=True)
class Wire:
    """One machine's place in the network. `pods`: the prefix of its pods, empty for the control plane."""

    name: str
    ip: str
    pods: str = ""


def wire_of(node: str, number: int) -> Wire:
    """Of the node with a number from 1."""
    return Wire(node, f"10.231.0.{10 + number}", f"10.232.{number}.0/24")


def namespace(name: str) -> Path:
    """The file of a network namespace; `cp`, `n1`, ..."""
    return NAMESPACES / f"{PREFIX}{name}"


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def enter(name: str) -> list[str]:
    """The command that goes into a namespace and execs the rest.

    Not `ip netns exec`: that mounts another /sys, and cgroups are gone.
    """
    return ["nsenter", f"--net={namespace(name)}", "--"]


def create(wires: Sequence[Wire]) -> None:
    """All namespaces, cables and routes."""
    for name in (FABRIC, *(wire.name for wire in wires)):
        ip("netns", "add", f"{PREFIX}{name}")
        ip("-n", f"{PREFIX}{name}", "link", "set", "lo", "up")
    ip("-n", f"{PREFIX}{FABRIC}", "link", "add", BRIDGE, "type", "bridge")
    ip("-n", f"{PREFIX}{FABRIC}", "link", "set", BRIDGE, "up")
    for wire in wires:
        attach(wire)
    for wire in wires:
        for other in wires:
            if other.pods and other is not wire:
                ip("-n", f"{PREFIX}{wire.name}", "route", "add", other.pods, "via", other.ip)


def attach(wire: Wire) -> None:
    there, fabric = f"{PREFIX}{wire.name}", f"{PREFIX}{FABRIC}"
    # Made inside the fabric: nothing ever appears in the host's namespace.
    ip("-n", fabric, "link", "add", cable(wire.name), "type", "veth", "peer", "name", "eth0", "netns", there)
    ip("-n", fabric, "link", "set", cable(wire.name), "master", BRIDGE, "up")
    ip("-n", there, "addr", "add", f"{wire.ip}/24", "dev", "eth0")
    ip("-n", there, "link", "set", "eth0", "up")
    # Nobody is at this address; the kubelet and others only insist on a default route.
    ip("-n", there, "route", "add", "default", "via", "10.231.0.1")
    subprocess.run([*enter(wire.name), "sysctl", "-qw", *FORWARD], check=True, capture_output=True)


def cable(name: str) -> str:
    """The fabric's end of a machine's cable."""
    return f"v-{name}"[:NAME_MAX]


def plug(name: str, *, connected: bool) -> None:
    """Pull the cable of a machine, or put it back."""
    ip("-n", f"{PREFIX}{FABRIC}", "link", "set", cable(name), "up" if connected else "down")


def forget_pods(name: str) -> None:
    """What a machine without power has no more: its ends of pods' cables. The kernel takes them away when it gets round
    to it, and with them the routes that new pods of the same addresses have by then."""
    listed = subprocess.run(
        ["ip", "-n", f"{PREFIX}{name}", "-o", "link", "show", "type", "veth"],
        check=True,
        capture_output=True,
        text=True,
    )
    for line in listed.stdout.splitlines():
        link = line.split(":")[1].strip().partition("@")[0]
        if link != "eth0":
            with suppress(subprocess.CalledProcessError):  # gone by itself
                ip("-n", f"{PREFIX}{name}", "link", "del", link)


def ours() -> list[Path]:
    """The namespaces that exist, of this or of an earlier run."""
    return sorted(NAMESPACES.glob(f"{PREFIX}*"))


def inhabitants() -> Iterator[int]:
    """Processes in our namespaces: of a cluster, whatever became of whoever started it."""
    inodes = set()
    for path in ours():
        with suppress(FileNotFoundError):
            inodes.add(path.stat().st_ino)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it ended while we looked
                if (entry / "ns" / "net").stat().st_ino in inodes:
                    yield int(entry.name)


def remove() -> None:
    """All of them. Interfaces go with their namespaces."""
    for path in ours():
        ip("netns", "del", path.name)


def socket_in(name: str, address: tuple[str, int]) -> socket.socket:
    """A socket that listens in a namespace, for use from here."""
    made: list[socket.socket] = []

    def make() -> None:
        join(str(namespace(name)))
        made.append(socket.create_server(address))

    thread = threading.Thread(target=make)  # only this thread moves, and it ends
    thread.start()
    thread.join()
    assert made, f"nothing can listen at {address} in {name}"
    return made[0]
