"""What an operator writes over is its own: a name derived from a job's may be somebody else's object already."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from sandgate.contract.errors import NotFound
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.operator.cluster.provision import Taken, provide
from sandgate.operator.plan.actions import Provided
from sandgate.operator.settings import Settings
from tests.adversary.test_results_always_seal import up as up
from tests.operator.cluster_rig import NAMESPACE, World, manifest
from tests.operator.fake_kube import FakeKube
from tests.operator.test_cluster import is_so, so

DENY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "default-deny-agents", "namespace": NAMESPACE},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}
OURS = {"requests": {"cpu": "1"}}
UID = "uid-of-the-job"


def job(name: str) -> RolloutJob:
    body = manifest("a 1", name=name)
    body["metadata"] |= {"uid": UID, "generation": 1}
    return decode(RolloutJob, body)


def theirs(kind: str, name: str, owner: dict[str, Any] | None) -> dict[str, Any]:
    groups = {
        "NetworkPolicy": "networking.k8s.io/v1",
        "StatefulSet": "apps/v1",
        "PodDisruptionBudget": "policy/v1",
    }
    meta: dict[str, Any] = {"name": name, "namespace": NAMESPACE}
    if owner is not None:
        meta["ownerReferences"] = [owner]
    return {"apiVersion": groups.get(kind, "v1"), "kind": kind, "metadata": meta, "spec": {"mine": True}}


HELM = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-of-web", "controller": True}
NOT_CONTROLLED = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": UID, "controller": False}
OBJECTS = {
    "a policy": ("NetworkPolicy", "shop-agents"),
    "the gateways' policy": ("NetworkPolicy", "shop-gateway"),
    "a set of pods": ("StatefulSet", "shop-gateway"),
    "a service": ("Service", "shop-gateway"),
    "settings": ("ConfigMap", "shop-gateway"),
    "a trainer's key": ("Secret", "shop-trainer"),
    "what signs keys": ("Secret", "shop-signing"),
}


@pytest.mark.parametrize(
    "owner", [None, HELM, NOT_CONTROLLED], ids=["nobody's", "another's", "not controlled"]
)
@pytest.mark.parametrize(("kind", "name"), OBJECTS.values(), ids=OBJECTS)
async def test_what_is_not_the_jobs_own_is_left_alone(
    kind: str, name: str, owner: dict[str, Any] | None
) -> None:
    kube = FakeKube(lambda: 0.0)
    before = await kube.create(theirs(kind, name, owner))
    with pytest.raises(Taken, match=f"{kind} {name} ") as refused:
        await provide(kube, job("shop"), Settings(), Provided.RUNNING, {})
    assert "not of this job" in str(refused.value)
    assert await kube.get(kind, NAMESPACE, name) == before


async def test_a_job_named_like_a_policy_does_not_take_it_over_and_says_so(up: World) -> None:
    before = await up.kube.create(DENY)
    up.operator_up()
    await up.kube.create(manifest("a 1", name="default-deny"))

    def says() -> bool:
        conditions = (up.job("default-deny").get("status") or {}).get("conditions", ())
        (ready,) = [one for one in conditions if one["type"] == "Ready"] or [{"reason": ""}]
        return ready["reason"] == "NameTaken" and "NetworkPolicy default-deny-agents" in ready["message"]

    await so(says, "the job says whose object is in its way")
    assert await up.kube.get("NetworkPolicy", NAMESPACE, "default-deny-agents") == before
    assert not up.kube.named("Pod")


async def test_the_job_goes_on_when_the_object_is_out_of_its_way(up: World) -> None:
    await up.kube.create({**DENY, "metadata": {"name": "shop-agents", "namespace": NAMESPACE}})
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await so(lambda: up.condition("Ready")[1] == "NameTaken", "it waits")
    await up.kube.delete("NetworkPolicy", NAMESPACE, "shop-agents")
    await is_so(up, "Complete")


async def test_a_planted_signing_secret_signs_no_key(up: World) -> None:
    """Whoever may write Secrets beforehand would know what every key of the job is signed with."""
    planted = base64.b64encode(b"00" * 32).decode()
    body = {"apiVersion": "v1", "kind": "Secret", "data": {"secret": planted}}
    await up.kube.create({**body, "metadata": {"name": "mine-signing", "namespace": NAMESPACE}})
    up.operator_up()
    await up.kube.create(manifest("a 1", name="mine"))
    await so(lambda: up.condition("Ready", "mine")[1] == "NameTaken", "it says so")
    with pytest.raises(NotFound):
        await up.kube.get("Secret", NAMESPACE, "mine-trainer")
