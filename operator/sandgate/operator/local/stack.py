"""LocalStack: a run's folder, engine and gateways, which stand for as long as a block runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandgate.contract.attach import RunState
from sandgate.contract.errors import BadManifest
from sandgate.contract.job import RolloutJob, Task
from sandgate.operator.local.engine import RunningEngine, engine
from sandgate.operator.local.folder import Claim, Folder
from sandgate.operator.local.gateways import LocalGateway, gateways
from sandgate.operator.local.preflight import model_folder
from sandgate.operator.local.progress import Tell
from sandgate.operator.local.resuming import Recipe, stands
from sandgate.operator.local.trainers import Desk
from sandgate.sandbox.process import Guard


@dataclass(frozen=True, slots=True)
class LocalStack:
    """All of it answers."""

    folder: Folder
    guard: Guard
    """Ends what this process starts, should it be killed."""
    model: RunningEngine
    gateways: dict[str, LocalGateway]
    """By name."""
    desk: Desk
    """Where trainers find the run."""
    recipe: Recipe
    """What rows are made with."""


@asynccontextmanager
async def standing(
    job: RolloutJob,
    *,
    manifest_dir: Path,
    out: Path,
    tell: Tell,
    engine_url: str | None,
    tasks: Sequence[Task] = (),
    retire_s: float = 0.0,
) -> AsyncIterator[LocalStack]:
    """Started, kept running, stopped. The same `out` again goes on with what is in it. Paths: as `absolute` makes them.
    `tasks`: none where others bring them. `retire_s`: see `run_local`.

    Raises BadManifest (no model folder, an `engine_url` that is none), Unsupported, Conflict (`out` is in use, or holds
    another job, or other rows), Unavailable (no start).
    """
    if (missing := model_folder(job, manifest_dir)) is not None:  # said now, not when an engine has started
        raise BadManifest(missing.text, field=missing.field)
    claim = await asyncio.to_thread(Claim, out, job, manifest_dir, tasks)
    folder = claim.folder
    async with AsyncExitStack() as stack:
        stack.callback(claim.release)
        stack.push_async_callback(asyncio.to_thread, folder.tidy)
        desk = Desk.of(folder, job)
        stack.callback(desk.close)
        guard = Guard()
        stack.callback(guard.close)
        model = await stack.enter_async_context(
            engine(job.spec, folder, manifest_dir, guard, tell, url=engine_url)
        )
        found = await stack.enter_async_context(
            gateways(job, folder, manifest_dir, model.urls, guard, tell, retire_s=retire_s)
        )
        await asyncio.to_thread(stands, out, len(found))
        origins = {name: one.origin for name, one in found.items()}
        desk.say(state=RunState.RUNNING, gateways=origins, engines=model.urls)
        yield LocalStack(folder, guard, model, found, desk, claim.recipe)


def absolute(path: Path) -> Path:
    """Our processes have other working directories. Links stay as they are."""
    return Path(os.path.abspath(path))
