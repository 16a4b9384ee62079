"""The job of a trainer in verl, run on this machine while it trains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sandgate.operator.local.job import load_job
from sandgate.trainer.client.local_job import fresh_folder, local_job
from sandgate.trainer.client.pushed_groups import PushedGroups
from sandgate.trainer.verl.jobs.manifest import job_of
from sandgate.trainer.verl.jobs.settings import JobSettings


@asynccontextmanager
async def verl_job(
    settings: JobSettings, endpoints: Sequence[str], *, validate: bool
) -> AsyncIterator[PushedGroups]:
    """Started in a folder of its own; see `local_job`."""
    job = job_of(load_job(settings.manifest), settings, endpoints, validate=validate)
    out = fresh_folder(settings.out / ("validation" if validate else "train"))
    async with local_job(job, manifest_dir=settings.manifest.parent, out=out) as groups:
        yield groups
