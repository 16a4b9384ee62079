"""Why a job is not Ready: the words of its gateways' pods, and of the engines that do not answer, in its condition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.operator.cluster import gateway_pods
from sandgate.operator.cluster.gateway_pods import blocked
from sandgate.operator.driver.engine_health import answering
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.test_cluster import so

UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
PULL = 'Back-off pulling image "registry.example/gateway:9": not found'


def pod(**status: Any) -> dict[str, Any]:
    spec = {"initContainers": [{"name": "fetch"}], "containers": [{"name": "gateway"}]}
    return {"metadata": {"name": "shop-gateway-0"}, "spec": spec, "status": status}


def container(**state: Any) -> dict[str, Any]:
    return {"name": "gateway", "state": state}


def crashed(message: str, code: int = 1) -> dict[str, Any]:
    return {"exitCode": code, "reason": "Error", "message": message}


BLOCKED: dict[str, tuple[list[Any], str]] = {
    "the StatefulSet may make no pod (quota, policy): where that is told": (
        [],
        "StatefulSet shop-gateway has no pod yet; `kubectl describe statefulset shop-gateway` says why",
    ),
    "its volume is not bound: the scheduler's words": (
        [pod(conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNBOUND}
        ])],
        f"pod shop-gateway-0: Unschedulable: {UNBOUND}",
    ),
    "its image is not there: the kubelet's words": (
        [pod(containerStatuses=[container(waiting={"reason": "ImagePullBackOff", "message": PULL})])],
        f"pod shop-gateway-0: gateway: ImagePullBackOff: {PULL}",
    ),
    "a missing ConfigMap key is the container's words": (
        [pod(containerStatuses=[container(waiting={"reason": "CreateContainerConfigError"})])],
        "pod shop-gateway-0: gateway: CreateContainerConfigError",
    ),
    "it crashes and is started again: the last line of what it said, not the back-off": (
        [pod(containerStatuses=[
            container(waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s"})
            | {"lastState": {"terminated": crashed("reading\nerror: /models/x has no tokenizer.json", 2)}}
        ])],
        "pod shop-gateway-0: gateway: exit code 2: error: /models/x has no tokenizer.json",
    ),
    "it crashed without a word": (
        [pod(containerStatuses=[container(terminated=crashed("", 137))])],
        "pod shop-gateway-0: gateway: exit code 137: Error",
    ),
    "an init container fails": (
        [pod(initContainerStatuses=[{"name": "fetch", "state": {"terminated": crashed("no such host")}}])],
        "pod shop-gateway-0: fetch: exit code 1: no such host",
    ),
    "the first pod in trouble is told, by name": (
        [
            {"metadata": {"name": "shop-gateway-1"},
             "status": {"containerStatuses": [container(terminated=crashed("late"))]}},
            pod(containerStatuses=[container(terminated=crashed("early"))]),
        ],
        "pod shop-gateway-0: gateway: exit code 1: early",
    ),
    "a pod that starts as pods do is in no trouble": (
        [pod(phase="Pending", initContainerStatuses=[{"name": "i", "state": {"terminated": {"exitCode": 0}}}],
             containerStatuses=[container(waiting={"reason": "ContainerCreating"})])],
        "",
    ),
    "a status that says nothing": ([pod(), {"metadata": {}, "status": None}], ""),
    "words of a terminal's escapes and keys are made plain": (
        [pod(containerStatuses=[container(terminated=crashed("\x1b[31mbad\x1b[0m sk-sg-secret.secret"))])],
        "pod shop-gateway-0: gateway: exit code 1: bad [key]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "why"), BLOCKED.values(), ids=BLOCKED)
def test_why_no_gateway_is_ready(pods: list[Any], why: str) -> None:
    assert blocked(pods, "shop-gateway") == why


def engine(number: int, detail: str = "refused", *, healthy: bool = False) -> dict[str, Any]:
    return {"url": f"http://e{number}", "healthy": healthy, "detail": detail}


SILENCE: dict[str, tuple[Any, str]] = {
    "one answers": ([engine(1), engine(2, healthy=True)], ""),
    "there is none": ([], "no engine's pod is ready"),
    "each with its error": ([engine(1), engine(2, "timed out")], "http://e1: refused; http://e2: timed out"),
    "one that was not asked yet": ([engine(1, "")], "http://e1: not asked yet"),
    "of many the first three": (
        [engine(number) for number in range(9)],
        "http://e0: refused; http://e1: refused; http://e2: refused; and 6 more",
    ),
    "a gateway of another version": (None, "no engine's pod is ready"),
}


@pytest.mark.parametrize(("engines", "why"), SILENCE.values(), ids=SILENCE)
def test_why_no_engine_answers(engines: Any, why: str) -> None:
    assert answering({"engines": engines}).why == why


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    monkeypatch.setattr(gateway_pods, "LOOKS_S", (0.05,))
    async with world(tmp_path) as made:
        yield made


def ready(up: World) -> tuple[str, str, str]:
    for one in (up.job().get("status") or {}).get("conditions", ()):
        if one["type"] == "Ready":
            return one["status"], one["reason"], one["message"]
    return "", "", ""


async def test_a_job_without_a_gateway_says_what_its_pod_says_and_forgets_it_when_it_is_there(
    up: World,
) -> None:
    await up.gateway_down("shop-gateway-0")
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    labels = {"sandgate.dev/job": "shop", "sandgate.dev/role": "gateway"}
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNBOUND}
    await up.kube.create(
        {"apiVersion": "v1", "kind": "Pod",
         "metadata": {"name": "shop-gateway-0", "namespace": NAMESPACE, "labels": labels},
         "spec": {"containers": []}}
    )  # fmt: skip
    up.kube.pod_status("shop-gateway-0", NAMESPACE, {"phase": "Pending", "conditions": [unscheduled]})
    words = f"no gateway takes sessions: pod shop-gateway-0: Unschedulable: {UNBOUND}"
    await so(lambda: ready(up) == ("False", "NoGateway", words), "the scheduler's words are told")
    assert up.hub is not None
    assert up.hub.health().unready == {"NoGateway": 1, "NoEngine": 0}
    await up.gateway_up("shop-gateway-0")
    await so(lambda: ready(up)[0] == "True", "it is ready")
    assert up.hub.health().unready == {"NoGateway": 0, "NoEngine": 0}
    (run,) = up.hub.runs.values()
    await so(lambda: run.observed.gateway_trouble == "", "what was wrong is forgotten")


async def test_a_job_whose_engine_does_not_answer_says_its_address_and_error(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await so(lambda: ready(up)[0] == "True", "it is ready")
    (engines,) = up.engines.values()
    engines.healthy = False
    words = "no engine answers: http://10.0.0.5:8000: connection refused"
    await so(lambda: ready(up) == ("False", "NoEngine", words), "its address and error are told")
    assert up.hub is not None
    assert up.hub.health().unready == {"NoGateway": 0, "NoEngine": 1}
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(lambda: up.condition("Suspended")[0] == "True", "it is suspended")
    assert up.hub.health().unready == {"NoGateway": 0, "NoEngine": 0}, "nobody waits for engines"
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    engines.healthy = True
    await so(lambda: ready(up)[0] == "True", "it is ready again")
