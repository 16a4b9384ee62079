"""Finds the addresses of a job's engines: from the manifest, or from the engines' pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sandgate.contract.job import RolloutJob
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.manifests import engine_pods

ENGINES_MAX = 1024
"""As many as a job may name."""


class EnginePods(NamedTuple):
    """What there is of a job's engines."""

    urls: list[str]
    """Of those that take turns now, in order."""
    nodes: dict[str, str]
    """URL -> its pod's node; none of those that the manifest lists."""
    pods: list[Json]
    """Where none takes turns: the pods that are to be some."""


async def engines(kube: Api, job: RolloutJob) -> EnginePods:
    """Looks them up."""
    if job.spec.engine.endpoints is not None:
        return EnginePods(list(job.spec.engine.endpoints), {}, [])
    found = engine_pods(job)
    if found is None:
        return EnginePods([], {}, [])
    labels, port = found
    wanted = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    pods = await kube.list("Pod", job.metadata.namespace, labels=wanted)
    every = {url: _node(one) for one in pods if (url := pod_url(one, port))}
    urls = sorted(every)[:ENGINES_MAX]
    return EnginePods(urls, {url: every[url] for url in urls if every[url]}, [] if urls else pods)


def _node(body: Json) -> str:
    return str((body.get("spec") or {}).get("nodeName") or "")


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
