"""Three jobs whose objects are looked at: an engine of its own, pods found by a selector, URLs."""

from __future__ import annotations

from typing import Any

from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.operator.manifests import Json, Settings, engine_objects, gateway_objects
from tests.contract.manifests import GONE, Manifest, spoilt

UID = "0f4f3c1e-6a1b-4f57-9d5e-3f6d1c2b7a90"
SECRET = "5a" * 32
SETTINGS = Settings(operator_namespace="sandgate-system")
IN_CLUSTER = (("metadata.namespace", "rl"), ("metadata.uid", UID))


def manifest(*changes: tuple[str, Any]) -> Manifest:
    """A manifest as the API server has it."""
    return spoilt(*IN_CLUSTER, ("metadata.managedFields", GONE), *changes)


MANAGED = manifest(
    ("metadata.labels", {"sandgate.dev/shard": "blue"}),
    ("spec.model.tokenizer", "tiny"),
    (
        "spec.engine",
        {"managed": {"replicas": 2, "gpus": 2, "args": ["--seed=1"], "env": {"NCCL_DEBUG": "WARN"}}},
    ),
    ("spec.gateway", {"replicas": 2, "journal": {"sqlite": {"storage": "2Gi", "storageClass": "fast"}}}),
)
SELECTED = manifest(
    ("spec.engine", {"selector": {"matchLabels": {"app": "vllm"}, "port": 8080}, "model": "served"}),
    (
        "spec.gateway",
        {
            "beside": "Required",
            "journal": {"postgres": {"secretRef": {"name": "database"}}},
            "template": {
                "metadata": {"annotations": {"prometheus.io/scrape": "true"}},
                "spec": {
                    "nodeSelector": {"pool": "gpu"},
                    "tolerations": [{"key": "team", "value": "rl"}],
                    "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
                    "containers": [
                        {
                            "name": "gateway",
                            "resources": {"limits": {"memory": "8Gi"}},
                            "env": [{"name": "RUST_LOG", "value": "warn"}],
                            "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
                        }
                    ],
                },
            },
        },
    ),
    ("spec.agent.egress", [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}]),
    ("spec.limits.promptTokens", 2048),
    ("spec.limits.responseTokens", 6144),
)
ENDPOINTS = manifest(("spec.agent.isolation", "Off"), ("spec.tasks", {"queue": {"capacity": 500}}))

JOBS = {"managed and sqlite": MANAGED, "selector and postgres": SELECTED, "endpoints": ENDPOINTS}


def job(manifest: Manifest) -> RolloutJob:
    return decode(RolloutJob, manifest)


def objects(made: RolloutJob, *, running: bool = True) -> list[Json]:
    """All objects of a job, its sessions apart."""
    urls = made.spec.engine.endpoints or ()
    found = gateway_objects(made, SETTINGS, engine_urls=urls, secret_hex=SECRET)
    return found + engine_objects(made, SETTINGS, running=running)


def one(found: list[Json], kind: str, name: str = "") -> Json:
    """The object of that kind, and name where there are several."""
    (only,) = [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return only


def pod_specs(found: list[Json]) -> list[Json]:
    """Of everything that is or makes pods."""
    return [
        each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
        for each in found
        if each["kind"] in ("Pod", "StatefulSet", "Deployment")
    ]


def container(made: Json) -> Json:
    """The one container of a StatefulSet, a Deployment."""
    (only,) = made["spec"]["template"]["spec"]["containers"]
    found: Json = only
    return found
