"""The cluster that tests get behaves as Kubernetes does, where Sandgate counts on it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster import pods
from tests.cluster.harness import volumes
from tests.cluster.harness.cluster import Cluster
from tests.support.waiting import until_now

DNS_ONLY = {
    "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
}
RACER = """
import socket, time
out, end = 0, time.monotonic() + 3
while time.monotonic() < end:
    try:
        socket.create_connection(("%s", 8000), 0.1).close()
        out += 1
    except OSError:
        pass
print(out)
"""


def service(name: str, **spec: Any) -> dict[str, Any]:
    ports = [{"port": 8000}]
    fields = {"selector": {"app": name}, "ports": ports, **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": fields}


def policy(name: str, app: str, *egress: dict[str, Any]) -> dict[str, Any]:
    spec = {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Egress"], "egress": list(egress)}
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def reaches(cluster: Cluster, space: str, name: str, url: str, answer: str) -> None:
    """Wait until a pod gets this answer."""
    until_now(
        lambda: pods.fetch(cluster, space, name, url) == answer,
        what=f"{name} gets {answer} from {url}",
        within_s=60,
    )


def times_out(cluster: Cluster, space: str, name: str, url: str) -> None:
    """Wait until a pod gets nothing. Before its node knows the endpoints it is refused at once."""
    until_now(
        lambda: "timed out" in pods.fetch(cluster, space, name, url),
        what=f"{name} gets nothing from {url}",
        within_s=60,
    )


def test_pods_reach_each_other_by_name_across_nodes_and_themselves_by_service(cluster: Cluster) -> None:
    here, there = cluster.nodes[:2]
    with cluster.namespace("names") as space:
        cluster.kubectl("-n", space, "apply", "-f", "-", stdin=json.dumps(service("web")))
        pods.start(cluster, space, pods.server("web", nodeName=here), pods.pod("asks", nodeName=there))
        pods.running(cluster, space, "web")
        pods.running(cluster, space, "asks")
        for asking in ("asks", "web"):
            reaches(cluster, space, asking, "http://web:8000", "web")
        reaches(cluster, space, "asks", f"http://web.{space}.svc.cluster.local:8000", "web")


def test_exec_and_logs_tell_what_happens_inside(cluster: Cluster) -> None:
    with cluster.namespace("inside") as space:
        pods.start(cluster, space, pods.pod("talks", f"echo hello; {pods.IDLE}"))
        pods.running(cluster, space, "talks")
        until_now(lambda: cluster.kubectl("-n", space, "logs", "talks") == "hello\n", what="it has said so")
        assert cluster.kubectl("-n", space, "exec", "talks", "--", "id", "-u") == "65532\n"
        failed = cluster.kubectl("-n", space, "exec", "talks", "--", "sh", "-c", "exit 7", check=False)
        assert "exit code 7" in failed


@pytest.mark.parametrize(
    ("script", "limits", "end"),
    [
        pytest.param(
            'echo \'{"why": "done"}\' >/dev/termination-log; exit 3',
            {},
            (3, "Error", '{"why": "done"}\n'),
            id="the last word of a container is in its status",
        ),
        pytest.param(
            "exec python3 -c 'bytearray(200 << 20)'",
            {"memory": "64Mi"},
            (137, "OOMKilled", None),
            id="too much memory ends a container with 137",
        ),
    ],
)
def test_how_a_container_ended(
    cluster: Cluster, script: str, limits: dict[str, str], end: tuple[int, str, str | None]
) -> None:
    with cluster.namespace("ends") as space:
        pods.start(cluster, space, pods.pod("p", script, container={"resources": {"limits": limits}}))
        how = pods.ended(cluster, space, "p")
    assert (how["exitCode"], how["reason"], how.get("message")) == end


def test_a_container_that_is_killed_ends_with_137(cluster: Cluster) -> None:
    node = cluster.machines.nodes["n2"]
    with cluster.namespace("killed") as space:
        pods.start(cluster, space, pods.pod("p", nodeName="n2"))
        assert node.kill_container(
            pods.running(cluster, space, "p")["status"]["containerStatuses"][0]["containerID"]
        )
        how = pods.ended(cluster, space, "p")
    assert (how["exitCode"], how["reason"]) == (137, "Error")


@pytest.mark.chaos  # needs every GPU of the cluster
def test_gpus_are_given_out_and_run_out(cluster: Cluster) -> None:
    count = cluster.machines.nodes["n3"].gpus
    one = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    with cluster.namespace("gpus") as space:
        names = [f"gpu-{i}" for i in range(count)]
        pods.start(cluster, space, *(pods.pod(name, container=one) for name in names))
        placed = [pods.running(cluster, space, name)["spec"]["nodeName"] for name in names]
        assert placed == ["n3"] * count
        see = ("--", "printenv", "NVIDIA_VISIBLE_DEVICES")
        assert len({cluster.kubectl("-n", space, "exec", name, *see) for name in names}) == count
        pods.start(cluster, space, pods.pod("waits", container=one))
        told = pods.wait(
            cluster,
            space,
            "waits",
            lambda p: ("PodScheduled", "False") in pods.conditions(p),
            "waits for a GPU",
        )
        assert "Insufficient nvidia.com/gpu" in told["status"]["conditions"][0]["message"]


def test_a_claim_is_bound_where_its_pod_runs_and_the_volume_is_used_again(cluster: Cluster) -> None:
    machines = cluster.machines
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    mount: dict[str, Any] = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volume: dict[str, Any] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
    mine: dict[str, Any] = {
        "securityContext": {"fsGroup": 65532},
        "nodeSelector": {"kubernetes.io/hostname": "n2"},
    }
    with cluster.namespace("volumes") as space:
        cluster.rest().create(f"/api/v1/namespaces/{space}/persistentvolumeclaims", claim)
        pods.start(
            cluster, space, pods.pod("writes", "echo kept >/data/file", container=mount, **volume, **mine)
        )
        assert pods.ended(cluster, space, "writes")["exitCode"] == 0
        bound = cluster.rest().get(f"/api/v1/namespaces/{space}/persistentvolumeclaims/data")["spec"][
            "volumeName"
        ]
        assert bound.startswith("n2-")
    place = f"{volumes.PATH}/{bound}"
    until_now(
        lambda: cluster.rest().get(place)["status"]["phase"] == "Released",
        what="the claim is gone",
        within_s=60,
    )
    volumes.reclaim(cluster.rest())
    until_now(lambda: cluster.rest().get(place)["status"]["phase"] == "Available", what="the volume is free")
    folder = cluster.rest().get(place)["spec"]["local"]["path"]
    assert machines.run("ls", folder) == ""


def test_a_policy_is_in_force_from_a_pods_first_packet(cluster: Cluster) -> None:
    """Pods try to get out from their first instruction on, on every node; the same without the policy do get out."""
    with cluster.namespace("race") as space:
        pods.start(cluster, space, pods.server("web", nodeName="n1"))
        address = pods.running(cluster, space, "web")["status"]["podIP"]
        cluster.rest().create(
            f"/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies",
            policy("racers", "racer", DNS_ONLY),
        )
        script = f"exec python3 -c '{RACER.replace(chr(39), chr(34)) % address}'"
        nodes = [*cluster.nodes, *cluster.nodes]
        pods.start(cluster, space, pods.pod("free", script))
        held = [
            pods.pod(f"racer-{i}", script, labels={"app": "racer"}, nodeName=n) for i, n in enumerate(nodes)
        ]
        pods.start(cluster, space, *held)
        for body in held:
            name = body["metadata"]["name"]
            assert pods.ended(cluster, space, name)["exitCode"] == 0
            assert cluster.kubectl("-n", space, "logs", name) == "0\n", f"{name} got out"
        pods.ended(cluster, space, "free")
        assert int(cluster.kubectl("-n", space, "logs", "free")) > 0


def test_policies_select_by_label_allow_names_and_are_lifted(cluster: Cluster) -> None:
    to_good = {"to": [{"podSelector": {"matchLabels": {"app": "good"}}}], "ports": [{"port": 8000}]}
    policies = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
    with cluster.namespace("policy") as space:
        for name in ("good", "bad"):
            cluster.kubectl("-n", space, "apply", "-f", "-", stdin=json.dumps(service(name)))
        cluster.rest().create(policies.format(space), policy("held", "held", DNS_ONLY, to_good))
        serving = [pods.server(name, nodeName=cluster.nodes[0]) for name in ("good", "bad")]
        # One beside them, one on another node, and one that no policy names.
        asking = [
            pods.pod("near", labels={"app": "held"}, nodeName=cluster.nodes[0]),
            pods.pod("far", labels={"app": "held"}, nodeName=cluster.nodes[1]),
            pods.pod("free", nodeName=cluster.nodes[1]),
        ]
        pods.start(cluster, space, *serving, *asking)
        for body in (*serving, *asking):
            pods.running(cluster, space, body["metadata"]["name"])
        for name in ("near", "far", "free"):
            reaches(cluster, space, name, "http://good:8000", "good")
        reaches(cluster, space, "free", "http://bad:8000", "bad")  # else a node refuses for want of endpoints
        for name in ("near", "far"):
            times_out(cluster, space, name, "http://bad:8000")
            assert "timed out" in pods.fetch(cluster, space, name, "https://kubernetes.default.svc")
        reaches(cluster, space, "free", "http://bad:8000", "bad")
        cluster.rest().call("DELETE", f"{policies.format(space)}/held")
        reaches(cluster, space, "far", "http://bad:8000", "bad")  # lifted


@pytest.mark.chaos
def test_without_the_policy_engine_no_pod_opens_a_connection(cluster: Cluster) -> None:
    node = cluster.machines.nodes["n2"]
    with cluster.namespace("closed") as space:
        pods.start(cluster, space, pods.server("web", nodeName="n1"), pods.pod("asks", nodeName="n2"))
        address = pods.running(cluster, space, "web")["status"]["podIP"]
        pods.running(cluster, space, "asks")
        url = f"http://{address}:8000"
        reaches(cluster, space, "asks", url, "web")
        node.kill("netpol")
        assert "timed out" in pods.fetch(cluster, space, "asks", url)
        node.start_netpol()
        reaches(cluster, space, "asks", url, "web")


def test_ports_lead_into_pods_and_back_to_this_machine(cluster: Cluster) -> None:
    machines = cluster.machines
    with cluster.namespace("ports") as space:
        pods.start(cluster, space, pods.server("web", nodeName="n2"))
        address = pods.running(cluster, space, "web")["status"]["podIP"]
        assert machines.run("curl", "-sSm3", f"http://{address}:8000").strip() == "web"
        with machines.forward(address, 8000, via="n2") as port:
            assert machines.run("curl", "-sSm30", f"http://127.0.0.1:{port}", where="host").strip() == "web"
            with machines.expose(port) as origin:
                reaches(cluster, space, "web", f"http://{origin}", "web")
