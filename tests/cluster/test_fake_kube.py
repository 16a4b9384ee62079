"""The API server in memory, which the driver's tests run on, against a real one: the same table for both."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from sandgate.contract.errors import Conflict, NotFound
from sandgate.operator.kubernetes.access import from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from tests.cluster.harness.api import Api
from tests.operator.fake_kube import FakeKube

Json = Any


@pytest.fixture(scope="module")
def namespace(apiserver: Api) -> Iterator[str]:
    with apiserver.namespace("fake-kube") as name:
        yield name


@pytest.fixture(params=["memory", "real"])
async def kube(request: pytest.FixtureRequest, apiserver: Api) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield FakeKube(time.time)
        return
    client = KubeClient(from_kubeconfig([apiserver.kubeconfig]), deadline_s=5.0)
    yield client
    await client.aclose()


def config(namespace: str, name: str, labels: dict[str, str] | None = None, **data: Any) -> Json:
    meta = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def pod(namespace: str, name: str) -> Json:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    security["seccompProfile"] = {"type": "RuntimeDefault"}
    container = {"name": "main", "image": "none", "securityContext": security}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"set": "pods"}},
        "spec": {"containers": [container], "activeDeadlineSeconds": 900},
    }


def version(body: Json) -> int:
    return int(body["metadata"]["resourceVersion"])


async def test_a_name_is_made_once_and_versions_grow(kube: Any, namespace: str) -> None:
    made = await kube.create(config(namespace, "one", a="1"))
    with pytest.raises(Conflict):
        await kube.create(config(namespace, "one"))
    assert made["metadata"]["uid"]
    changed = await kube.patch("ConfigMap", namespace, "one", {"data": {"b": "2"}})
    assert changed["data"] == {"a": "1", "b": "2"}
    assert version(changed) > version(made)
    same = await kube.patch("ConfigMap", namespace, "one", {"data": {"b": "2"}})
    assert version(same) == version(changed), "what changes nothing is no write"
    gone = await kube.patch("ConfigMap", namespace, "one", {"data": {"b": None}})
    assert gone["data"] == {"a": "1"}


async def test_applying_again_changes_nothing(kube: Any, namespace: str) -> None:
    first = await kube.apply(config(namespace, "applied", a="1"))
    assert version(await kube.apply(config(namespace, "applied", a="1"))) == version(first)


async def test_what_is_not_there(kube: Any, namespace: str) -> None:
    with pytest.raises(NotFound):
        await kube.get("ConfigMap", namespace, "missing")
    with pytest.raises(NotFound):
        await kube.patch("ConfigMap", namespace, "missing", {"data": {}})
    assert await kube.delete("ConfigMap", namespace, "missing") is False


async def test_a_deletion_may_name_the_uid(kube: Any, namespace: str) -> None:
    await kube.create(config(namespace, "mine"))
    with pytest.raises(Conflict):
        await kube.delete("ConfigMap", namespace, "mine", uid="other")
    assert await kube.delete("ConfigMap", namespace, "mine") is True


async def test_lists_and_mass_deletions_go_by_labels(kube: Any, namespace: str) -> None:
    for name, group in (("x", "g1"), ("y", "g2"), ("z", "g3")):
        await kube.create(config(namespace, name, {"set": "many", "group": group}))
    listed = await kube.list("ConfigMap", namespace, labels="set=many,group in (g1,g3)")
    assert [one["metadata"]["name"] for one in listed] == ["x", "z"]
    await kube.delete_many("ConfigMap", namespace, labels="set=many,group in (g1, g2)")
    left = await kube.list_metadata("ConfigMap", namespace, labels="set=many")
    assert [one["metadata"]["name"] for one in left] == ["z"]
    assert all("data" not in one for one in left)
    await kube.delete_many("ConfigMap", namespace, labels="set=many")


async def test_a_pod_is_stopped_by_its_deadline_and_deleted_by_force(kube: Any, namespace: str) -> None:
    made = await kube.create(pod(namespace, "stopped"))
    assert made["status"]["phase"] == "Pending"
    stopped = await kube.patch("Pod", namespace, "stopped", {"spec": {"activeDeadlineSeconds": 1}})
    assert stopped["spec"]["activeDeadlineSeconds"] == 1
    assert await kube.delete("Pod", namespace, "stopped", grace_s=0) is True
    with pytest.raises(NotFound):
        await kube.get("Pod", namespace, "stopped")


async def test_a_status_is_not_written_over_another_version(kube: Any, namespace: str) -> None:
    made = await kube.create(pod(namespace, "versions"))
    old = made["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": old}, "status": {"phase": "Running"}}
    now = await kube.patch_status("Pod", namespace, "versions", body)
    assert now["status"]["phase"] == "Running"
    with pytest.raises(Conflict):
        await kube.patch_status("Pod", namespace, "versions", body | {"status": {"phase": "Failed"}})


async def test_a_whole_status_is_written_to_the_object_with_that_uid_alone(kube: Any, namespace: str) -> None:
    made = await kube.create(pod(namespace, "whole"))
    uid = made["metadata"]["uid"]
    for status in ({"phase": "Pending", "message": "a"}, {"phase": "Pending", "reason": "b"}):
        told = await kube.put_status("Pod", namespace, "whole", status, uid=uid)
        said = {name: told["status"].get(name) for name in ("message", "reason")}
        assert said == {"message": None, "reason": None} | {
            name: value for name, value in status.items() if name != "phase"
        }
    assert await kube.delete("Pod", namespace, "whole", grace_s=0) is True
    with pytest.raises(NotFound):
        await kube.put_status("Pod", namespace, "whole", {"phase": "Failed"}, uid=uid)
    await kube.create(pod(namespace, "whole"))
    with pytest.raises(NotFound, match="another object"):
        await kube.put_status("Pod", namespace, "whole", {"phase": "Failed"}, uid=uid)
    assert (await kube.get("Pod", namespace, "whole"))["status"]["phase"] == "Pending"
