"""What all objects of a job share: metadata, owner, addresses, security contexts. (pure)"""

from __future__ import annotations

import base64
from typing import Any, Final

from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import ENGINE, GATEWAY, JOB, ROLE, SHARD, labels
from sandgate.contract.names import API_VERSION, gateway_name, gateways_name
from sandgate.operator.settings import Settings

Json = dict[str, Any]

HTTP_PORT: Final = 8000
"""Of gateways and managed engines."""
HTTP: Final = "http"
"""Name of that port."""
USER_ID: Final = 65532
"""User and group of our pods: `nonroot` of distroless images; it needs no entry in the image's passwd."""
GPU: Final = "nvidia.com/gpu"
"""Extended resource, and by custom the taint of nodes that have it: of those with engines that are not ours, whose
resource nobody names."""
NODE: Final = "kubernetes.io/hostname"
"""Topology key: one node."""


def owner(job: RolloutJob) -> Json:
    """ownerReference to the RolloutJob: what has it goes when the job goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": RolloutJob.KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(job: RolloutJob, name: str, role: str, **more: str) -> Json:
    """Of an object of the job. `more`: `session`, `group`, as labels."""
    shard = job.metadata.labels.get(SHARD, "")
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job.metadata.name, role, shard=shard, **more),
        "ownerReferences": [owner(job)],
    }


def keep_shard(wanted: Json, found: Json) -> Json:
    """The object as wanted; its pods have the shard's label that they were made with. Who moves a job to another shard
    starts no gateway and no engine anew: turns that run would break."""
    template = wanted["spec"]["template"]
    before = found["spec"]["template"]["metadata"].get("labels") or {}
    kept = {name: value for name, value in template["metadata"]["labels"].items() if name != SHARD}
    kept |= {SHARD: before[SHARD]} if SHARD in before else {}
    meta = template["metadata"] | {"labels": kept}
    return wanted | {"spec": wanted["spec"] | {"template": template | {"metadata": meta}}}


def pods_of(job: RolloutJob, role: str) -> dict[str, str]:
    """Labels that select the job's pods of a role. Selectors are immutable: nothing in here ever changes."""
    return {JOB: job.metadata.name, ROLE: role}


def gateway_pods(job: RolloutJob) -> tuple[dict[str, str], str]:
    """(labels of the gateways' pods, name of the StatefulSet that makes them)."""
    return pods_of(job, GATEWAY), gateways_name(job.metadata.name)


def engine_pods(job: RolloutJob) -> tuple[dict[str, str], int] | None:
    """(labels, port) of the engine's pods in the job's namespace; None: it is given by URLs."""
    if (selector := job.spec.engine.selector) is not None:
        return dict(selector.match_labels), selector.port
    return None if job.spec.engine.managed is None else (pods_of(job, ENGINE), HTTP_PORT)


def service_host(service: str, namespace: str, settings: Settings) -> str:
    """DNS name of a Service."""
    return f"{service}.{namespace}.svc.{settings.cluster_domain}"


def gateway_origin(job_name: str, index: int, namespace: str, settings: Settings) -> str:
    """What gateway `index` is reached by, in the cluster; the same before and after a restart of its pod."""
    host = service_host(gateways_name(job_name), namespace, settings)
    return f"http://{gateway_name(job_name, index)}.{host}:{HTTP_PORT}"


def secret_data(**values: str) -> dict[str, str]:
    """`data` of a Secret. (`stringData` is write-only: server-side apply would own fields that nobody can read.)"""
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def pod_security() -> Json:
    """securityContext of a pod under the Pod Security profile `restricted`."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    """securityContext of a container under the same profile."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def headless(job: RolloutJob, name: str, role: str, *, not_ready: bool) -> Json:
    """A Service that is only names: `not_ready` pods have theirs too."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, name, role),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": not_ready,
            "selector": pods_of(job, role),
            "ports": [{"name": HTTP, "port": HTTP_PORT, "targetPort": HTTP, "protocol": "TCP"}],
        },
    }


def one_at_a_time(job: RolloutJob, name: str, role: str) -> Json:
    """A PodDisruptionBudget: evictions take the next pod only when the one before is back. Pods that do not serve may
    go any time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, name, role),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": pods_of(job, role)},
        },
    }


def probe(path: str, *, period: int, failures: int, timeout: int = 5) -> Json:
    """HTTP on the container's port; seconds."""
    return {
        "httpGet": {"path": path, "port": HTTP},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def gpu_tolerations(job: RolloutJob) -> list[Json]:
    """GPU nodes are tainted so that nothing else lands there; those of parts of GPUs (MIG) as those of whole ones."""
    managed = job.spec.engine.managed
    name = GPU if managed is None else managed.gpu_resource
    keys = (name, f"{name.partition('/')[0]}/gpu") if name else ()
    return [{"key": key, "operator": "Exists"} for key in dict.fromkeys(keys)]


def pull_secrets(settings: Settings) -> list[Json]:
    """imagePullSecrets of gateways and engines."""
    return [{"name": name} for name in settings.pull_secrets]
