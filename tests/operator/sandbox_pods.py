"""Sandbox pods of one job, for tests."""

from __future__ import annotations

from typing import Any

from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.manifests.sandbox_pods import PodDefaults, agent_pod, verifier_pod
from tests.contract.manifests import spoilt

Json = Any
SESSION, GROUP = "shop-q1-0123456789ab-2-0", "shop-q1-0123456789ab"
ORIGIN = "http://shop-gateway-0.shop-gateway.team.svc.cluster.local:8000"
OWNER = {
    "apiVersion": "sandgate.dev/v1alpha1",
    "kind": "AgentSession",
    "name": SESSION,
    "uid": "5b1d63a5-5c2c-4ea8-9b3c-6f7f4f0d8a11",
    "controller": True,
    "blockOwnerDeletion": True,
}
LOOK = PodDefaults(
    fetcher_image="sandgate-fetcher:1",
    runtime_class="gvisor",
    resources={"requests": {"cpu": "100m", "memory": "128Mi"}},
    probe=("10.0.0.9:443",),
)
TEMPLATE = "spec.agent.template"
POD = f"{TEMPLATE}.spec"
MAIN = f"{POD}.containers[0]"


def job(*changes: tuple[str, Any]) -> RolloutJob:
    return decode(RolloutJob, spoilt(("metadata.namespace", "team"), *changes))


def args(prompt: Any = "buy 7 kiwi") -> dict[str, Any]:
    return {
        "session": SESSION,
        "group": GROUP,
        "namespace": "team",
        "owner": OWNER,
        "handle": SessionUrls.of(ORIGIN, SESSION),
        "keys_secret": "keys-0-0",
        "task": Task(uid="q1", prompt=prompt, data={"n": 7}),
        "sample_index": 2,
    }


def agent(*changes: tuple[str, Any], prompt: Any = "buy 7 kiwi", look: PodDefaults = LOOK) -> Json:
    return agent_pod(job(*changes), **args(prompt), look=look)


def verifier(
    *changes: tuple[str, Any], result: bytes = b'{"exit_code": 0}', look: PodDefaults = LOOK
) -> Json:
    return verifier_pod(job(*changes), **args(), result=result, look=look)
