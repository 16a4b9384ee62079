"""What reaches what on real nodes: of three jobs in two namespaces, nobody but whom the policies name.

Agents and verifiers try every door and tell what they found. That a door stays shut for them proves a wall because it
opens for somebody: a pod without policies, the job's own gateway, a labelled trainer try the same ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import pytest_asyncio

from sandgate.contract.names import engines_name, gateway_name, gateways_name
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import cluster_fleet
from tests.cluster import pods
from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import World, wait_for
from tests.cluster.harness.cluster import Cluster
from tests.support.waiting import until_now

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

Json = dict[str, Any]
Found = dict[str, str]
"""Door -> what knocking at it gave."""
OPEN, DROPPED = "open", "dropped"
KNOCK = """
import concurrent.futures, json, os, socket, time

def find(host, port):
    "Names of pods that start come a little later."
    for _ in range(60):
        try:
            return socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4]
        except OSError:
            time.sleep(0.5)

def knock(door):
    host, _, port = door.rpartition(":")
    if host == "kubernetes":
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    address = find(host, port)
    if address is None:
        return "no such name"
    for patience in (2, 4):
        try:
            socket.create_connection(address, patience).close()
            return "open"
        except TimeoutError:
            pass
        except OSError as error:
            return type(error).__name__
    return "dropped"

def knock_all(doors):
    with concurrent.futures.ThreadPoolExecutor(len(doors)) as pool:
        return dict(zip(doors, pool.map(knock, doors.values())))
"""
"""`dropped` is a wall; ConnectionRefusedError would be a host that was reached."""
AGENT = """
if os.environ["SANDGATE_PROMPT"] != "task 0":
    time.sleep(600)  # engines stay while a session of their job runs
assert say("hello") == "receipt 42"
leave(reward_info=knock_all(DOORS))
"""
VERIFIER = """
agent = json.load(open(os.environ["SANDGATE_RESULT_FILE"]))["message"]["reward_info"]
with open("/dev/termination-log", "w") as log:
    json.dump({"reward": 1, "reward_info": {"agent": agent, "verifier": knock_all(DOORS)}}, log)
"""


@dataclass(frozen=True)
class Job:
    name: str
    namespace: str

    @property
    def gateway(self) -> str:
        return (
            f"{gateway_name(self.name, 0)}.{gateways_name(self.name)}.{self.namespace}.svc.cluster.local:8000"
        )

    @property
    def engine(self) -> str:
        return f"{engines_name(self.name)}.{self.namespace}.svc.cluster.local:8000"


@dataclass
class Street:
    """Three jobs whose sessions are over, and pods that live beside them."""

    world: World
    one: Job
    two: Job
    far: Job
    doors: dict[str, str]
    """Door -> host:port, the same for all."""
    told: dict[str, dict[str, Found]]
    """Job -> role -> what it found."""

    @property
    def jobs(self) -> tuple[Job, Job, Job]:
        return self.one, self.two, self.far

    def knock(self, namespace: str, pod: str) -> Found:
        """From a pod that runs, whatever it is."""
        program = f"{KNOCK}\nprint(json.dumps(knock_all({self.doors!r})))"
        said = self.world.cluster.kubectl("-n", namespace, "exec", pod, "--", "python3", "-c", program)
        found: Found = json.loads(said)
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def street(world: World) -> AsyncIterator[Street]:
    cluster = world.cluster
    with (
        cluster.namespace("walls") as near,
        cluster.namespace("walls-far") as away,
        internet(cluster) as outside,
    ):
        jobs = Job("one", near), Job("two", near), Job("far", away)
        labelled = {"sandgate.dev/trainer": "true"}
        for namespace in (near, away):
            scripted.prepare(world, namespace)
            bystanders = pods.server("stranger"), pods.pod("trainer", pods.IDLE, labels=labelled)
            pods.start(cluster, namespace, *bystanders)
        neighbour = pods.running(cluster, near, "stranger")["status"]["podIP"]
        doors = {f"{job.name}'s gateway": job.gateway for job in jobs}
        doors |= {f"{job.name}'s engine": job.engine for job in jobs}
        doors |= {"stranger": f"{neighbour}:8000", **of_cluster(cluster), **outside}
        for job in jobs:
            scripted.submit(world, job.namespace, manifest(job, doors))
        told = {job.name: await findings(world, job) for job in jobs}
        for namespace in (near, away):
            pods.running(cluster, namespace, "trainer")
        yield Street(world, *jobs, doors, told)


def of_cluster(cluster: Cluster) -> dict[str, str]:
    """The API server by its service and by its own address; all kubelets."""
    rest = cluster.rest()
    (subset,) = rest.get("/api/v1/namespaces/default/endpoints/kubernetes")["subsets"]
    doors = {
        "API service": "kubernetes:",
        "API server": f"{subset['addresses'][0]['ip']}:{subset['ports'][0]['port']}",
    }
    for node in rest.get("/api/v1/nodes")["items"]:
        (ip,) = (one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP")
        doors[f"kubelet of {node['metadata']['name']}"] = f"{ip}:10250"
    return doors


@contextmanager
def internet(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A web server that is neither pod nor node."""
    if cluster.owned is None:
        yield {}
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with cluster.owned.expose(server.server_port) as address:
                yield {"internet": address}
        finally:
            server.shutdown()
            thread.join()


def manifest(job: Job, doors: Mapping[str, str]) -> Json:
    """One session that is judged by a verifier, both knock everywhere; and one that only stays."""
    head = f"{KNOCK}\nDOORS = {doors!r}\n"
    verifier = {"source": "verifier", "verifier": {"container": scripted.python("verifier", head + VERIFIER)}}
    return scripted.job(job.name, head + AGENT, tasks=2, reward=verifier)


async def findings(world: World, job: Job) -> dict[str, Found]:
    """Of agent and verifier, by way of the trainer."""
    wait_for(world, job.namespace, job.name, "Ready")
    place = ClusterPlace(namespace=job.namespace, kubeconfig=str(world.cluster.kubeconfig))
    async with cluster_fleet(job.name, place) as fleet:
        async for group in fleet.groups(idle_s=120.0):
            async with group:
                (row,) = group.trajectories
                assert (row.failure_reason, row.reward) == (None, 1.0), row.reward_info
                found: dict[str, Found] = dict(row.reward_info)
                return found
    raise AssertionError(f"{job.name} gave nothing")


def all_but(street: Street, *doors: str) -> Found:
    """Only these are open."""
    assert set(doors) <= set(street.doors)
    return {door: OPEN if door in doors else DROPPED for door in street.doors}


@pytest.mark.parametrize("role", ["agent", "verifier"])
@pytest.mark.parametrize("name", ["one", "two", "far"])
def test_a_sandbox_reaches_its_own_gateway_and_nothing_else(street: Street, name: str, role: str) -> None:
    assert street.told[name][role] == all_but(street, f"{name}'s gateway")


def test_a_stranger_reaches_neither_gateway_nor_engine(street: Street) -> None:
    """All the rest is open to it: the walls of the sandboxes are policies, not luck."""
    theirs = [f"{job.name}'s {what}" for job in street.jobs for what in ("gateway", "engine")]
    for job in (street.one, street.far):
        everything_else = all_but(street, *(door for door in street.doors if door not in theirs))
        assert street.knock(job.namespace, "stranger") == everything_else


def test_a_trainer_is_known_by_its_label_and_reaches_gateways_and_engines_of_its_own_namespace(
    street: Street,
) -> None:
    """Anybody who makes pods somewhere sets a label on them."""
    for job in (street.one, street.far):
        others = [other.name for other in street.jobs if other.namespace != job.namespace]
        closed = {f"{name}'s {what}" for name in others for what in ("gateway", "engine")}
        found = street.knock(job.namespace, "trainer")
        assert found == all_but(street, *(door for door in street.doors if door not in closed))


STUBBORN = """
import signal, urllib.request
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def heard():
    try:
        urllib.request.urlopen("http://%s:8000/from-the-agent", timeout=0.5).close()
        return True
    except OSError:
        return False

assert say("hello") == "receipt 42"
assert not heard()
print("stubborn", flush=True)
while True:
    heard()
"""


def test_a_job_that_is_deleted_opens_no_wall_to_an_agent_that_does_not_end(world: World) -> None:
    cluster = world.cluster
    with cluster.namespace("walls-end") as namespace:
        scripted.prepare(world, namespace)
        pods.start(cluster, namespace, pods.server("stranger"), pods.pod("bystander"))
        address = pods.running(cluster, namespace, "stranger")["status"]["podIP"]
        job = scripted.job("stubborn", STUBBORN % address)
        job["spec"]["agent"]["template"]["spec"]["terminationGracePeriodSeconds"] = 15
        scripted.submit(world, namespace, job)

        def agents() -> list[str]:
            return [
                one["metadata"]["name"]
                for one in world.list("pods", namespace)
                if one["metadata"]["labels"].get("sandgate.dev/role") == "agent"
            ]

        def stands() -> bool:
            return any("stubborn" in world.cluster.kubectl("-n", namespace, "logs", name, check=False)
                       for name in agents())  # fmt: skip

        until_now(stands, what="the agent dials", within_s=90)
        pods.running(cluster, namespace, "bystander")
        pods.fetch(cluster, namespace, "bystander", f"http://{address}:8000/from-a-bystander")
        cluster.kubectl("-n", namespace, "delete", "rolloutjob", "stubborn", "--wait=true")
        until_now(lambda: not agents(), what="the agent is gone", within_s=90)
        requests = cluster.kubectl("-n", namespace, "logs", "stranger")
        assert "/from-a-bystander" in requests, "who has no wall is heard"
        assert "/from-the-agent" not in requests


@pytest.mark.parametrize("name", ["one", "two", "far"])
def test_an_engine_is_reached_by_its_own_gateway_which_reaches_nothing_else(
    street: Street, name: str
) -> None:
    job = next(one for one in street.jobs if one.name == name)
    itself = f"{name}'s gateway"  # no policy stands between a pod and its own address
    assert street.knock(job.namespace, gateway_name(name, 0)) == all_but(street, f"{name}'s engine", itself)
