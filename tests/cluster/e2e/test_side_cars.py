"""What runs beside an agent in its pod, and does not end with it, is dead before the agent is judged."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import World, wait_for
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

NAME = "beside"
AGENT = """
say(os.environ["SANDGATE_PROMPT"])
"""
TOOL = "import time\nwhile True:\n    time.sleep(1)"
VERIFIER = """
import json, time
time.sleep(3)  # it is seen
json.dump({"reward": 0.5}, open("/dev/termination-log", "w"))
"""


def job() -> dict[str, Any]:
    """The tool runs for ever, and keeps it from nobody."""
    body = scripted.job(
        NAME,
        AGENT,
        reward={"source": "verifier", "verifier": {"container": scripted.python("verifier", VERIFIER)}},
        ttlSecondsAfterFinished=3600,
    )
    body["spec"]["agent"]["template"]["spec"]["containers"].append(scripted.python("tool", TOOL))
    return body


def states(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of its containers, by name."""
    return {one["name"]: one.get("state", {}) for one in pod["status"].get("containerStatuses", ())}


async def test_a_side_car_is_stopped_before_the_verifier_starts(world: World) -> None:
    with world.cluster.namespace("beside") as namespace:
        scripted.prepare(world, namespace)
        scripted.submit(world, namespace, job())
        ended: dict[str, str] = {}
        began: dict[str, str] = {}

        async def judged() -> bool:
            for pod in world.list("pods", namespace, "sandgate.dev/role in (agent,verifier)"):
                for name, state in states(pod).items():
                    if at := state.get("terminated", {}).get("finishedAt"):
                        ended[name] = at
                    if at := (state.get("terminated") or state.get("running") or {}).get("startedAt"):
                        began[name] = at
            return "verifier" in began

        await until(judged, what="it is judged", within_s=150)
        assert datetime.fromisoformat(ended["tool"]) <= datetime.fromisoformat(began["verifier"])
        wait_for(world, namespace, NAME, "Complete")
        (session,) = world.list("agentsessions", namespace)
        assert session["status"]["reward"] == 0.5
        assert "failureReason" not in session["status"]
