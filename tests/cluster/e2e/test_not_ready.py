"""Jobs that cannot begin say why in their Ready condition, in the words of who knows: scheduler, gateway, network."""

from __future__ import annotations

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
            return True

        try:
            until_now(all_say, what="each says why", within_s=WITHIN_S)
        except AssertionError as error:
            pods = world.cluster.kubectl("get", "pods", "-n", namespace, "-o", "wide", check=False)
            raise AssertionError(f"{error}\n{said}\n{pods}") from None
        print(f"all four after {time.monotonic() - began:.0f} s: {said}")
        assert not world.cluster.kubectl("get", "ags", "-n", namespace, "-o", "name").strip(), (
            "nothing was begun"
        )


def ready(job: dict[str, Any]) -> tuple[str, str]:
    for one in (job.get("status") or {}).get("conditions", ()):
        if one["type"] == "Ready" and one["status"] == "False":
            return one["reason"], one["message"]
    return "", ""
