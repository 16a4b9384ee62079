"""The trainer's side of a job in a cluster: submit, looks, groups; from this machine, from a pod, through a crash."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate.contract.errors import InvalidBody, NotFound
from sandgate.contract.names import gateway_name
from sandgate.trainer.client.cluster import ClusterPlace, agent_session, job_gateways, rollout_job, submit
from sandgate.trainer.client.fleet import cluster_fleet
from tests.cluster import pods
from tests.cluster.e2e import scripted
from tests.cluster.e2e.trainer_pods import PAGE, TRAIN, log, prepare, program, trainer_pod
from tests.cluster.e2e.world import World, wait_for
from tests.support.waiting import until_now

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

Json = dict[str, Any]
SANDGATE = Path(sys.executable).with_name("sandgate")
TASKS, SAMPLES = 10, 2
SESSIONS = TASKS * SAMPLES
AGENT = """
answers = [say(f"{os.environ['SANDGATE_PROMPT']}, turn {turn}") for turn in range(2)]
leave(reward=0.5, reward_info={"answers": answers})
"""
LEASE_S = 5.0
"""What a lost answer had leased is offered again while the test runs."""
QUIET_S = 15.0
"""Longer than a lease: then nothing is left."""


@dataclass
class Shop:
    """A job whose sessions are over; nothing is collected yet."""

    world: World
    namespace: str
    kubeconfig: Path
    """Whose current namespace is the job's."""
    taken: list[str] = field(default_factory=list)
    """Tasks whose group a trainer has acknowledged, in any test."""

    @property
    def place(self) -> ClusterPlace:
        return ClusterPlace(namespace=self.namespace, kubeconfig=str(self.world.cluster.kubeconfig))

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """As a person with a kubeconfig."""
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)

    def look(self, *words: str) -> Any:
        """`sandgate ... --json`."""
        done = self.run(str(SANDGATE), *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shop(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with world.cluster.namespace("looks") as namespace:
        scripted.prepare(world, namespace)
        kubeconfig = tmp_path_factory.mktemp("looks") / "kubeconfig"
        found = Shop(world, namespace, kubeconfig)
        config = yaml.safe_load(world.cluster.kubeconfig.read_text("utf-8"))
        config["contexts"][0]["context"]["namespace"] = namespace
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(yaml.safe_dump(config))
        body = scripted.job("shop", AGENT, tasks=TASKS, samples=SAMPLES, gateway=two_gateways())
        submit(body, found.place)
        until_now(lambda: ended(found) == SESSIONS, what="every session has ended", within_s=120)
        yield found


def two_gateways() -> Json:
    gateway: Json = scripted.job("shop", "")["spec"]["gateway"]
    return gateway | {"replicas": 2}


def ended(shop: Shop) -> int:
    return int((rollout_job("shop", shop.place).get("status") or {}).get("ended") or 0)


def gateway_of(shop: Shop, session: str) -> str:
    """Which gateway it is at."""
    return str(agent_session(session, shop.place)["spec"]["gateway"])


def all_tasks() -> set[str]:
    return {f"q{number}" for number in range(TASKS)}


def test_the_pages_manifest_is_a_job(tmp_path: Path) -> None:
    """Whatever it makes is what the operator would make."""
    (block,) = re.findall(r"```yaml\n(apiVersion: sandgate.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "job.yaml").write_text(block)
    words = [str(SANDGATE), "render", str(tmp_path / "job.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {one["kind"] for one in yaml.safe_load_all(done.stdout)} >= {"StatefulSet", "Deployment", "Pod"}


# -- looks -----------------------------------------------------------------------------------------------------------


def test_status_tells_conditions_and_counts_of_all_gateways(shop: Shop) -> None:
    said = shop.look("status", "shop")
    assert said["Complete"].startswith("True"), said
    assert said["turns"] == 2 * SESSIONS
    assert (sum(said["sessions"].values()), said["in_flight"], said["failures"]) == (SESSIONS, 0, {})


def test_sessions_and_trajectories_are_those_of_both_gateways(shop: Shop) -> None:
    listed = shop.look("sessions", "shop", "-n", shop.namespace)
    samples = {(one["uid"], one["sample_index"]) for one in listed}
    assert len(listed) == len(samples) == SESSIONS
    where = {gateway_of(shop, one["session_id"]) for one in listed}
    assert where == {gateway_name("shop", 0), gateway_name("shop", 1)}
    rows = shop.look("trajectories", "shop")
    assert {row["session_id"] for row in rows} == {one["session_id"] for one in listed}
    assert {row["reward"] for row in rows} == {0.5}


def test_a_session_is_shown_by_its_name_alone(shop: Shop) -> None:
    session = shop.look("sessions", "shop")[0]
    done = shop.run(str(SANDGATE), "show", session["session_id"])
    assert done.returncode == 0, done.stderr
    assert "job shop" in done.stdout
    assert done.stdout.count("«receipt 42") == 2, done.stdout


def test_forks_are_told_and_make_the_exit_code_1(shop: Shop) -> None:
    """Each turn of these agents is a conversation of its own."""
    done = shop.run(str(SANDGATE), "forks", "shop", "--json")
    assert done.returncode == 1, done.stderr
    assert len(json.loads(done.stdout)) == SESSIONS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status", "nobody"), "not found"),
        (("sessions",), "say which job"),
        (("show", "shop-nobody-0"), "not found"),
        (("status", "shop", "--context", "nobody"), "no cluster"),
    ],
    ids=[
        "a job that is not there",
        "no job is named",
        "a session that is not there",
        "a context that is not there",
    ],
)
def test_what_is_asked_wrongly_is_one_line(shop: Shop, words: tuple[str, ...], said: str) -> None:
    done = shop.run(str(SANDGATE), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_submit_updates_what_may_change_and_says_what_may_not(shop: Shop) -> None:
    body = scripted.job("shop", AGENT, tasks=TASKS, samples=SAMPLES, gateway=two_gateways(), parallelism=7)
    assert submit(body, shop.place)["spec"]["parallelism"] == 7
    with pytest.raises(InvalidBody, match="groupSize"):
        submit(body | {"spec": body["spec"] | {"groupSize": 3}}, shop.place)
    with pytest.raises(InvalidBody, match="greater than or equal to 1"):
        submit(scripted.job("other", AGENT, groupSize=-1), shop.place)


# -- groups ----------------------------------------------------------------------------------------------------------


TRAINED = re.compile(r"^step (\d+): .* of (q\d+(?:, q\d+)*), mean reward 0\.50$", re.MULTILINE)


def trained(shop: Shop, said: str, steps: int) -> None:
    """The program took one group in each step."""
    found = TRAINED.findall(said)
    assert [int(step) for step, _ in found] == list(range(1, steps + 1)), said
    shop.taken += [uid for _, uids in found for uid in uids.split(", ")]


def test_the_pages_trainer_runs_outside_of_the_cluster(shop: Shop) -> None:
    done = shop.run(sys.executable, "-W", "error", "-c", program(TRAIN), "shop", "2")
    assert done.returncode == 0, done.stderr
    trained(shop, done.stdout, steps=2)


def test_the_pages_trainer_runs_in_a_pod_that_may_read_its_jobs_secret_and_nothing_else(shop: Shop) -> None:
    cluster = shop.world.cluster
    prepare(cluster, shop.namespace)
    pods.start(cluster, shop.namespace, trainer_pod("trainer", program(TRAIN), "shop", "2"))
    pods.start(cluster, shop.namespace, trainer_pod("curious", CURIOUS))
    assert pods.ended(cluster, shop.namespace, "trainer")["exitCode"] == 0, log(
        cluster, shop.namespace, "trainer"
    )
    trained(shop, log(cluster, shop.namespace, "trainer"), steps=2)
    assert pods.ended(cluster, shop.namespace, "curious")["exitCode"] == 0, log(
        cluster, shop.namespace, "curious"
    )


CURIOUS = """
from sandgate.contract.errors import Forbidden
from sandgate.trainer.client.cluster import job_gateways, rollout_job
for ask in (lambda: job_gateways("other").__enter__(), lambda: rollout_job("shop")):
    try:
        ask()
    except Forbidden as error:
        print(error)
    else:
        raise SystemExit("allowed")
"""


async def test_a_gateway_that_is_killed_while_groups_are_collected_loses_and_repeats_nothing(
    shop: Shop,
) -> None:
    """Once with a group of it in hand: it is acknowledged to the gateway's next life."""
    killed, rows = False, 0
    async with cluster_fleet("shop", shop.place) as fleet:
        async for group in fleet.groups(ttl_s=LEASE_S, idle_s=QUIET_S):
            async with group:
                gateway = gateway_of(shop, group.trajectories[0].session_id)
                if not killed and gateway == gateway_name("shop", 0):
                    kill(shop, gateway)
                    killed = True
                rows += len(group.trajectories)
            shop.taken.append(group.uid)
    assert killed
    assert rows
    assert sorted(shop.taken) == sorted(all_tasks())


def kill(shop: Shop, pod: str) -> None:
    """Its process, by SIGKILL; the kubelet starts it again."""
    cluster = shop.world.cluster
    found = pods.look(cluster, shop.namespace, pod)
    (status,) = found["status"]["containerStatuses"]
    assert cluster.machines.nodes[found["spec"]["nodeName"]].kill_container(status["containerID"])


async def test_all_are_committed_in_the_end(shop: Shop) -> None:
    """And deleting the job takes the trainer's key with it."""
    assert sorted(shop.taken) == sorted(all_tasks()), "collected by the test before"
    done = wait_for(shop.world, shop.namespace, "shop", "Complete")
    until_now(lambda: committed(shop) == SESSIONS, what="the operator has heard of all", within_s=60)
    assert done["status"]["failed"] == 0
    shop.world.cluster.kubectl("delete", "rolloutjob", "shop", "-n", shop.namespace, "--timeout=60s")
    until_now(lambda: not reachable(shop), what="the Secret is gone", within_s=60)


def committed(shop: Shop) -> int:
    return int(rollout_job("shop", shop.place)["status"].get("committed") or 0)


def reachable(shop: Shop) -> bool:
    try:
        with job_gateways("shop", shop.place):
            return True
    except NotFound:
        return False
