"""The job that a rollout worker of AReaL has in a cluster: its manifest's, over the worker's own servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sandgate.contract.errors import SandgateError
from sandgate.contract.job import EngineSpec, RolloutJob
from sandgate.operator.local.job import load_job
from sandgate.trainer.areal.link import Link
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.cluster_job import LOOK_S, Standing, applied
from sandgate.trainer.client.pushed_job import served

READY_S = 3600.0
"""Until it is ready: images are pulled, and a queue may hold it."""
LOOKS = 6
"""Within the time of so many, two are made: an API server may be away a while."""


def own_job(manifest: Path, place: ClusterPlace, engines: Sequence[str], *, asked_only: bool = False) -> Link:
    """Not applied before the link is opened; deleted when it is closed. `asked_only`: see Link. Raises BadManifest."""
    job = over(load_job(manifest), engines)
    link: Link

    def ended(error: SandgateError) -> None:
        link.ended(error)

    def stands(now: Standing) -> None:
        link.stands(ready=now.ready)

    of_job = applied(job, place, ready_s=READY_S, ended=ended, stands=stands)
    link = Link(job.metadata.name, of_job, asked_only=asked_only, looks_s=LOOKS * LOOK_S)
    return link


def over(job: RolloutJob, engines: Sequence[str]) -> RolloutJob:
    """The manifest's job over these servers. (pure)"""
    said = job.spec.engine
    engine = EngineSpec(endpoints=tuple(engines), kind=said.kind, logprobs_mode=said.logprobs_mode)
    return served(job, "AReaL", engine)
