"""Starts a job's engine and gateways from its manifest, for as long as a trainer needs them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandgate.operator.local.job import Event, load_job
from sandgate.operator.local.serve import serve_local
from sandgate.trainer.client.fleet import AsyncFleet, fleet


@asynccontextmanager
async def local_fleet(
    manifest: str | os.PathLike[str], out: str | os.PathLike[str], *, engine_url: str | None = None
) -> AsyncIterator[AsyncFleet]:
    """The gateways of a RolloutJob, started on this machine with their journals in the folder `out`, before a managed
    engine or those that the manifest names. Agents are not started: give Rollouts an `agent`.

    Raises BadManifest, Unsupported, Conflict (`out` is in use), Unavailable.
    """
    path = Path(manifest)
    job = load_job(path)
    async with (
        serve_local(
            job, manifest_dir=path.parent, out=Path(out), progress=_quiet, engine_url=engine_url
        ) as served,
        fleet(served.origins, served.key, job=job.metadata.name) as found,
    ):
        yield found


def _quiet(event: Event) -> None:
    """What happens stands in `out`/logs."""
