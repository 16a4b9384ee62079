"""A template of a shape that no pod has is refused by its field, with a queue and without; nothing is made of it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest
from sandgate.contract.labels import QUEUE
from sandgate.operator.manifests import check, check_cluster
from tests.contract.manifests import put
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.manifest_jobs import job
from tests.operator.test_cluster import is_so, so

Changes = list[tuple[str, Any]]
TEMPLATE, JUDGE = "spec.agent.template", "spec.reward.verifier.container"
POD = f"{TEMPLATE}.spec"
AGENT = f"{POD}.containers[0]"
ODD: dict[str, tuple[str, Changes]] = {
    "an init container without a name": (
        f"{POD}.initContainers[0].name", [(f"{POD}.initContainers", [{"image": "x"}])],
    ),
    "a side-car without a name": (
        f"{POD}.containers[1].name",
        [(f"{POD}.containers", [{"name": "agent", "image": "agent:1"}, {"image": "b"}])],
    ),
    "init containers that are no list": (f"{POD}.initContainers", [(f"{POD}.initContainers", {"name": "x"})]),
    "an init container that is text": (f"{POD}.initContainers[0]", [(f"{POD}.initContainers", ["x"])]),
    "a deadline that is text": (f"{POD}.activeDeadlineSeconds", [(f"{POD}.activeDeadlineSeconds", "600")]),
    "a deadline of halves": (f"{POD}.activeDeadlineSeconds", [(f"{POD}.activeDeadlineSeconds", 1.5)]),
    "a deadline that is true": (f"{POD}.activeDeadlineSeconds", [(f"{POD}.activeDeadlineSeconds", True)]),
    "tolerations that are text": (f"{POD}.tolerations", [(f"{POD}.tolerations", "x")]),
    "a toleration that is text": (f"{POD}.tolerations[0]", [(f"{POD}.tolerations", ["x"])]),
    "a toleration whose key is a list": (f"{POD}.tolerations[0].key", [(f"{POD}.tolerations", [{"key": []}])]),
    "a volume that is null": (f"{POD}.volumes[0]", [(f"{POD}.volumes", [None])]),
    "volumes that are an object": (f"{POD}.volumes", [(f"{POD}.volumes", {"name": "a"})]),
    "labels that are a list": (f"{TEMPLATE}.metadata.labels", [(f"{TEMPLATE}.metadata", {"labels": ["a"]})]),
    "a label that is a number": (f"{TEMPLATE}.metadata.labels.a", [(f"{TEMPLATE}.metadata", {"labels": {"a": 1}})]),
    "annotations that are text": (f"{TEMPLATE}.metadata.annotations", [(f"{TEMPLATE}.metadata", {"annotations": "x"})]),
    "metadata that is text": (f"{TEMPLATE}.metadata", [(f"{TEMPLATE}.metadata", "x")]),
    "a securityContext that is text": (f"{POD}.securityContext", [(f"{POD}.securityContext", "x")]),
    "an agent's securityContext that is a list": (f"{AGENT}.securityContext", [(f"{AGENT}.securityContext", ["x"])]),
    "capabilities that are a list": (
        f"{AGENT}.securityContext.capabilities", [(f"{AGENT}.securityContext", {"capabilities": ["ALL"]})],
    ),
    "requests that are a list": (f"{AGENT}.resources.requests", [(f"{AGENT}.resources", {"requests": ["cpu"]})]),
    "limits of a side-car that are text": (
        f"{POD}.initContainers[0].resources.limits",
        [(f"{POD}.initContainers", [{"name": "i", "image": "x", "resources": {"limits": "1Gi"}}])],
    ),
    "mounts that are an object": (f"{AGENT}.volumeMounts", [(f"{AGENT}.volumeMounts", {"name": "a"})]),
    "pull secrets that are an object": (f"{POD}.imagePullSecrets", [(f"{POD}.imagePullSecrets", {"name": "x"})]),
    "an affinity that is a list": (f"{POD}.affinity", [(f"{POD}.affinity", ["x"])]),
    "a nodeSelector that is a list": (f"{POD}.nodeSelector", [(f"{POD}.nodeSelector", ["x"])]),
    "a path of the last words that is a number": (
        f"{AGENT}.terminationMessagePath", [(f"{AGENT}.terminationMessagePath", 5)],
    ),
    "a verifier's mount that is text": (f"{JUDGE}.volumeMounts[0]", [(f"{JUDGE}.volumeMounts", ["x"])]),
    "a verifier's requests that are text": (f"{JUDGE}.resources.requests", [(f"{JUDGE}.resources", {"requests": "x"})]),
}  # fmt: skip
FINE: dict[str, Changes] = {
    "null is as good as nothing": [
        (f"{TEMPLATE}.metadata", {"labels": None, "annotations": None}),
        (f"{POD}.initContainers", None),
        (f"{POD}.tolerations", None),
        (f"{POD}.volumes", None),
        (f"{POD}.activeDeadlineSeconds", None),
        (f"{POD}.securityContext", None),
        (f"{AGENT}.resources", {"requests": None}),
    ],
    "fields that nobody here knows": [(f"{POD}.newInKubernetes", [1]), (f"{AGENT}.newThere", {"a": [None]})],
    "the agent's container without a name": [(f"{POD}.containers", [{"image": "agent:1"}])],
    "side-cars and init containers with names": [
        (f"{POD}.initContainers", [{"name": "i", "image": "x", "restartPolicy": "Always"}]),
    ],
}


def odd(changes: Changes) -> dict[str, Any]:
    verifier = {"source": "verifier", "verifier": {"container": {"image": "v:1"}}}
    made: dict[str, Any] = copy.deepcopy(manifest("a 1", reward=verifier))
    for at, value in changes:
        put(made, at, value)
    return made


@pytest.mark.parametrize(("field", "changes"), ODD.values(), ids=ODD)
def test_it_is_refused_by_its_field(field: str, changes: Changes) -> None:
    with pytest.raises(BadManifest) as refused:
        check_cluster(job(odd(changes)))
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


@pytest.mark.parametrize("changes", FINE.values(), ids=FINE)
def test_what_pods_may_have_is_taken(changes: Changes) -> None:
    check_cluster(job(odd(changes)))


@pytest.mark.parametrize("path", check.MAKES)
@pytest.mark.parametrize("error", [KeyError("name"), TypeError("unhashable"), ValueError("x")], ids=repr)
def test_what_nobody_thought_of_is_refused_too(
    path: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(check, "MAKES", {**check.MAKES, path: fails})
    with pytest.raises(BadManifest, match=type(error).__name__) as refused:
        check_cluster(job(odd([])))
    assert refused.value.field == path


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


def failed(up: World) -> str:
    """What the job says that it failed of."""
    for one in (up.job().get("status") or {}).get("conditions", ()):
        if (one["type"], one["status"], one["reason"]) == ("Failed", "True", "BadManifest"):
            return str(one["message"])
    return ""


@pytest.mark.parametrize("queued", [False, True], ids=["a plain job", "a job in a queue"])
@pytest.mark.parametrize(("field", "changes"), ODD.values(), ids=ODD)
async def test_a_job_says_so_at_once(up: World, field: str, changes: Changes, queued: bool) -> None:
    up.settings = replace(up.settings, kueue=queued)
    up.operator_up()
    body = odd(changes)
    body["metadata"]["labels"] = {QUEUE: "team"} if queued else {}
    await up.kube.create(body)
    await so(lambda: failed(up).startswith(f"{field}: "), "the job says its field")
    assert {kind for kind, _ in up.kube.made} <= {"RolloutJob", "Event"}


async def test_a_mistake_of_ours_is_tried_again_with_the_next_news(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that could not be begun is not taken for one that is known."""
    up.operator_up()
    assert up.hub is not None
    begin, fails = up.hub._begin, [RuntimeError("a bug")]

    def once(*args: Any) -> None:
        if fails:
            raise fails.pop()
        begin(*args)

    monkeypatch.setattr(up.hub, "_begin", once)
    await up.kube.create(manifest("a 1"))
    assert not up.hub.runs
    up.hub.saw("RolloutJob", "MODIFIED", up.kube.objects["RolloutJob", NAMESPACE, "shop"])
    await is_so(up, "Complete")
