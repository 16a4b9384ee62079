"""Workloads against Kueue's own definitions on a real API server: they are taken, and what their status is told too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.errors import Conflict
from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import PRIORITY_CLASS, QUEUE
from sandgate.operator.kubernetes.access import from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.manifests.workload import ask_of, workload
from sandgate.operator.observed.workload import DIGEST, finished, given_back, told, workload_seen
from tests.cluster.harness.api import Api
from tests.cluster.harness.programs import binary
from tests.operator.manifest_jobs import JOBS, SETTINGS, job
from tests.support.waiting import until_now

Json = dict[str, Any]
NAMESPACE = "kueue-api"
KINDS = ("workloads", "resourceflavors", "workloadpriorityclasses")
FLAVOR = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "any"}}
CLASS = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "high"},
    "value": 7,
    "description": "",
}


@pytest.fixture(scope="module")
def api(apiserver: Api) -> Iterator[Api]:
    """With Kueue's definitions, and no Kueue."""
    files = [str(binary("kueue").parent / "crds" / f"kueue.x-k8s.io_{name}.yaml") for name in KINDS]
    for file in files:
        apiserver.kubectl("apply", "--server-side", "-f", file)
    for name in KINDS:
        path = f"/apis/kueue.x-k8s.io/v1beta2/{name}"
        until_now(lambda path=path: apiserver.rest().answers(path), what=f"{name} are served")  # type: ignore[misc]
    with apiserver.namespace(NAMESPACE):
        yield apiserver
    for file in files:
        apiserver.kubectl("delete", "--ignore-not-found", "-f", file)


@pytest.fixture
async def kube(api: Api) -> AsyncIterator[KubeClient]:
    client = KubeClient(from_kubeconfig([api.kubeconfig]), deadline_s=5.0)
    yield client
    await client.aclose()


def body_of(made: RolloutJob, name: str, *, digest: str = "") -> Json:
    """Its Workload."""
    meta = replace(
        made.metadata, name=name, namespace=NAMESPACE, labels={QUEUE: "team", PRIORITY_CLASS: "high"}
    )
    made = replace(made, metadata=meta)
    ask = ask_of(made, SETTINGS)
    assert ask is not None
    return dict(workload(made, SETTINGS, ask, 7, {DIGEST: digest or ask.digest}))


@pytest.mark.parametrize("number", range(len(JOBS)), ids=list(JOBS))
async def test_a_jobs_workload_is_taken_as_it_is(kube: KubeClient, number: int) -> None:
    body = body_of(job(list(JOBS.values())[number]), f"taken-{number}")
    made = await kube.apply(body)
    again = await kube.apply(body)
    assert made["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    seen = workload_seen(made, {})
    assert seen.counts == {one["name"]: one["count"] for one in body["spec"]["podSets"]}
    assert seen.active
    assert not seen.may_run
    by_name = {one["name"]: one for one in made["spec"]["podSets"]}
    for one in body["spec"]["podSets"]:
        assert contains(by_name[one["name"]], one), "nothing of it is dropped"


def contains(there: Any, said: Any) -> bool:
    if isinstance(said, dict):
        return isinstance(there, dict) and all(
            contains(there.get(name), value) for name, value in said.items()
        )
    if isinstance(said, list):
        return len(there) == len(said) and all(map(contains, there, said))
    return bool(there == said)


async def test_a_workload_that_waits_may_ask_for_something_else(kube: KubeClient) -> None:
    manifests = list(JOBS.values())
    await kube.apply(body_of(job(manifests[0]), "changes"))
    made = await kube.apply(body_of(job(manifests[2]), "changes"))
    assert {one["name"] for one in made["spec"]["podSets"]} == {"gateways", "sandboxes"}


async def test_the_whole_life_of_its_status(kube: KubeClient, api: Api) -> None:
    """As Kueue writes it, and as its job's operator does."""
    made = await kube.apply(body_of(job(list(JOBS.values())[2]), "life"))
    name, counts = made["metadata"]["name"], workload_seen(made, {}).counts
    sets = [{"name": one, "count": count, "flavors": {"cpu": "any"}} for one, count in counts.items()]
    at = "2026-01-01T00:00:00Z"
    admitted = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at}
        for kind in ("QuotaReserved", "Admitted")
    ]
    admission = {"clusterQueue": "q", "podSetAssignments": sets}

    async def write(status: Json, **meta: str) -> Json:
        body = {"metadata": meta, "status": status}
        return dict(await kube.patch_status("Workload", NAMESPACE, name, body))

    flavors = {"any": await kube.create(FLAVOR)}
    assert (await kube.create(CLASS))["value"] == 7
    now = await write({"conditions": admitted, "admission": admission})
    assert workload_seen(now, flavors).may_run
    old = now["metadata"]["resourceVersion"]
    now = await write(told(now, {"sandboxes": 1}, 100.0, ready=True), resourceVersion=old)
    seen = workload_seen(now, flavors)
    assert (seen.may_run, seen.ready, seen.reclaimable) == (True, True, {"sandboxes": 1})
    with pytest.raises(Conflict):
        await write(given_back(now, 200.0), resourceVersion=old)
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": "m",
        "lastTransitionTime": at,
    }
    now = await write({"conditions": [*now["status"]["conditions"], evicted]})
    now = await write(given_back(now, 200.0), resourceVersion=now["metadata"]["resourceVersion"])
    seen = workload_seen(now, flavors)
    assert (seen.reserved, seen.admitted, seen.evicted) == (False, False, "Preempted")
    assert "admission" not in now["status"]
    stopped = await kube.patch("Workload", NAMESPACE, name, {"spec": {"active": False}})
    assert not workload_seen(stopped, flavors).active
    now = await write(finished(stopped, 300.0, "every sample ended", succeeded=True))
    assert workload_seen(now, flavors).finished
    assert await kube.delete("Workload", NAMESPACE, name, uid=now["metadata"]["uid"])
    api.kubectl("delete", "resourceflavor,workloadpriorityclass", "--all")
