"""A running job whose spec is changed does as it says now, at once, and its status says which spec it is about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import InvalidBody
from tests.operator.cluster_rig import NAMESPACE, Box, Crash, World, engine_pod, hurry, manifest, world
from tests.support.waiting import until

MANAGED = {"managed": {"image": "e:1", "gpus": 0}}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def waits(box: Box) -> int:
    await asyncio.Event().wait()
    return 0


async def crashes(box: Box) -> int:
    await box.world.kube.delete("Pod", NAMESPACE, box.name, grace_s=0)
    raise Crash


def running(up: World) -> int:
    return int((up.job().get("status") or {}).get("running", 0))


def replicas(up: World, kind: str, name: str) -> int:
    held = up.kube.objects.get((kind, NAMESPACE, name))
    return -1 if held is None else int(held["spec"]["replicas"])


def retried(up: World) -> int:
    return max((int(one["spec"]["attempt"]) for one in up.sessions().values()), default=-1)


Case = tuple[dict[str, Any], Callable[[World], bool], dict[str, Any], Callable[[World], bool]]
"""(spec, what holds first, the change, what holds then)."""

CHANGES: dict[str, Case] = {
    "more gateways are made": (
        {},
        lambda up: replicas(up, "StatefulSet", "shop-gateway") == 1,
        {"gateway": {"replicas": 2}},
        lambda up: replicas(up, "StatefulSet", "shop-gateway") == 2,
    ),
    "more engines are made": (
        {"engine": MANAGED},
        lambda up: replicas(up, "Deployment", "shop-engine") == 1,
        {"engine": {"managed": {"replicas": 3}}},
        lambda up: replicas(up, "Deployment", "shop-engine") == 3,
    ),
    "more engines are made of a suspended job once it goes on": (
        {"engine": MANAGED},
        lambda up: replicas(up, "Deployment", "shop-engine") == 1,
        {"engine": {"managed": {"replicas": 2}}, "suspend": True},
        lambda up: replicas(up, "Deployment", "shop-engine") == 0,
    ),
    "gateways are told of other engines": (
        {},
        lambda up: up.engines["shop-gateway-0"].urls == ("http://10.0.0.5:8000",),
        {"engine": {"endpoints": ["http://10.0.0.6:8000", "http://10.0.0.7:8000"]}},
        lambda up: up.engines["shop-gateway-0"].urls == ("http://10.0.0.6:8000", "http://10.0.0.7:8000"),
    ),
    "more sessions run at once": (
        {"parallelism": 1},
        lambda up: running(up) == 1,
        {"parallelism": 3},
        lambda up: running(up) == 3,
    ),
    "more sessions start at once": (
        {"parallelism": 4, "startBurst": 4, "staleness": {"maxVersionsBehind": 0, "batchSize": 1}},
        lambda up: running(up) == 1,
        {"staleness": {"batchSize": 2}},
        lambda up: running(up) == 2,
    ),
    "a job that is not bound to weights any more begins them all": (
        {"staleness": {"maxVersionsBehind": 0, "batchSize": 1}},
        lambda up: running(up) == 1,
        {"staleness": None},
        lambda up: running(up) == 4,
    ),
    "what runs is stopped when it is suspended": (
        {},
        lambda up: running(up) == 4,
        {"suspend": True},
        lambda up: running(up) == 0 and up.condition("Suspended") == ("True", "SpecSuspend"),
    ),
    "a trainer that is waited for from now on may be silent": (
        {},
        lambda up: running(up) == 4,
        {"trainer": {"heartbeatSeconds": 1, "collectSeconds": 600}},
        lambda up: up.condition("Suspended") == ("True", "TrainerSilent"),
    ),
    "one that is not waited for any more may be silent for ever": (
        {"trainer": {"heartbeatSeconds": 1, "collectSeconds": 600}},
        lambda up: up.condition("Suspended") == ("True", "TrainerSilent"),
        {"trainer": None},
        lambda up: up.condition("Suspended")[0] == "False" and running(up) == 4,
    ),
    "a deadline that is set later counts from the job's start": (
        {},
        lambda up: running(up) == 4,
        {"activeDeadlineSeconds": 1},
        lambda up: up.condition("Failed") == ("True", "DeadlineExceeded"),
    ),
}


@pytest.mark.parametrize(("spec", "first", "change", "then"), CHANGES.values(), ids=CHANGES)
async def test_a_change_takes_effect_at_once(
    up: World,
    spec: dict[str, Any],
    first: Callable[[World], bool],
    change: dict[str, Any],
    then: Callable[[World], bool],
) -> None:
    up.agents = [("shop", waits)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", "c 3", "d 4", **spec))
    if "engine" in spec:
        await up.gateway_down("shop-gateway-0")  # nothing else is of interest
    await so(lambda: first(up), "it runs as it was told first")
    await so(lambda: up.job()["status"]["observedGeneration"] == 1, "its status is about the first spec")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": change})
    await so(lambda: then(up), "it runs as it is told now")
    await so(lambda: up.job()["status"]["observedGeneration"] == 2, "its status is about the second spec")


async def test_a_further_gateway_joins_and_takes_new_groups(up: World) -> None:
    up.agents = [("shop", waits)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", parallelism=1))
    await so(lambda: running(up) == 1, "one runs")
    await up.kube.patch(
        "RolloutJob", NAMESPACE, "shop", {"spec": {"gateway": {"replicas": 2}, "parallelism": 2}}
    )
    await up.gateway_up("shop-gateway-1")
    await so(lambda: up.job()["status"]["gateways"] == 2, "both take sessions")
    await so(lambda: running(up) == 2, "the second task runs")
    await up.operator_down()
    up.operator_up()
    await so(lambda: up.job()["status"]["gateways"] == 2, "a new operator knows both")


async def test_a_smaller_bound_on_retries_ends_what_is_beyond_it(up: World) -> None:
    up.agents = [("shop", crashes)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", group={"retry": {"infra": 30}}))
    await so(lambda: retried(up) >= 1, "it is tried again")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"group": {"retry": {"infra": 1}}}})
    await so(lambda: up.condition("Failed") == ("True", "AllFailed"), "it gives up")
    assert retried(up) < 9


async def test_a_spec_that_cannot_run_is_said_and_the_job_goes_on_as_before(up: World) -> None:
    def said() -> tuple[str, str]:
        (one,) = [one for one in up.job()["status"]["conditions"] if one["type"] == "Progressing"]
        return one["reason"], one.get("message", "")

    up.agents = [("shop", waits)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", parallelism=1))
    await so(lambda: running(up) == 1, "one runs")
    bad = {"parallelism": 2, "engine": {"endpoints": ["http://localhost:8000"]}}
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": bad})
    await so(lambda: said()[0] == "SpecRefused", "it is said")
    assert "spec.engine.endpoints[0]" in said()[1]
    assert (running(up), up.job()["status"]["observedGeneration"]) == (1, 1), "the spec before"
    mend = {"engine": {"endpoints": ["http://10.0.0.5:8000"]}}
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": mend})
    await so(lambda: running(up) == 2 and said() == ("Running", ""), "the mended spec is done")
    assert up.job()["status"]["observedGeneration"] == 3


async def so(condition: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, what=what, within_s=60.0)


def with_image(image: str) -> dict[str, Any]:
    """A template, as agents and gateways have one."""
    container = {"name": "agent", "image": image, "command": ["agent"]}
    return {"spec": {"containers": [container], "nodeSelector": {"of": image}}}


async def test_templates_and_images_that_change_while_it_is_suspended_are_those_it_goes_on_with(
    up: World,
) -> None:
    """Where the API server's own rules let them; what was begun is run anew, in pods as they are now."""
    pods: list[tuple[str, str]] = []

    def made(kind: str, event: str, body: Any) -> None:
        if (kind, event) == ("Pod", "ADDED") and body["metadata"]["name"].startswith("shop-a"):
            pods.append((body["metadata"]["name"], body["spec"]["containers"][0]["image"]))

    up.kube.watchers.append(made)
    up.agents = [("-0-0", waits)]
    up.operator_up()
    await up.kube.create(
        manifest("a 1", groupSize=2, parallelism=1, engine={"managed": {"image": "e:1", "gpus": 0}})
    )
    await engine_pod(up)
    await so(lambda: running(up) == 1, "the first is under way")
    changes = {
        "agent": {"template": with_image("agent:2")},
        "gateway": {"image": "gateway:2", "template": {"metadata": {"labels": {"team": "b"}}}},
        "engine": {"managed": {"image": "e:2", "template": {"spec": {"nodeSelector": {"gpu": "b"}}}}},
    }
    with pytest.raises(InvalidBody, match="changes only while the job is suspended"):
        await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {**changes, "suspend": True}})
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(lambda: running(up) == 0, "nothing runs")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": changes})
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await so(lambda: up.condition("Complete")[0] == "True", "it is done")
    assert [image for _, image in pods] == ["agent:1", "agent:2", "agent:2"]
    assert up.job()["status"]["failed"] == 0
    gateway = up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]["spec"]["template"]
    assert gateway["spec"]["containers"][0]["image"] == "gateway:2"
    assert gateway["metadata"]["labels"]["team"] == "b"
    engine = up.kube.objects["Deployment", NAMESPACE, "shop-engine"]["spec"]["template"]["spec"]
    assert (engine["containers"][0]["image"], engine["nodeSelector"]) == ("e:2", {"gpu": "b"})


async def test_a_group_that_goes_on_with_another_agent_is_told_in_an_event(up: World) -> None:
    up.agents = [("-1-0", waits)]
    up.operator_up()
    await up.kube.create(manifest("a 1", groupSize=2))

    def ended(count: int) -> bool:
        return bool(up.job().get("status", {}).get("ended") == count and running(up) == 2 - count)

    await so(lambda: ended(1), "one of two has ended")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(lambda: up.condition("Suspended")[0] == "True", "nothing runs")
    other = {"agent": {"template": with_image("agent:2")}}
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": other})

    def told() -> bool:
        events = [up.kube.objects["Event", NAMESPACE, name] for name in up.kube.named("Event")]
        (*_, last) = [one for one in events if one["reason"] == "AgentChanged"] or [{"message": ""}]
        return "(1; 1 of their samples" in last["message"]

    await so(told, "it is told")
