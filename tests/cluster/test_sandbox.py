"""Sandboxes on real nodes: the fetcher in front of them, the wall around them, what they find in their files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.labels import GATEWAY, labels
from sandgate.contract.names import gateway_name, gateways_name
from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.manifests.policies import sandbox_policies
from sandgate.operator.manifests.sandbox_pods import FETCHER, PodDefaults, agent_pod, verifier_pod
from sandgate.operator.observed.pod_record import PodSeen, pod_seen
from sandgate.operator.settings import Settings
from tests.cluster import pods
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import PYTHON
from tests.images.ours import build, tag
from tests.operator.sandbox_pods import MAIN, job
from tests.support.waiting import until_now

Json = dict[str, Any]
LOOK = PodDefaults(fetcher_image=tag("fetcher"), pull_policy="Never")
TASK = {"uid": "q1", "prompt": "buy 7 kiwi", "data": {"n": 7}, "sample_index": 2}
GATEWAY_PROGRAM = f"""
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        key = self.headers.get("Authorization") in ("Bearer the-agent-key", "Bearer the-task-key")
        found = self.path == "/healthz" or (self.path.endswith("/task") and key)
        body = b'''{json.dumps(TASK)}'''
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 8000), Answer).serve_forever()
"""
"""Of a gateway what the fetcher uses."""
TELLS = """
import json, os, socket
def reach(host, port):
    try:
        socket.create_connection((host, int(port)), 1).close()
        return True
    except OSError:
        return False
env = os.environ
told = {
    "gateway": reach(GATEWAY, 8000),
    "api": reach(env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]),
    "neighbour": reach(NEIGHBOUR, 8000),
    "token": os.path.exists("/var/run/secrets/kubernetes.io"),
    "user": os.getuid(),
    "keys": sorted(name for name in env if name.endswith("_KEY")),
}
for name in ("TASK", "RESULT"):
    path = env.get(f"SANDGATE_{name}_FILE")
    if path:
        told[name.lower()] = json.load(open(path))
        told["writable"] = os.access(path, os.W_OK) or os.access("/sandgate", os.W_OK)
open("/dev/termination-log", "w").write(json.dumps({"reward": 1, "reward_info": told}))
"""
"""An agent that tells what it sees of the world."""


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[str]:
    """A gateway with its name and service, a neighbour, and the keys of sessions a, b and c."""
    cluster.load_image(build("fetcher"))
    with cluster.namespace("sandboxes") as name:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": gateways_name("shop"), "namespace": name},
            "spec": {"clusterIP": "None", "selector": labels("shop", GATEWAY), "ports": [{"port": 8000}]},
        }
        entries = {f"{one}.api": "the-agent-key" for one in "abc"}
        entries |= {f"{one}.reward": "the-reward-key" for one in "abc"}
        entries |= {f"{one}.task": "the-task-key" for one in "abc"}
        meta = {"name": "keys", "namespace": name}
        keys = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": entries}
        cluster.apply(service, keys)
        serves = {"command": ["python3", "-c", GATEWAY_PROGRAM]}
        place = {"hostname": gateway_name("shop", 0), "subdomain": gateways_name("shop")}
        marks = labels("shop", GATEWAY)
        gateway = pods.server(gateway_name("shop", 0), labels=marks, container=serves, **place)
        pods.start(cluster, name, gateway, pods.server("neighbour"))
        for one in (gateway_name("shop", 0), "neighbour"):
            pods.running(cluster, name, one)
        yield name


def of_job(cluster: Cluster, space: str, *changes: tuple[str, Any]) -> RolloutJob:
    """Its agent and its verifier tell what they see."""
    neighbour = pods.look(cluster, space, "neighbour")["status"]["podIP"]
    names = f"GATEWAY = {host(space)!r}\nNEIGHBOUR = {neighbour!r}\n"
    tells = {
        "name": "agent",
        "image": PYTHON,
        "imagePullPolicy": "Never",
        "workingDir": ".",
        "command": ["python3", "-c", names + TELLS],
        "securityContext": {"runAsUser": 1000},
    }
    return job(
        ("metadata.namespace", space),
        (MAIN, tells),
        ("spec.reward.verifier.container", {**tells, "name": "verifier"}),
        *changes,
    )


def host(space: str) -> str:
    return f"{gateway_name('shop', 0)}.{gateways_name('shop')}.{space}.svc.cluster.local"


def start(cluster: Cluster, of: RolloutJob, make: Callable[..., Json], session: str, **more: Any) -> str:
    """The pod's name."""
    space = of.metadata.namespace
    body = make(
        of,
        session=session,
        group="g",
        namespace=space,
        owner={},
        handle=SessionUrls.of(f"http://{host(space)}:8000", session),
        keys_secret="keys",
        task=Task(uid="q1", prompt="buy 7 kiwi", data={"n": 7}),
        sample_index=2,
        look=LOOK,
        **more,
    )
    pods.start(cluster, space, ownerless(body))
    name: str = body["metadata"]["name"]
    return name


def ownerless(body: Json) -> Json:
    """There is no job and no session here, and the cluster collects what belongs to nobody."""
    del body["metadata"]["ownerReferences"]
    return body


def over(cluster: Cluster, space: str, name: str) -> PodSeen:
    """Once it has ended."""
    last: list[PodSeen] = []

    def ended() -> bool:
        last.append(pod_seen(pods.look(cluster, space, name), time.time(), last[-1] if last else None))
        return last[-1].running.exit is not None

    until_now(ended, what=f"{name} ends", within_s=90)
    return last[-1]


def test_without_a_policy_no_agent_starts(cluster: Cluster, space: str) -> None:
    name = start(cluster, of_job(cluster, space), agent_pod, "a")
    seen = over(cluster, space, name)
    assert seen.running.exit is not None
    assert seen.running.started_at is None
    assert seen.running.exit.reason is FailureReason.START_FAILED
    assert "NetworkPolicyNotEnforced" in seen.running.exit.detail
    assert "no NetworkPolicy is enforced here" in seen.running.exit.detail


def test_behind_the_wall_an_agent_sees_its_gateway_and_nothing_else(cluster: Cluster, space: str) -> None:
    of = of_job(cluster, space, ("spec.agent.taskDelivery", "File"))
    cluster.apply(*map(ownerless, sandbox_policies(of, Settings())))
    name = start(cluster, of, agent_pod, "b")
    end = over(cluster, space, name).running.exit
    assert end is not None
    assert (end.code, end.reason) == (0, None), end
    assert end.message.reward_info == {
        "gateway": True,
        "api": False,
        "neighbour": False,
        "token": False,
        "user": 1000,
        "keys": ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"],
        "task": TASK,
        "writable": False,
    }
    log = cluster.kubectl("-n", space, "logs", name, "-c", FETCHER)
    assert "the wall is up" in log
    assert "the-agent-key" not in log


def test_a_verifier_finds_task_and_result_and_only_the_reward_key(cluster: Cluster, space: str) -> None:
    result = b'{"exit_code": 0, "message": "$(HOME) $$ \\u00e9"}'
    name = start(cluster, of_job(cluster, space), verifier_pod, "c", result=result)
    end = over(cluster, space, name).running.exit
    assert end is not None
    assert (end.code, end.reason) == (0, None), end
    told = end.message.reward_info
    assert (told["task"], told["result"]) == (TASK, json.loads(result))
    assert told["keys"] == ["SANDGATE_REWARD_KEY"]
    assert told["writable"] is False
