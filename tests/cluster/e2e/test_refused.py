"""A refused job is corrected in place; once it has begun, its template changes only while it is suspended."""

from __future__ import annotations

import pytest

from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import World, wait_for
from tests.support.waiting import until_now

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

AGENT = """
say("hello")
leave(reward=1.0)
"""


def test_a_refused_job_is_corrected_in_place_and_runs(world: World) -> None:
    with world.cluster.namespace("refused") as namespace:
        scripted.prepare(world, namespace)
        good, bad = scripted.job("shop", AGENT), scripted.job("shop", AGENT)
        del bad["spec"]["agent"]["template"]["spec"]["containers"][0]["image"]
        scripted.submit(world, namespace, bad)

        def refused() -> bool:
            status = world.get("rolloutjob", namespace, "shop").get("status") or {}
            return status.get("reason") == "BadManifest"

        until_now(refused, what="the job is refused", within_s=60)
        (failed,) = (
            one
            for one in world.get("rolloutjob", namespace, "shop")["status"]["conditions"]
            if one["type"] == "Failed"
        )
        assert failed["message"].startswith("spec.agent.template.spec.containers[0].image: is missing")
        assert not world.list("statefulsets", namespace)

        scripted.submit(world, namespace, good)
        done = wait_for(world, namespace, "shop", "Complete")
        assert done["status"]["reason"] != "BadManifest"
        with pytest.raises(AssertionError, match="changes only while the job is suspended"):
            scripted.submit(world, namespace, bad)
