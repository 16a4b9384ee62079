"""Starts the engine and gateways of a job on this machine, and no agents: the caller runs them and leases groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandgate.contract.job import RolloutJob
from sandgate.contract.keys import Key, Scope, mint
from sandgate.operator.local.progress import Tell
from sandgate.operator.local.stack import absolute, standing


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
    manifest_dir, out = absolute(manifest_dir), absolute(out)
    async with standing(
        job, manifest_dir=manifest_dir, out=out, tell=progress, engine_url=engine_url
    ) as ours:
        secret = bytes.fromhex(ours.folder.secret.read_text().strip())
        key = mint(secret, Key(Scope.TRAINER, job=job.metadata.name))
        yield Served({name: one.origin for name, one in ours.gateways.items()}, key, ours.model.urls)
