"""The operator's client against a real API server: every verb, and what it makes of refusals."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from sandgate.contract.errors import Conflict, Forbidden, InvalidBody, NotFound, SandgateError, Unauthorized
from sandgate.operator.kubernetes import client as kube_module
from sandgate.operator.kubernetes.access import Access, Token, from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from tests.cluster.harness.api import Api

Json = dict[str, Any]


@pytest.fixture(scope="module")
def namespace(apiserver: Api) -> Iterator[str]:
    with apiserver.namespace("kube-client") as name:
        yield name


@pytest.fixture
async def kube(apiserver: Api) -> AsyncIterator[KubeClient]:
    client = KubeClient(from_kubeconfig([apiserver.kubeconfig]), deadline_s=5.0)
    yield client
    await client.aclose()


def config(namespace: str, name: str, labels: dict[str, str] | None = None, **data: Any) -> Json:
    meta = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def version(body: Json) -> str:
    return str(body["metadata"]["resourceVersion"])


async def test_applying_what_is_there_writes_nothing(kube: KubeClient, namespace: str) -> None:
    first = await kube.apply(config(namespace, "same", a="1"))
    assert version(await kube.apply(config(namespace, "same", a="1"))) == version(first)
    changed = await kube.apply(config(namespace, "same", b="2"))
    assert changed["data"] == {"b": "2"}, "what is not applied any more is gone"
    assert version(changed) != version(first)


async def test_a_field_of_another_manager_is_a_conflict_unless_forced(
    kube: KubeClient, namespace: str, apiserver: Api
) -> None:
    await kube.apply(config(namespace, "shared", a="ours"))
    apiserver.kubectl(
        "-n", namespace, "patch", "configmap", "shared", "--type=merge", '-p={"data":{"a":"x"}}'
    )
    with pytest.raises(Conflict, match="kubectl"):
        await kube.apply(config(namespace, "shared", a="ours"), force=False)
    assert (await kube.apply(config(namespace, "shared", a="ours")))["data"] == {"a": "ours"}


async def test_a_name_is_created_once(kube: KubeClient, namespace: str) -> None:
    await kube.create(config(namespace, "once"))
    with pytest.raises(Conflict, match="already exists"):
        await kube.create(config(namespace, "once"))


async def test_a_replacement_needs_the_current_version(kube: KubeClient, namespace: str) -> None:
    first = await kube.create(config(namespace, "whole", a="1"))
    assert (await kube.replace({**first, "data": {"b": "2"}}))["data"] == {"b": "2"}
    with pytest.raises(Conflict, match="has been modified"):
        await kube.replace({**first, "data": {"c": "3"}})


async def test_a_patch_merges_and_may_insist_on_a_version(kube: KubeClient, namespace: str) -> None:
    first = await kube.create(config(namespace, "merged", a="1", b="2"))
    patched = await kube.patch("ConfigMap", namespace, "merged", {"data": {"a": None, "c": "3"}})
    assert patched["data"] == {"b": "2", "c": "3"}
    stale = {"metadata": {"resourceVersion": version(first)}, "data": {"d": "4"}}
    with pytest.raises(Conflict):
        await kube.patch("ConfigMap", namespace, "merged", stale)


async def test_a_status_is_patched_apart(kube: KubeClient, namespace: str) -> None:
    meta = {"name": "budget", "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta}
    await kube.apply({**body, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}})
    change = {"spec": {"minAvailable": 7}, "status": {"expectedPods": 3, "observedGeneration": 1}}
    told = await kube.patch_status("PodDisruptionBudget", namespace, "budget", change)
    assert (told["status"]["expectedPods"], told["spec"]["minAvailable"]) == (3, 1)


async def test_what_is_gone_is_no_error_and_another_of_the_name_stays(
    kube: KubeClient, namespace: str
) -> None:
    first = await kube.create(config(namespace, "short"))
    uid = first["metadata"]["uid"]
    assert await kube.delete("ConfigMap", namespace, "short", uid=uid, grace_s=0) is True
    assert await kube.delete("ConfigMap", namespace, "short", uid=uid) is False
    await kube.create(config(namespace, "short"))
    with pytest.raises(Conflict, match="recreated"):
        await kube.delete("ConfigMap", namespace, "short", uid=uid)
    assert await kube.get("ConfigMap", namespace, "short")


async def test_many_are_deleted_by_their_labels_and_never_all(kube: KubeClient, namespace: str) -> None:
    for name in "abc":
        await kube.create(config(namespace, f"many-{name}", {"batch": name}))
    await kube.delete_many("ConfigMap", namespace, labels="batch in (a,c)")
    left = await kube.list("ConfigMap", namespace, labels="batch")
    assert [one["metadata"]["name"] for one in left] == ["many-b"]
    with pytest.raises(ValueError, match="selector"):
        await kube.delete_many("ConfigMap", namespace, labels="")


async def test_nothing_is_found_where_nothing_is(kube: KubeClient, namespace: str) -> None:
    with pytest.raises(NotFound, match='configmaps "none" not found'):
        await kube.get("ConfigMap", namespace, "none")
    assert await kube.list("ConfigMap", "no-such-namespace") == []
    assert await kube.list_metadata("ConfigMap", "no-such-namespace") == []


async def test_lists_are_whole_in_chunks_and_say_their_kind(
    kube: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_module, "LIST_CHUNK", 2)
    names = [f"chunk-{number}" for number in range(5)]
    for name in names:
        await kube.create(config(namespace, name, {"chunked": "yes"}))
    found = await kube.list("ConfigMap", labels="chunked=yes")
    assert [one["metadata"]["name"] for one in found] == names
    assert {(one["apiVersion"], one["kind"]) for one in found} == {("v1", "ConfigMap")}
    some = await kube.list("ConfigMap", labels="chunked=yes", chunks=2)
    assert [one["metadata"]["name"] for one in some] == names[:4]
    slim = await kube.list_metadata("ConfigMap", namespace, labels="chunked=yes")
    assert [one["metadata"]["name"] for one in slim] == names
    assert not any("data" in one for one in slim)


async def test_events_of_one_reason_are_listed(kube: KubeClient, namespace: str) -> None:
    """What many pods wait for is asked so (`cluster.pod_events`)."""
    for reason in ("Pulling", "FailedMount"):
        await kube.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"p.{reason.lower()}", "namespace": namespace},
                "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "p", "uid": "u"},
                "reason": reason,
            }
        )
    found = await kube.list("Event", namespace, fields="reason=Pulling", chunks=1)
    assert [(one["reason"], one["involvedObject"]["uid"]) for one in found] == [("Pulling", "u")]


async def test_builtin_kinds_are_served(kube: KubeClient) -> None:
    assert await kube.serves("Lease")
    assert await kube.serves("Pod")


REFUSED = {
    "an unknown field is named, when applied": (
        "apply", {"data": {}, "dta": {}}, InvalidBody, "dta",
    ),
    "an unknown field is named, when created": (
        "create", {"data": {}, "dta": {}}, InvalidBody, "dta",
    ),
    "a field of the wrong type is named": ("apply", {"data": {"a": 1}}, InvalidBody, "data.a"),
    "a value out of bounds is named": ("create", {"data": {"no/key": "x"}}, InvalidBody, "data[no/key]"),
}  # fmt: skip


@pytest.mark.parametrize(("verb", "content", "error", "field"), REFUSED.values(), ids=REFUSED)
async def test_refused(
    kube: KubeClient, namespace: str, verb: str, content: Json, error: type[SandgateError], field: str
) -> None:
    calls: list[str] = []
    kube.observe = lambda verb, kind, code, seconds: calls.append(code)
    body = {**config(namespace, "refused"), **content}
    with pytest.raises(error) as refused:
        await getattr(kube, verb)(body)
    assert refused.value.field == field  # type: ignore[attr-defined]
    assert len(calls) == 1, "no repetition mends it"


async def test_without_rights_it_is_forbidden_and_without_a_good_token_unauthorized(
    apiserver: Api, namespace: str
) -> None:
    tls = ssl.create_default_context(cafile=str(apiserver.ca))
    nobody = KubeClient(Access(apiserver.url, tls, Token(text=apiserver.token(namespace, "default"))))
    with pytest.raises(Forbidden, match="system:serviceaccount:kube-client:default"):
        await nobody.list("Pod", namespace)
    await nobody.aclose()
    liar = KubeClient(Access(apiserver.url, tls, Token(text="not-a-token")))
    with pytest.raises(Unauthorized):
        await liar.list("Pod", namespace)
    await liar.aclose()
