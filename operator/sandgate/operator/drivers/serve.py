"""Engine and gateways of a job on this machine, and nothing else: whoever asks runs the agents, and leases groups."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandgate.contract.job import RolloutJob
from sandgate.contract.keys import Key, Scope, mint
from sandgate.operator.drivers.engine import engine
from sandgate.operator.drivers.folder import Claim
from sandgate.operator.drivers.gateways import gateways
from sandgate.operator.drivers.progress import Tell
from sandgate.sandbox.process import Guard


@dataclass(frozen=True, slots=True)
class Served:
    """What a trainer connects to."""

    origins: dict[str, str]
    """Gateway name -> origin."""
    key: str = field(repr=False)
    """Scope trainer, of this job."""
    engine_urls: tuple[str, ...] = ()


@asynccontextmanager
async def serve_local(
    job: RolloutJob, *, manifest_dir: Path, out: Path, progress: Tell, engine_url: str | None = None
) -> AsyncIterator[Served]:
    """Start them, keep them running, stop them. The same `out` again goes on with the sessions of its journals.

    Raises BadManifest, Unsupported, Conflict (`out` is in use, or another job's), Unavailable (no start).
    """
    manifest_dir, out = (
        _absolute(manifest_dir),
        _absolute(out),
    )  # our processes have other working directories
    claim = await asyncio.to_thread(Claim, out, job)
    async with AsyncExitStack() as stack:
        stack.callback(claim.release)
        stack.push_async_callback(asyncio.to_thread, claim.folder.tidy)
        guard = Guard()
        stack.callback(guard.close)
        model = await stack.enter_async_context(
            engine(job.spec, claim.folder, manifest_dir, guard, progress, url=engine_url)
        )
        found = await stack.enter_async_context(
            gateways(job, claim.folder, manifest_dir, model.urls, guard, progress)
        )
        secret = bytes.fromhex(claim.folder.secret.read_text().strip())
        key = mint(secret, Key(Scope.TRAINER, job=job.metadata.name))
        yield Served({name: one.origin for name, one in found.items()}, key, model.urls)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))
