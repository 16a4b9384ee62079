"""A job that is deleted and applied again under its name is another job: it has nothing of the first one's journals."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.names import gateways_name
from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import World, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

AGENT = """
say(os.environ["SANDGATE_PROMPT"])
leave(reward=1.0)
"""
CLAIM = f"journal-{gateways_name('shop')}-0"


def test_its_gateways_begin_with_journals_of_their_own(world: World) -> None:
    with world.cluster.namespace("again") as namespace:
        scripted.prepare(world, namespace)
        first = run(world, namespace, "the first")
        # It waits for the job's object alone: what was made for it is still being deleted.
        world.cluster.kubectl("delete", "rolloutjob", "shop", "-n", namespace, "--wait=true", "--timeout=60s")
        second = run(world, namespace, "the second")
        job = world.get("rolloutjob", namespace, "shop")["metadata"]["uid"]
        owners = [
            one["metadata"]["ownerReferences"][0]["uid"] for one in world.list("agentsessions", namespace)
        ]
        assert job in owners, "it has sessions of its own"
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        made = world.get("statefulset", namespace, gateways_name("shop"))["metadata"]["uid"]
        assert made in {one["uid"] for one in second["metadata"]["ownerReferences"]}
        assert "deletionTimestamp" not in second["metadata"]


def run(world: World, namespace: str, prompt: str) -> dict[str, Any]:
    """A whole job; the claim of its journal."""
    wanted = scripted.job("shop", AGENT)
    wanted["spec"]["tasks"] = {"inline": [{"uid": "q0", "prompt": prompt}]}
    scripted.submit(world, namespace, wanted)
    wait_for(world, namespace, "shop", "Complete")
    return world.get("persistentvolumeclaim", namespace, CLAIM)
