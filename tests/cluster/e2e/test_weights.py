"""New weights for the managed engines of a job, by the page's program, in a pod of the job's namespace."""

from __future__ import annotations

import pytest

from sandgate.contract.job import Task
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import AsyncFleet, cluster_fleet
from tests.cluster import pods
from tests.cluster.e2e import scripted
from tests.cluster.e2e.trainer_pods import UPDATE, log, prepare, program, trainer_pod
from tests.cluster.e2e.world import World, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

AGENT = """
say(os.environ["SANDGATE_PROMPT"])
leave(reward=1.0)
"""


async def versions(fleet: AsyncFleet, uid: str) -> set[int]:
    """Those of the tokens that a task's agents sampled."""
    await fleet.push_tasks([Task(uid=uid, prompt=f"task {uid}")])
    async for group in fleet.groups(idle_s=120.0):
        async with group:
            assert group.uid == uid
            return {
                version
                for row in group.trajectories
                for version, mask in zip(row.versions, row.loss_mask, strict=True)
                if mask
            }
    raise AssertionError(f"no group of {uid}")


async def test_a_trainer_in_a_pod_loads_weights_into_managed_engines(world: World) -> None:
    cluster = world.cluster
    with cluster.namespace("weights") as namespace:
        scripted.prepare(world, namespace)
        prepare(cluster, namespace)
        job = scripted.job("shop", AGENT)
        job["spec"]["tasks"] = {"queue": {"capacity": 10}}
        scripted.submit(world, namespace, job)
        wait_for(world, namespace, "shop", "Ready")
        place = ClusterPlace(namespace=namespace, kubeconfig=str(cluster.kubeconfig))
        async with cluster_fleet("shop", place) as fleet:
            assert await versions(fleet, "before") == {0}
            pods.start(cluster, namespace, trainer_pod("trainer", program(UPDATE), "shop"))
            end = pods.ended(cluster, namespace, "trainer")
            assert end["exitCode"] == 0, log(cluster, namespace, "trainer")
            warned, said = log(cluster, namespace, "trainer").splitlines()
            assert "a folder that is not on this host" in warned  # a scripted engine needs none
            assert said == "version 1 is in 1 engines"
            assert await versions(fleet, "after") == {1}
            await fleet.push_tasks([], last=True)
        wait_for(world, namespace, "shop", "Complete")
