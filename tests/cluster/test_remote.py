"""What a remote AgentSession needs of a real API server: its status, its Secrets, and the memory of done tasks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sandgate.contract.manifest_decoder import encode
from sandgate.contract.names import done_name, remote_keys_name, remote_verifier_name
from sandgate.contract.status import AgentSessionStatus, SessionReason
from sandgate.operator.cluster.object_store import controller, session_seen
from sandgate.operator.cluster.remote_sessions import tell
from sandgate.operator.cluster.session_status import session_status
from sandgate.operator.kubernetes.access import from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.manifests import done_map, remote_secret, remote_verifier_secret
from sandgate.operator.plan.actions import SessionObserved, Told
from tests.cluster.crds import install
from tests.cluster.harness.api import Api
from tests.contract.manifests import put
from tests.operator.manifest_jobs import ENDPOINTS, job

URL = "http://shop-gateway-0.shop-gateway.lab.svc.cluster.local:8000/sessions/laptop/v1"


@pytest.fixture(scope="module")
def namespace(apiserver: Api) -> Iterator[str]:
    install(apiserver)
    with apiserver.namespace("remote") as name:
        yield name


async def test_its_status_and_what_goes_with_it_are_taken(apiserver: Api, namespace: str) -> None:
    body = copy.deepcopy(ENDPOINTS)
    put(body, "metadata.namespace", namespace)
    client = KubeClient(from_kubeconfig([apiserver.kubeconfig]), deadline_s=5.0)
    made = await client.create(body)
    shop = job(body)
    shop = replace(shop, metadata=replace(shop.metadata, namespace=namespace, uid=made["metadata"]["uid"]))
    spec = {"jobName": shop.metadata.name, "taskUid": "elsewhere", "remote": True}
    meta = {"name": "laptop", "namespace": namespace}
    kept = session_seen(
        await client.create(
            {"apiVersion": "sandgate.dev/v1alpha1", "kind": "AgentSession", "metadata": meta, "spec": spec}
        )
    )
    assert kept is not None
    held = await tell(client, namespace, kept, SessionReason.ON_HOLD, "the job is suspended", 1.0)
    assert held is not None
    assert held.told is Told.NOTHING
    assert await tell(client, namespace, held, SessionReason.ON_HOLD, "the job is suspended", 2.0) is None
    seen = SessionObserved(ref=kept.ref, opened_at=3.0, remote=True)
    status = session_status(seen, held.status, 3.0, base_url=URL)
    written = session_seen(
        await client.patch_status("AgentSession", namespace, "laptop", {"status": encode(status)})
    )
    assert written is not None
    assert (written.gateway, written.told) == ("shop-gateway-0", Told.RUNNING)
    orphan = await tell(client, namespace, written, SessionReason.NO_JOB, "it is gone", 4.0)
    assert orphan is not None
    assert (orphan.gateway, orphan.told) == ("", Told.NOTHING)
    assert orphan.status == replace(AgentSessionStatus(), conditions=orphan.status.conditions)
    secret = remote_secret(shop, kept.ref, controller(kept), {"OPENAI_BASE_URL": URL})
    await client.create(secret)
    await client.apply(remote_secret(shop, kept.ref, controller(kept), {"OPENAI_BASE_URL": URL + "x"}))
    await client.create(remote_verifier_secret(shop, kept.ref, controller(kept), b"s" * 32, 9.0))
    for name in (remote_keys_name("laptop"), remote_verifier_name("laptop")):
        assert (await client.get("Secret", namespace, name))["metadata"]["name"] == name
    await client.create(done_map(shop, 0))
    done = done_name(shop.metadata.name, 0)
    for entry in ("a", "b"):
        await client.patch("ConfigMap", namespace, done, {"data": {entry: f"{entry}=1"}})
    assert (await client.get("ConfigMap", namespace, done))["data"] == {"a": "a=1", "b": "b=1"}
    await client.aclose()
