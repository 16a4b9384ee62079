"""A job without a trainer: its gateway writes Parquet to an S3, through its own death; every session is committed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.names import gateway_name, session_id
from sandgate.trainer.export.arrow import read_parquet
from tests.cluster import s3
from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import World, conditions, wait_for
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

NAME, TASKS, SAMPLES = "files", 6, 2
SESSIONS = TASKS * SAMPLES
TURNS = 3
AGENT = f"""
for turn in range({TURNS}):
    say(os.environ["SANDGATE_PROMPT"] + " turn " + str(turn))
    time.sleep(1)
leave(reward=0.5)
"""


def credentials(namespace: str) -> dict[str, Any]:
    data = {"AWS_ACCESS_KEY_ID": s3.KEY, "AWS_SECRET_ACCESS_KEY": s3.SECRET}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bucket", "namespace": namespace},
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()},
    }


def job(url: str) -> dict[str, Any]:
    """Two at a time, so that it lasts."""
    body = scripted.job(
        NAME, AGENT, tasks=TASKS, samples=SAMPLES, parallelism=4, output={"parquet": {"url": url}}
    )
    gateway: dict[str, Any] = body["spec"]["gateway"]
    (container,) = gateway["template"]["spec"]["containers"]
    container["envFrom"] = [{"secretRef": {"name": "bucket"}}]
    return body


async def test_trajectories_are_in_the_bucket_once_and_whole(world: World, tmp_path: Path) -> None:
    with (
        s3.server(tmp_path / "s3") as store,
        world.cluster.machines.expose(store.port) as endpoint,
        world.cluster.namespace("output") as namespace,
    ):
        scripted.prepare(world, namespace)
        world.cluster.apply(credentials(namespace))
        scripted.submit(world, namespace, job(store.url("step-1", endpoint)))

        async def begun() -> bool:
            return bool(store.files("step-1"))

        await until(begun, what="a first group is written", within_s=120)
        world.cluster.kubectl(
            "delete", "pod", "-n", namespace, gateway_name(NAME, 0), "--grace-period=0", "--force"
        )
        wait_for(world, namespace, NAME, "Complete")

        async def committed() -> bool:
            found = world.list("agentsessions", namespace)
            good = [one for one in found if conditions(one).get("TrajectoryCommitted") == "True"]
            return len(good) == SESSIONS

        await until(committed, what="every session is committed", within_s=60)
        rows = [row for file in store.files("step-1") for row in read_parquet(file)]
        every = [(row.uid, row.sample_index, row.trajectory_id) for row in rows]
        assert len(set(every)) == len(every) == SESSIONS * TURNS, (
            "a turn without history is a trajectory of its own"
        )
        assert {(row.session_id, row.failure_class, row.complete) for row in rows} == {
            (session_id(NAME, f"q{task}", sample, 0), None, True)
            for task in range(TASKS)
            for sample in range(SAMPLES)
        }
        assert len(store.files("step-1")) == TASKS
        await idle_and_back(world, namespace)
        assert len(store.files("step-1")) == TASKS, "it knows what it wrote"


async def idle_and_back(world: World, namespace: str) -> None:
    """Its gateway goes once nothing is to be done, and comes back with its volume when somebody asks for it."""

    def stays(seconds: int) -> None:
        spec = json.dumps({"spec": {"gateway": {"idleSeconds": seconds}}})
        world.cluster.kubectl("patch", "rolloutjob", NAME, "-n", namespace, "--type=merge", "-p", spec)

    async def gone() -> bool:
        return gateway_name(NAME, 0) not in [one["metadata"]["name"] for one in world.list("pods", namespace)]

    wait_for(world, namespace, NAME, "Collected")
    stays(1)
    await until(gone, what="the gateway's pod is gone", within_s=60)
    stays(3600)

    async def back() -> bool:
        return bool(world.get("rolloutjob", namespace, NAME)["status"].get("gateways") == 1)

    await until(back, what="its gateway answers again", within_s=120)
