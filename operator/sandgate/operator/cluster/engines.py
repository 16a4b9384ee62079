"""Finds the addresses of a job's engines: from the manifest, or from the engines' pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandgate.contract.job import RolloutJob
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.manifests import engine_pods

ENGINES_MAX = 1024
"""As many as a job may name."""


async def engines(kube: Api, job: RolloutJob) -> tuple[list[str], list[Json]]:
    """(base URLs of engines that take turns now, in order; where there are none, the pods that are to be some)."""
    if job.spec.engine.endpoints is not None:
        return list(job.spec.engine.endpoints), []
    found = engine_pods(job)
    if found is None:
        return [], []
    labels, port = found
    wanted = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    pods = await kube.list("Pod", job.metadata.namespace, labels=wanted)
    urls = sorted(filter(None, (pod_url(one, port) for one in pods)))[:ENGINES_MAX]
    return urls, [] if urls else pods


def pod_url(body: Json, port: int) -> str:
    """Of a pod that is ready and stays; empty for any other."""
    status, metadata = body.get("status") or {}, body.get("metadata") or {}
    address = str(status.get("podIP") or "")
    if not address or metadata.get("deletionTimestamp") or not _ready(status):
        return ""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _ready(status: Mapping[str, Any]) -> bool:
    return any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ()
    )
