"""A trainer's own job in the real cluster, as verl's manager runs it: prompts and servers are the trainer's."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.contract.job import Task
from sandgate.trainer.areal.own_job import own_job
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.verl.jobs.running import verl_job
from sandgate.trainer.verl.jobs.settings import JobSettings
from tests.cluster import pods
from tests.cluster.e2e import scripted
from tests.cluster.e2e.trainer_pods import log, prepare, trainer_pod
from tests.cluster.e2e.world import World
from tests.images.ours import ROOT
from tests.support.waiting import until
from tests.trainer.test_verl_jobs import settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

AGENT = """
leave(reward=float("42" in say(os.environ["SANDGATE_PROMPT"])))
"""
GONE = scripted.python("agent", "") | {"command": ["/no/such/agent"]}


def server(world: World, namespace: str) -> str:
    """The address of an engine that is none of the job's, as pods see it."""
    managed = scripted.engine()["managed"]
    (container,) = managed["template"]["spec"]["containers"]
    told = {
        "image": managed["image"],
        "command": managed["command"],
        "volumeMounts": container["volumeMounts"],
    }
    pods.start(
        world.cluster,
        namespace,
        pods.server("server", container=told, volumes=managed["template"]["spec"]["volumes"]),
    )
    return f"http://{pods.running(world.cluster, namespace, 'server')['status']['podIP']}:8000"


def told(
    world: World,
    namespace: str,
    folder: Path,
    *,
    program: str = AGENT,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> JobSettings:
    """What verl's configuration says, with a manifest as people write it."""
    job = scripted.job("errands", program, **spec)
    job["metadata"]["labels"] = labels or {}
    job["spec"]["tasks"] = {"queue": {"capacity": 10}}
    (folder / "job.yaml").write_text(json.dumps(job), "utf-8")
    place = ClusterPlace(namespace=namespace, kubeconfig=str(world.cluster.kubeconfig))
    return settings(folder, cluster=place, wait_s=120.0)


async def test_prompts_are_tasks_of_a_job_of_its_own_that_goes_with_the_trainer(
    world: World, tmp_path: Path
) -> None:
    with world.cluster.namespace("trainers") as namespace:
        scripted.prepare(world, namespace)
        asked = told(world, namespace, tmp_path)
        async with verl_job(asked, [server(world, namespace)], validate=False) as groups:
            (job,) = world.list("rolloutjobs", namespace)
            assert job["metadata"]["name"].startswith("errands-")
            tasks = [Task(uid=uid, prompt=f"task {uid}") for uid in "ab"]
            futures = await groups.push(tasks)
            found = [
                await groups.group(one.uid, future, 120.0) for one, future in zip(tasks, futures, strict=True)
            ]
            assert [sorted((row.uid, row.sample_index) for row in rows) for rows in found] == [
                [("a", 0), ("a", 1)],
                [("b", 0), ("b", 1)],
            ]
            assert {row.reward for rows in found for row in rows} == {1.0}
            assert all(1 in row.loss_mask for rows in found for row in rows)

        async def nothing_is_left() -> bool:
            return not world.list("rolloutjobs,agentsessions,statefulsets", namespace)

        await until(nothing_is_left, what="the job is gone", within_s=60)


async def test_an_episode_of_areal_is_a_task_of_its_workers_job(world: World, tmp_path: Path) -> None:
    """Each token has the version that the worker's engine was told to have."""
    with world.cluster.namespace("trainers-areal") as namespace:
        scripted.prepare(world, namespace)
        asked = told(world, namespace, tmp_path, groupSize=2)
        assert asked.cluster is not None
        link = own_job(asked.manifest, asked.cluster, [server(world, namespace)])
        await asyncio.to_thread(link.open, 7)
        try:
            rows = await link.episode("task a", {}, "a")
        finally:
            await asyncio.to_thread(link.close)
        assert [row.reward for row in rows] == [1.0, 1.0]
        assert {version for row in rows for version in row.versions} == {7}
        assert not left(world, namespace)


IN_A_POD = """
import asyncio, json, logging, sys
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.manifest_decoder import decode
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.cluster_job import cluster_job

async def main():
    job = decode(RolloutJob, json.loads(sys.argv[1]))
    async with cluster_job(job, ClusterPlace(), ready_s=120.0) as groups:
        (told,) = await groups.push([Task(uid="a", prompt="task a")])
        print([row.reward for row in await groups.group("a", told, 120.0)])

asyncio.run(main())
"""


def test_the_pages_rights_are_enough_in_a_pod(world: World) -> None:
    page = (ROOT / "docs" / "trainers" / "verl.md").read_text("utf-8")
    (role,) = re.findall(r"```yml\n(# verl's driver.*?)```", page, re.DOTALL)
    cluster = world.cluster
    with cluster.namespace("trainers-pod") as namespace:
        scripted.prepare(world, namespace)
        prepare(cluster, namespace)
        cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=role)
        account = ["--role=jobs-of-its-own", f"--serviceaccount={namespace}:trainer"]
        cluster.kubectl("create", "rolebinding", "jobs-of-its-own", "-n", namespace, *account)
        body = scripted.job("errands", AGENT)
        body["spec"] |= {"tasks": {"queue": {}}, "engine": {"endpoints": [server(world, namespace)]}}
        pods.start(cluster, namespace, trainer_pod("driver", IN_A_POD, json.dumps(body)))
        end = pods.wait(cluster, namespace, "driver", over, "ends", within_s=180.0)
        assert end["status"]["phase"] == "Succeeded", log(cluster, namespace, "driver")
        assert log(cluster, namespace, "driver") == "[1.0]\n"
        assert not left(world, namespace)


def left(world: World, namespace: str) -> list[Any]:
    """Jobs that nobody deletes."""
    return [one for one in world.list("rolloutjobs", namespace) if "deletionTimestamp" not in one["metadata"]]


def over(pod: Any) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


async def test_a_job_that_fails_ends_the_wait_with_its_reason_and_stays(world: World, tmp_path: Path) -> None:
    with world.cluster.namespace("trainers-bad") as namespace:
        scripted.prepare(world, namespace)
        asked = told(world, namespace, tmp_path, agent={"template": {"spec": {"containers": [GONE]}}})
        async with verl_job(asked, [server(world, namespace)], validate=False) as groups:
            (future,) = await groups.push([Task(uid="a", prompt="task a")])
            with pytest.raises(
                Unavailable, match=r"job errands-\w+ failed: ProgramMissing: .*/no/such/agent"
            ):
                await groups.group("a", future, 240.0)
        (job,) = world.list("rolloutjobs", namespace)
        assert job["spec"]["ttlSecondsAfterFinished"] == 3600
