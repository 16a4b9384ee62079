"""All keys of a job are made anew by the page's commands, where kubelets cache what they mount."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from sandgate.contract.errors import Unauthorized
from sandgate.contract.job import Task
from sandgate.trainer.client.cluster import ClusterPlace, job_gateways
from sandgate.trainer.client.fleet import AsyncFleet, cluster_fleet
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from tests.cluster.e2e import scripted
from tests.cluster.e2e.trainer_pods import PAGE
from tests.cluster.e2e.world import World, wait_for
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.programs import binary
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

AGENT = """
say(os.environ["SANDGATE_PROMPT"])
if os.environ["SANDGATE_PROMPT"] == "hold" and os.environ["SANDGATE_SESSION_ID"].endswith("-0-0"):
    time.sleep(600)  # until it is stopped; its next attempt and its sibling go on
leave(reward=1.0)
"""


def commands() -> str:
    """The page's."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (found,) = (str(block) for block in blocks if "delete secret shop-signing" in block)
    return found


def shell(cluster: Cluster, namespace: str, home: Path, script: str) -> str:
    """As somebody would, with a kubeconfig of that namespace. `home`: kubectl caches there."""
    kubectl = binary("kubectl")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig)}
    wrapped = f'set -e\nkubectl() {{ "{kubectl}" -n "{namespace}" "$@"; }}\n{script}'
    done = subprocess.run(
        ["bash", "-c", wrapped], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def trained(fleet: AsyncFleet, uid: str) -> int:
    """Trajectories of a task's group."""
    async for group in fleet.groups(idle_s=120.0):
        async with group:
            assert group.uid == uid
            return len(group.trajectories)
    raise AssertionError(f"no group of {uid}")


async def test_a_jobs_keys_are_made_anew_as_the_page_says(world: World, tmp_path: Path) -> None:
    """One of a group's two sessions is under way, and the other has its key already, when all keys become others."""
    cluster = world.cluster
    with cluster.namespace("keys") as namespace:
        scripted.prepare(world, namespace)
        job = scripted.job("shop", AGENT, samples=2, parallelism=1)
        job["spec"]["tasks"] = {"queue": {"capacity": 10}}
        scripted.submit(world, namespace, job)
        wait_for(world, namespace, "shop", "Ready")
        place = ClusterPlace(namespace=namespace, kubeconfig=str(cluster.kubeconfig))
        with job_gateways("shop", place) as found:
            old = found.key
        async with cluster_fleet("shop", place) as fleet:
            await fleet.push_tasks([Task(uid="hold", prompt="hold")])

            async def under_way() -> bool:
                return any([one["turns"] async for one in fleet.sessions()])

            await until(under_way, what="the first of two has had its turn", within_s=120.0)
        shell(cluster, namespace, tmp_path, commands())
        wait_for(world, namespace, "shop", "Ready")
        with job_gateways("shop", place) as found:
            assert found.key != old
            (origin,) = found.origins.values()
            async with AsyncRolloutClient(origin, old) as stolen:
                with pytest.raises(Unauthorized, match="signature"):
                    await stolen.heartbeat()
        async with cluster_fleet("shop", place) as fleet:
            for client in fleet.clients.values():
                client._key = old  # as of a trainer that was there before
            assert await trained(fleet, "hold") == 2
            await fleet.push_tasks([], last=True)
        wait_for(world, namespace, "shop", "Complete")
        assert world.get("RolloutJob", namespace, "shop")["status"]["failed"] == 0
