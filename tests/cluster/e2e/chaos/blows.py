"""What is done to a cluster in the middle of a job. A blow tells people what it did; all is mended when it returns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.cluster.e2e.chaos.job import ENGINE, Round
from tests.cluster.e2e.world import SYSTEM
from tests.cluster.harness import network
from tests.cluster.harness.machines import Machines
from tests.support.waiting import lasts, until_now

Pod = dict[str, Any]
Blow = Callable[[Round, random.Random], str]
VICTIM = "n2"
NODE_AWAY_S = (25.0, 45.0)
"""20 s until it is noticed, some more until its pods are given up; a reboot takes that long, too."""
API_AWAY_S = (0.0, 8.0)
AGENTS = "sandgate.dev/role=agent"
FORCE = ("--grace-period=0", "--force")
APPEARS_S = 150.0
"""After several deaths of the API server the scheduler's own watches wait for up to a minute before they try again."""


def machines(at: Round) -> Machines:
    return at.world.cluster.machines


def kill_pod(at: Round, namespace: str, pod: Pod, chance: random.Random) -> str:
    """One of three ways in which a pod dies."""
    name = pod["metadata"]["name"]
    way = chance.choice(("SIGKILL", "deleted at once", "deleted"))
    if way == "SIGKILL":
        kill_containers(at, pod)
    else:
        force = FORCE if way == "deleted at once" else ()
        at.world.cluster.kubectl("delete", "pod", name, "-n", namespace, "--wait=false", *force)
    return f"{name} on {pod['spec'].get('nodeName')}: {way}"


def kill_containers(at: Round, pod: Pod) -> None:
    """As the pod is now: its status is behind where the last blow was a moment ago, and then the next life is hit."""
    meta = pod["metadata"]

    def hit() -> bool:
        now = at.world.get("pod", meta["namespace"], meta["name"])
        node = machines(at).nodes[now["spec"]["nodeName"]]
        containers = [one for one in now["status"].get("containerStatuses", ()) if "running" in one["state"]]
        return any(node.kill_container(one["containerID"]) for one in containers)

    until_now(hit, what=f"a container of {meta['name']} runs", within_s=APPEARS_S)


def running(at: Round, labels: str) -> list[Pod]:
    """Of the job's namespace; waits until there is one."""
    found: list[Pod] = []

    def some() -> bool:
        found[:] = running_now(at, labels)
        return bool(found)

    until_now(some, what=f"a pod {labels} runs", within_s=APPEARS_S)
    return found


def running_now(at: Round, labels: str) -> list[Pod]:
    pods = at.world.list("pods", at.namespace, labels)
    return [
        one
        for one in pods
        if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
    ]


def operator(at: Round, chance: random.Random) -> str:
    """Both replicas at once: nobody is there to take over, nor to see that an agent's pod goes, whose program runs on
    for its grace."""
    pods = at.world.operators()
    agents = running_now(at, AGENTS)
    for one in pods:
        kill_containers(at, one)
    told = " and ".join(one["metadata"]["name"] for one in pods) + ": SIGKILL"
    if agents:
        name = youngest(agents, chance)["metadata"]["name"]
        delete(at, name, FORCE)
        told += f"; {name}: deleted at once"
    return told


def leader(at: Round, chance: random.Random) -> str:
    found: list[Pod] = []

    def leads() -> bool:
        """The Lease is held by a pod that is there: after a blow it may be a dead one's for a while."""
        name = at.world.leader()
        found[:] = [one for one in at.world.operators() if one["metadata"]["name"] == name]
        return bool(found)

    until_now(leads, what="an operator leads", within_s=APPEARS_S)
    return kill_pod(at, SYSTEM, found[0], chance)


def gateway(at: Round, chance: random.Random) -> str:
    pods = sorted(running(at, "sandgate.dev/role=gateway"), key=lambda one: str(one["metadata"]["name"]))
    return kill_pod(at, at.namespace, chance.choice(pods), chance)


def agent(at: Round, chance: random.Random) -> str:
    """A pod that is deleted: drained, preempted, cleaned away. (A killed process may be the program's own doing.)"""
    pod = youngest(running(at, AGENTS), chance)
    name = pod["metadata"]["name"]
    force = chance.choice(((), FORCE))
    delete(at, name, force)
    return f"{name} on {pod['spec']['nodeName']}: deleted{' at once' if force else ''}"


def youngest(pods: list[Pod], chance: random.Random) -> Pod:
    """One of the younger half: the older ones may have ended before they are hit."""
    pods = sorted(pods, key=lambda one: str(one["status"]["startTime"]))
    return chance.choice(pods[len(pods) // 2 :])


def delete(at: Round, name: str, force: tuple[str, ...]) -> None:
    at.world.cluster.kubectl("delete", "pod", name, "-n", at.namespace, "--wait=false", *force)


def node(at: Round, chance: random.Random) -> str:
    """Kubelet and containerd end and the cable is pulled, while containers run on; then it is rebooted."""
    there = machines(at)
    victims = [one["metadata"]["name"] for one in on_node(at, VICTIM)]
    network.plug(VICTIM, connected=False)
    try:
        there.nodes[VICTIM].kill("kubelet")
        there.nodes[VICTIM].kill("containerd")
        away = chance.uniform(*NODE_AWAY_S)
        lasts(away)
    finally:
        there.cut_power(VICTIM)
        network.plug(VICTIM, connected=True)
        there.start(VICTIM)
    return f"{VICTIM} for {away:.0f} s, with {', '.join(victims) or 'nothing'}"


def on_node(at: Round, name: str) -> list[Pod]:
    """Pods of the job and of the operator."""
    pods = [*at.world.list("pods", at.namespace), *at.world.operators()]
    return [one for one in pods if one["spec"].get("nodeName") == name]


def engine(at: Round, chance: random.Random) -> str:
    labels = ",".join(f"{name}={value}" for name, value in ENGINE.items())
    return kill_pod(at, at.namespace, chance.choice(running(at, labels)), chance)


def own_engine(at: Round, chance: random.Random) -> str:
    """The job's."""
    return kill_pod(at, at.namespace, chance.choice(running(at, "sandgate.dev/role=engine")), chance)


def etcd(at: Round, chance: random.Random) -> str:
    return restart(at, "etcd", chance)


def apiserver(at: Round, chance: random.Random) -> str:
    return restart(at, "kube-apiserver", chance)


def restart(at: Round, component: str, chance: random.Random) -> str:
    away = chance.uniform(*API_AWAY_S)
    machines(at).kill(component)
    try:
        lasts(away)
    finally:
        machines(at).restart(component)
    return f"{component} for {away:.1f} s"


BLOWS: dict[str, Blow] = {
    "operator": operator,
    "leader": leader,
    "gateway": gateway,
    "agent": agent,
    "node": node,
    "engine": engine,
    "etcd": etcd,
    "apiserver": apiserver,
}
