"""The operator's own client, as its ServiceAccount, does everything that the operator does: the roles suffice."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sandgate.contract import labels
from sandgate.contract.errors import Conflict, Forbidden, NotFound
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import gateways_name, signing_name, verifier_name
from sandgate.contract.status import Condition, ConditionStatus
from sandgate.operator.kubernetes.access import Access, Token
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.kubernetes.kinds import WATCHED
from sandgate.operator.manifests import engine_objects, gateway_objects
from sandgate.operator.manifests.example_session import session_objects
from sandgate.operator.plan.status_events import News
from sandgate.operator.replica.leader_lease import LeaderLease
from sandgate.operator.settings import Settings
from tests.chart.released import Release, fresh, in_force, released
from tests.chart.rendering import render
from tests.chart.test_settings import text_of
from tests.cluster.harness.api import Api
from tests.contract.manifests import spoilt
from tests.support.waiting import until_now


@pytest.fixture(params=["cluster", "namespace"])
def scope(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def jobs(apiserver: Api) -> Iterator[str]:
    """A namespace with jobs, not the operator's."""
    with apiserver.namespace(fresh("rights-jobs")) as namespace:
        yield namespace


@pytest.fixture
def release(apiserver: Api, scope: str, jobs: str) -> Iterator[Release]:
    values = {"scope": scope, "watchNamespaces": [jobs] if scope == "namespace" else []}
    with released(apiserver, fresh("rights"), values) as release:
        until_now(lambda: apiserver.rest().answers(path(jobs)), what="RolloutJobs are served")
        in_force(release, jobs)
        yield release


def path(namespace: str) -> str:
    return f"/apis/sandgate.dev/v1alpha1/namespaces/{namespace}/rolloutjobs"


def kube_of(release: Release) -> KubeClient:
    """As the pod of the Deployment would have it."""
    token = release.api.token(release.namespace, "sandgate-operator")
    tls = ssl.create_default_context(cafile=str(release.api.ca))
    return KubeClient(Access(release.api.url, tls, Token(text=token), release.namespace))


def job_of(release: Release, namespace: str) -> RolloutJob:
    """A job that needs every kind of object, as its user made it."""
    managed = {"image": "engine:1", "replicas": 1}
    manifest = spoilt(("spec.engine", {"managed": managed}))
    body = release.api.rest().create(path(namespace), manifest)
    job = decode(RolloutJob, manifest)
    meta = replace(job.metadata, namespace=namespace, uid=body["metadata"]["uid"])
    return replace(job, metadata=meta)


async def test_a_jobs_whole_life(release: Release, jobs: str) -> None:
    settings = Settings.of(text_of(render()))
    job, kube = job_of(release, jobs), kube_of(release)
    try:
        owned = gateway_objects(job, settings, engine_urls=(), secret_hex="ab" * 32)
        owned += engine_objects(job, settings)
        for body in [*owned, *owned]:  # again: level-triggered
            await kube.apply(body)
        await kube.get("Secret", jobs, signing_name("shop"))
        await kube.get("ConfigMap", jobs, gateways_name("shop"))
        sessions = session_objects(job, settings)
        for body in sessions:
            await kube.create(body)
        session = next(one["metadata"]["name"] for one in sessions if one["kind"] == "AgentSession")
        await kube.patch_status("RolloutJob", jobs, "shop", {"status": {"observedGeneration": 1}})
        whole = {"observedGeneration": 2}
        assert job.metadata.uid
        told = await kube.put_status("RolloutJob", jobs, "shop", whole, uid=job.metadata.uid)
        assert told["status"] == whole
        with pytest.raises(NotFound, match="another object"):
            await kube.put_status("RolloutJob", jobs, "shop", {"observedGeneration": 3}, uid="a-later-one")
        await kube.patch_status("AgentSession", jobs, session, {"status": {"podName": session}})
        gone = Condition(
            type="Failed", status=ConditionStatus.TRUE, reason="AllFailed", message="all 4 failed"
        )
        event = News("Warning", gone).event(jobs, "shop", job.metadata.uid, "2026-01-01T00:00:00Z")
        assert (await kube.create(event))["reason"] == "AllFailed"
        with pytest.raises(Conflict):  # the same news
            await kube.create(event)
        await kube.patch("Pod", jobs, session, {"spec": {"activeDeadlineSeconds": 1}})
        for kind in WATCHED:
            assert await kube.list(kind, jobs)
            assert await kube.list_metadata(kind, jobs)
            assert await kube.serves(kind)
        for kind in ("Pod", "AgentSession"):
            await kube.get(kind, jobs, session)
            await kube.delete_many(kind, jobs, labels=f"{labels.SESSION}={session}")
        assert await kube.delete("Pod", jobs, verifier_name(session), grace_s=0) is False, (
            "it went with the others"
        )
        keys = next(one["metadata"]["name"] for one in sessions if one["kind"] == "Secret")
        assert await kube.delete("Secret", jobs, keys)
        assert await kube.delete("RolloutJob", jobs, "shop", uid=job.metadata.uid)
    finally:
        await kube.aclose()


async def test_the_lease_of_the_chart_is_taken_renewed_and_given_back(release: Release) -> None:
    where = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/sandgate-operator"
    kube, rest = kube_of(release), release.api.rest()
    lease = LeaderLease(kube, release.namespace, "sandgate-operator", "pod-1")
    try:
        await lease.acquire()
        assert rest.get(where)["spec"]["holderIdentity"] == "pod-1"
        await lease.release()
        assert not rest.get(where)["spec"].get("holderIdentity")
        rest.call("DELETE", where)
        await lease.acquire()
        assert rest.get(where)["spec"]["holderIdentity"] == "pod-1", "made anew"
    finally:
        await kube.aclose()


async def test_secrets_and_nodes_are_not_seen(release: Release, jobs: str, scope: str) -> None:
    kube = kube_of(release)
    try:
        with pytest.raises(Forbidden, match="secrets"):
            await kube.list("Secret", jobs)
        with pytest.raises(
            Forbidden, match="deletecollection"
        ):  # its answer has what it deletes, dry run or not
            await kube.delete_many("Secret", jobs, labels="a=b")
        with pytest.raises(Forbidden, match="nodes"):
            await kube.list("Node")
        if scope == "namespace":
            with pytest.raises(Forbidden, match="cluster scope"):
                await kube.list("Pod")
    finally:
        await kube.aclose()
