"""What tests break comes back: power, cables, control plane. And breaks as the real thing does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import pods
from tests.cluster.harness.cluster import Cluster
from tests.support.waiting import until_now

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

NOTICED_S = 60.0
"""A silent node is NotReady after 20 s; a busy machine is later."""


def seen_as(cluster: Cluster, node: str, status: str) -> None:
    """Wait until a node's Ready condition is so."""
    path = f"/api/v1/nodes/{node}"
    until_now(
        lambda: ("Ready", status) in pods.conditions(cluster.rest().get(path)),
        what=f"node {node} is seen as {status}",
        within_s=NOTICED_S,
    )


def unreachable(seconds: int) -> dict[str, Any]:
    return {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": seconds,
    }


def test_a_node_without_power_loses_its_pods_and_comes_back_with_its_disk(cluster: Cluster) -> None:
    machines = cluster.machines
    with cluster.namespace("power") as space:
        leaves = pods.pod("leaves", nodeName="n2", tolerations=[unreachable(1)])
        stays = pods.pod("stays", nodeName="n2", tolerations=[unreachable(300)])
        stays["spec"]["restartPolicy"] = "Always"
        pods.start(cluster, space, leaves, stays)
        for name in ("leaves", "stays"):
            pods.running(cluster, space, name)
        with machines.powerless("n2"):
            assert not machines.nodes["n2"].running
            seen_as(cluster, "n2", "Unknown")
            told = pods.wait(
                cluster,
                space,
                "leaves",
                lambda p: "deletionTimestamp" in p["metadata"],
                "is to go",
                NOTICED_S,
            )
            reason = {c["reason"] for c in told["status"]["conditions"] if c["type"] == "DisruptionTarget"}
            assert reason == {"DeletionByTaintManager"}
            assert told["status"]["phase"] == "Running"  # nobody is there to say otherwise
        until_now(
            lambda: pods.gone(cluster, space, "leaves"), what="the node ends the pod", within_s=NOTICED_S
        )
        # Nothing was imported again: the image is on the disk.
        again = pods.wait(
            cluster,
            space,
            "stays",
            lambda p: (
                p["status"]["containerStatuses"][0]["restartCount"] == 1
                and ("Ready", "True") in pods.conditions(p)
            ),
            "runs again",
        )
        assert again["spec"]["nodeName"] == "n2"


def test_behind_a_pulled_cable_pods_run_on(cluster: Cluster) -> None:
    with cluster.namespace("cable") as space:
        pods.start(cluster, space, pods.pod("p", nodeName="n2", tolerations=[unreachable(300)]))
        before = pods.running(cluster, space, "p")["status"]["containerStatuses"][0]["containerID"]
        with cluster.machines.unplugged("n2"):
            seen_as(cluster, "n2", "Unknown")
        after = pods.running(cluster, space, "p")["status"]["containerStatuses"][0]
        assert (after["containerID"], after["restartCount"]) == (before, 0)


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
def test_what_was_answered_survives_the_death_of(cluster: Cluster, component: str) -> None:
    machines = cluster.machines
    with cluster.namespace("killed") as space:
        place = f"/api/v1/namespaces/{space}/configmaps"
        cluster.rest().create(place, {"metadata": {"name": "kept"}})
        machines.kill(component)
        try:
            until_now(
                lambda: not cluster.rest().answers("/readyz"),
                what=f"{component} is missed",
                within_s=NOTICED_S,
            )
        finally:
            machines.restart(component)
        assert cluster.rest().get(f"{place}/kept")["metadata"]["name"] == "kept"


def test_what_ends_by_itself_is_started_again(cluster: Cluster) -> None:
    keeper = cluster.machines.control.ledger.get("kube-scheduler")
    assert keeper is not None
    kept = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
    (first,) = kept.read_text().split()
    os.kill(int(first), signal.SIGKILL)

    def others() -> bool:
        found = kept.read_text().split()
        try:
            return found != [first] and "kube-scheduler" in Path(f"/proc/{found[0]}/cmdline").read_text()
        except (IndexError, OSError):  # none, or it has just ended
            return False

    until_now(others, what="another scheduler runs", within_s=NOTICED_S)
    with cluster.namespace("kept") as space:
        pods.start(cluster, space, pods.pod("p"))
        pods.running(cluster, space, "p")


def test_history_that_was_compacted_is_gone_for_watchers(cluster: Cluster) -> None:
    machines = cluster.machines
    with cluster.namespace("history") as space:
        place = f"/api/v1/namespaces/{space}/configmaps"
        old = cluster.rest().create(place, {"metadata": {"name": "c"}})["metadata"]["resourceVersion"]
        for count in range(3):
            cluster.rest().merge(f"{place}/c", {"data": {"n": str(count)}})
        watch = f"{place}?watch=1&timeoutSeconds=1&resourceVersion={old}"
        assert '"code":410' not in cluster.rest().text("GET", watch)
        assert machines.compact_etcd() >= int(old)
        machines.kill("kube-apiserver")
        machines.restart("kube-apiserver")
        assert '"code":410' in cluster.rest().text("GET", watch)


def test_gpus_go_with_their_plugin_and_return_with_it(cluster: Cluster) -> None:
    node = cluster.machines.nodes["n3"]

    def count() -> str:
        found: str = cluster.rest().get("/api/v1/nodes/n3")["status"]["allocatable"]["nvidia.com/gpu"]
        return found

    node.kill("fake-gpu-plugin")
    until_now(lambda: count() == "0", what="GPUs are gone", within_s=NOTICED_S)
    node.start_gpus()
    until_now(lambda: count() == str(node.gpus), what="GPUs are back", within_s=NOTICED_S)
