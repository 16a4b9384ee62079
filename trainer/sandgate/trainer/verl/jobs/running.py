"""The job of a trainer in verl, run while it trains: on this machine, or in a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sandgate.operator.local.job import load_job
from sandgate.trainer.client.cluster_job import cluster_job
from sandgate.trainer.client.local_job import fresh_folder, local_job
from sandgate.trainer.client.pushed_groups import PushedGroups
from sandgate.trainer.verl.jobs.manifest import job_of
from sandgate.trainer.verl.jobs.settings import JobSettings


@asynccontextmanager
async def verl_job(
    settings: JobSettings, endpoints: Sequence[str], *, validate: bool
) -> AsyncIterator[PushedGroups]:
    """Started in a folder of its own, or applied under a name of its own; see `local_job` and `cluster_job`."""
    job = job_of(load_job(settings.manifest), settings, endpoints, validate=validate)
    if settings.cluster is not None:
        async with cluster_job(job, settings.cluster, ready_s=settings.wait_s) as groups:
            yield groups
        return
    out = fresh_folder(settings.out / ("validation" if validate else "train"))
    async with local_job(job, manifest_dir=settings.manifest.parent, out=out) as groups:
        yield groups
