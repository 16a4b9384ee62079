"""Jobs that cannot begin say why, as Ready and in Events, in the words of who knows: scheduler, gateway, network."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import World
from tests.support.waiting import until_now

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240, func_only=True)]

WITHIN_S = 60.0
"""For a person who looks."""

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-such-class": (
        {"gateway": {"journal": {"sqlite": {"storageClass": "no-such-class"}}}},
        "NoGateway",
        r"pod no-such-class-gateway-0: Unschedulable: .*PersistentVolumeClaim",
    ),
    "no-such-image": (
        {"gateway": {"image": "localhost/no-such-image:1"}},
        "NoGateway",
        r"pod no-such-image-gateway-0: gateway: ErrImageNeverPull: .*no-such-image",
    ),
    "no-such-folder": (
        {"model": {"name": "shop", "tokenizer": "/models/none"}},
        "NoGateway",
        r"pod no-such-folder-gateway-0: gateway: exit code \d+: .*/models/none",
    ),
    "nobody-there": (
        {"engine": {"endpoints": ["http://no-such-engine:8000"]}},
        "NoEngine",
        r"no engine answers: http://no-such-engine:8000: .*",
    ),
}
"""Name of a job -> (what is wrong with its spec, the reason of Ready=False, its message)."""


def test_each_wrong_job_says_what_is_wrong_within_a_minute(world: World) -> None:
    said: dict[str, tuple[str, str]] = {}
    with world.cluster.namespace("wrong") as namespace:
        scripted.prepare(world, namespace)
        scripted.submit(
            world, namespace, *(scripted.job(name, "pass", **change) for name, (change, *_) in WRONG.items())
        )
        began = time.monotonic()

        def all_say() -> bool:
            for name, (_, reason, message) in WRONG.items():
                said[name] = ready(world.get("rolloutjob", namespace, name))
                if said[name][0] != reason or not re.search(message, said[name][1]):
                    return False
            told = warnings(world, namespace)
            return all(
                any(why == reason and re.search(message, words) for why, words in told.get(name, ()))
                for name, (_, reason, message) in WRONG.items()
            )

        try:
            until_now(all_say, what="each says why", within_s=WITHIN_S)
        except AssertionError as error:
            pods = world.cluster.kubectl("get", "pods", "-n", namespace, "-o", "wide", check=False)
            raise AssertionError(f"{error}\n{said}\n{pods}") from None
        assert max(map(len, warnings(world, namespace).values())) <= 10, "and does not repeat itself"
        print(f"all four after {time.monotonic() - began:.0f} s: {said}")
        assert not world.cluster.kubectl("get", "ags", "-n", namespace, "-o", "name").strip(), (
            "nothing was begun"
        )


def warnings(world: World, namespace: str) -> dict[str, list[tuple[str, str]]]:
    """Job -> (reason, message) of its Events, as `kubectl describe` shows them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for event in json.loads(world.cluster.kubectl("get", "events", "-n", namespace, "-o", "json"))["items"]:
        about = event["involvedObject"]
        if about["kind"] == "RolloutJob" and event["type"] == "Warning":
            found.setdefault(about["name"], []).append((event["reason"], event["message"]))
    return found


def ready(job: dict[str, Any]) -> tuple[str, str]:
    for one in (job.get("status") or {}).get("conditions", ()):
        if one["type"] == "Ready" and one["status"] == "False":
            return one["reason"], one["message"]
    return "", ""
