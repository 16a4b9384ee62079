"""Twenty ways in which a person's job is wrong: each says its reason where people look, and makes few pods.

The operator and its gateways are real; scheduler, kubelet and the API server's rules are played, in words that real
ones said. tests/cluster/e2e/test_not_ready.py has some of them in a real cluster.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden, InvalidBody, ModelNotServed
from sandgate.contract.labels import AGENT, ENGINE, ROLE
from sandgate.operator.cluster import gateway_pods, pod_events
from sandgate.operator.observed import job as observed_job
from tests.operator.cluster_rig import NAMESPACE, Box, World, hurry, manifest, world
from tests.operator.test_cluster import so

SIZE = 2
RETRIES = 1
TASKS = [f"t{number} kiwi" for number in range(6)]

Json = dict[str, Any]


@dataclass(frozen=True)
class Wrong:
    """What is wrong, and how the world says it."""

    reason: str
    """Where the job stands."""
    words: str
    """A pattern of the message."""
    spec: Json = field(default_factory=dict)
    refuses: Exception | None = None
    """What the API server says of an agent's pod."""
    status: Json | None = None
    """What scheduler or kubelet say of an agent's pod, which never starts."""
    event: tuple[str, str] | None = None
    """An Event of an agent's pod: reason, message."""
    others: Mapping[str, Json] = field(default_factory=dict)
    """Role -> status of a pod that is no agent's, and is in trouble."""
    agent: Callable[[Box], Any] | None = None
    engine: Exception | None = None


def forbidden(words: str) -> Forbidden:
    return Forbidden(f'403: pods "shop-t0-0-0" is forbidden: {words}')


def unscheduled(words: str) -> Json:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    return {"phase": "Pending", "conditions": [said]}


def waits(reason: str, words: str = "", name: str = "agent") -> Json:
    waiting = {"reason": reason, **({"message": words} if words else {})}
    placed = {"type": "PodScheduled", "status": "True"}
    state = {"name": name, "state": {"waiting": waiting}}
    return {"phase": "Pending", "conditions": [placed], "containerStatuses": [state]}


def ended(reason: str, code: int, words: str, name: str = "agent") -> Json:
    state = {"terminated": {"reason": reason, "exitCode": code, "message": words}}
    return {"phase": "Failed", "containerStatuses": [{"name": name, "state": state}]}


def crashes(words: str, name: str) -> Json:
    """It is started again and again."""
    before = {"terminated": {"reason": "Error", "exitCode": 2, "message": words}}
    state = {"name": name, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": before}
    return {"phase": "Running", "containerStatuses": [state]}


def pod(role: str, status: Json) -> Json:
    meta = {"name": f"shop-{role}-0", "namespace": NAMESPACE}
    labels = {"sandgate.dev/job": "shop", ROLE: role}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta | {"labels": labels}, "spec": {"containers": []},
            "status": status}  # fmt: skip


async def imports_nothing(box: Box) -> int:
    box.message = "ModuleNotFoundError: No module named 'openai'"
    return 1


RUNC = 'failed to create containerd task: exec: "agnet": executable file not found in $PATH: unknown'
MANAGED = {"engine": {"kind": "vllm", "managed": {"image": "vllm:1", "gpus": 1}}}
UNPULLED = 'Back-off pulling image "agnet:1": not found'

WRONG: dict[str, Wrong] = {
    "an image that is not there": Wrong(
        "PodsWait", "agent: ImagePullBackOff: .*agnet", status=waits("ImagePullBackOff", UNPULLED)
    ),
    "an image with a name that is none": Wrong(
        "NothingStarts",
        r"no agent of the first 2 started: 2 ImageError: .*InvalidImageName",
        status=waits("InvalidImageName", 'couldn\'t parse image name "Agent:1"'),
    ),
    "an image that takes longer than startSeconds": Wrong(
        "NothingStarts",
        "2 StartTimeout: not started within 4 times startSeconds 3: Pulling: Pulling image",
        spec={"limits": {"sessionSeconds": 60, "startSeconds": 3}},
        status=waits("ContainerCreating"),
        event=("Pulling", 'Pulling image "big:1"'),
    ),
    "a quota without room": Wrong(
        "PodsWait", "exceeded quota: agents", refuses=forbidden("exceeded quota: agents, requested: pods=1")
    ),
    "more than a LimitRange allows": Wrong(
        "PodRefused",
        "maximum cpu usage",
        refuses=forbidden("maximum cpu usage per Container is 1, but limit is 2"),
    ),
    "a limit below its request": Wrong(
        "PodRefused",
        "must be less than or equal to cpu limit",
        refuses=InvalidBody(
            "422: spec.containers[0].resources.requests: must be less than or equal to cpu limit"
        ),
    ),
    "privileged, in a namespace that is restricted": Wrong(
        "PodRefused",
        "violates PodSecurity",
        refuses=forbidden('violates PodSecurity "restricted:latest": privileged'),
    ),
    "a RuntimeClass that is not there": Wrong(
        "PodRefused", 'RuntimeClass "gvsior"', refuses=forbidden('RuntimeClass "gvsior" not found')
    ),
    "a PriorityClass that is not there": Wrong(
        "PodRefused", "no PriorityClass", refuses=forbidden("no PriorityClass with name urgent was found")
    ),
    "a template with a field that pods do not have": Wrong(
        "PodRefused",
        "unknown field",
        refuses=InvalidBody('400: strict decoding error: unknown field "spec.nodename"'),
    ),
    "a node selector that no node has": Wrong(
        "PodsWait",
        "Unschedulable: 0/3 nodes .*node affinity/selector",
        status=unscheduled("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."),
    ),
    "more than any node has": Wrong(
        "PodsWait",
        "Unschedulable: .*Insufficient nvidia.com/gpu",
        status=unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
    ),
    "a PersistentVolumeClaim that is not there": Wrong(
        "PodsWait",
        'Unschedulable: persistentvolumeclaim "data" not found',
        status=unscheduled('persistentvolumeclaim "data" not found'),
    ),
    "a Secret of its environment that is not there": Wrong(
        "PodsWait",
        'CreateContainerConfigError: secret "keys" not found',
        status=waits("CreateContainerConfigError", 'secret "keys" not found'),
    ),
    "a Secret of a volume that is not there": Wrong(
        "PodsWait",
        'FailedMount: .*secret "keys" not found',
        status=waits("ContainerCreating"),
        event=("FailedMount", 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found'),
    ),
    "a command that the image does not have": Wrong(
        "ProgramMissing", "agnet", status=ended("StartError", 128, RUNC)
    ),
    "an agent that cannot import its SDK": Wrong(
        "AgentsFailAlike", "ModuleNotFoundError: No module named 'openai'", agent=imports_nothing
    ),
    "a model that the engine does not serve": Wrong(
        "ModelNotServed",
        "the engine answered 404",
        engine=ModelNotServed("the engine answered 404: The model `shpo` does not exist."),
    ),
    "a tokenizer that is not there": Wrong(
        "NoGateway",
        "pod shop-gateway-0: gateway: exit code 2: error: /models/none",
        others={"gateway": crashes("error: /models/none has no tokenizer.json", "gateway")},
    ),
    "a storage class that is not there": Wrong(
        "NoGateway",
        "pod shop-gateway-0: Unschedulable: .*unbound immediate PersistentVolumeClaims",
        others={"gateway": unscheduled("pod has unbound immediate PersistentVolumeClaims")},
    ),
    "a flag that the engine does not know": Wrong(
        "NoEngine",
        "no engine's pod is ready: pod shop-engine-0: engine: exit code 2: .*unrecognized arguments",
        spec=MANAGED,
        others={ENGINE: crashes("error: unrecognized arguments: --enbale-lora", "engine")},
    ),
    "tasks in a ConfigMap that is not there": Wrong(
        "NoTasks", "ConfigMap .*none", spec={"tasks": {"configMap": {"name": "none"}}}
    ),
    "a field that no job has": Wrong("BadManifest", "groupsize", spec={"groupsize": 4}),
}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    monkeypatch.setattr(gateway_pods, "LOOKS_S", (0.05,))
    monkeypatch.setattr(pod_events, "LOOK_S", 0.05)
    monkeypatch.setattr(pod_events, "AFTER_S", 0.0)
    monkeypatch.setattr(observed_job, "PROOF_S", 5.0)
    async with world(tmp_path, wait=True) as made:
        yield made


@dataclass
class Nodes:
    """Scheduler and kubelets, as far as they matter here: a watcher of the API server."""

    up: World
    wrong: Wrong
    alive: set[str] = field(default_factory=set)
    most: int = 0
    """Samples with pods at once: on a busy machine a new attempt may meet the end of the one before."""

    def __call__(self, kind: str, event: str, body: Json) -> None:
        meta = body["metadata"]
        if kind != "Pod" or meta["labels"].get(ROLE) != AGENT:
            return
        if event == "ADDED":
            self.alive.add(meta["name"])
            self.most = max(self.most, len({name.rpartition("-")[0] for name in self.alive}))
            self._says(body)
            return
        over = event == "DELETED" or (body.get("status") or {}).get("phase") in ("Failed", "Succeeded")
        if not over and body["spec"].get("activeDeadlineSeconds") == 1 and self.wrong.status is not None:
            self._soon(meta["name"], ended("Error", 137, "") | {"reason": "DeadlineExceeded"})
        if over:
            self.alive.discard(meta["name"])

    def _says(self, body: Json) -> None:
        if self.wrong.status is not None:
            self._soon(body["metadata"]["name"], self.wrong.status)
        if self.wrong.event is not None:
            self.told = asyncio.ensure_future(self.up.kube.create(told(body, self.wrong.event)))

    def _soon(self, name: str, status: Json) -> None:
        asyncio.get_running_loop().call_soon(self.up.kube.pod_status, name, NAMESPACE, status)


async def spoil(up: World, wrong: Wrong) -> Nodes:
    """The world as that case has it."""

    def refuse(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod") and wrong.refuses is not None:
            raise wrong.refuses

    async def fails(*args: Any, **more: Any) -> Any:
        assert wrong.engine is not None
        raise wrong.engine

    engine = up.engines["shop-gateway-0"]
    for role, status in wrong.others.items():
        if role == "gateway":
            await up.gateway_down("shop-gateway-0")
        engine.urls = ()
        await up.kube.create(pod(role, status))
        up.kube.pod_status(f"shop-{role}-0", NAMESPACE, status)
    if wrong.engine is not None:
        engine.generate = fails  # type: ignore[method-assign]
    up.agents = [("shop", wrong.agent)] if wrong.agent is not None else []
    up.nodes = wrong.status is None
    up.kube.fail = refuse
    nodes = Nodes(up, wrong)
    up.kube.watchers.append(nodes)
    return nodes


def told(body: Json, event: tuple[str, str]) -> Json:
    name, uid = body["metadata"]["name"], body["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.1", "namespace": NAMESPACE},
            "involvedObject": {"uid": uid}, "type": "Normal" if event[0] == "Pulling" else "Warning",
            "reason": event[0], "message": event[1]}  # fmt: skip


def said(up: World) -> tuple[str, str]:
    """(where the job stands, the words of the condition that says so)."""
    status = up.job().get("status") or {}
    reason = status.get("reason", "")
    of_that = [one["message"] for one in status.get("conditions", ()) if one["reason"] == reason]
    return reason, next(filter(None, of_that), "")


def events(up: World) -> list[tuple[str, str]]:
    found = [up.kube.objects["Event", NAMESPACE, name] for name in up.kube.named("Event")]
    return [(one["reason"], one["message"]) for one in found if one["involvedObject"].get("name") == "shop"]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_wrong_job_says_what_is_wrong_with_it_and_makes_few_pods(up: World, wrong: Wrong) -> None:
    nodes = await spoil(up, wrong)
    up.operator_up()
    spec: Json = {"groupSize": SIZE, "parallelism": 99, "group": {"retry": {"infra": RETRIES}}}
    await up.kube.create(manifest(*TASKS, **{**spec, **wrong.spec}))

    def is_told() -> bool:
        reason, words = said(up)
        if reason != wrong.reason or not re.search(wrong.words, words):
            return False
        return any(why == reason and re.search(wrong.words, text) for why, text in events(up))

    try:
        await so(is_told, f"{wrong.reason} is told, as an Event too", within_s=60.0)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{up.job().get('status')}\n{events(up)}") from None
    assert up.condition("Complete")[0] != "True"
    assert (up.job().get("status") or {}).get("running", 0) == 0
    assert nodes.most <= SIZE, "one group alone was begun"
    made = [name for kind, name in up.kube.made if kind == "Pod" and name.startswith("shop-t")]
    groups = 3 if wrong.reason == "AgentsFailAlike" else 1  # one task may be bad for all its samples
    assert len(made) <= groups * SIZE + RETRIES, made


async def test_an_operator_that_restarts_begins_no_other_group_while_nothing_has_started(up: World) -> None:
    wrong = WRONG["a node selector that no node has"]
    nodes = await spoil(up, wrong)
    up.operator_up()
    await up.kube.create(manifest(*TASKS, groupSize=SIZE, parallelism=99))
    await so(lambda: said(up)[0] == wrong.reason, "it says so")
    await up.operator_down()
    job = up.job()
    job["status"] = {}  # so that what is said next is the new one's
    up.operator_up()
    await so(lambda: said(up)[0] == wrong.reason, "the next one says so too")
    assert (nodes.most, len(up.sessions())) == (SIZE, SIZE)
    assert {one["spec"]["attempt"] for one in up.sessions().values()} == {0}
