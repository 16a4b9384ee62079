"""Renders all objects of a job, and those of one session, for a person to look at. (pure)"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandgate.contract.job import RolloutJob
from sandgate.operator.manifests.base import Json
from sandgate.operator.manifests.check import check_cluster
from sandgate.operator.manifests.engines import engine_objects
from sandgate.operator.manifests.example_session import NO_SECRET, NO_UID, session_objects
from sandgate.operator.manifests.gateways import gateway_objects
from sandgate.operator.manifests.policies import closed_policy
from sandgate.operator.settings import Settings

NOT_SHOWN: Final = "(not shown)"


def example_objects(job: RolloutJob, settings: Settings, *, namespace: str = "default") -> list[Json]:
    """What the operator would make of the job, as of its first session; secret values are left out. `namespace`: where
    the job names none. Raises BadManifest or Unsupported if it cannot run in a cluster."""
    check_cluster(job)
    meta = job.metadata
    job = replace(job, metadata=replace(meta, namespace=meta.namespace or namespace, uid=meta.uid or NO_UID))
    found = [closed_policy(job)]
    found += gateway_objects(job, settings, engine_urls=job.spec.engine.endpoints or (), secret_hex=NO_SECRET)
    found += engine_objects(job, settings)
    found += session_objects(job, settings)
    return [redacted(one) for one in found]


def redacted(one: Json) -> Json:
    """The object; of a Secret only the names in it."""
    if one["kind"] != "Secret":
        return one
    return one | {"data": dict.fromkeys(one["data"], NOT_SHOWN)}
