"""A RolloutJob that runs on this machine while a trainer trains: it pushes its prompts, and waits for their groups."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from sandgate.contract.errors import Unavailable
from sandgate.contract.job import RolloutJob
from sandgate.operator.local.job import Event, GroupCollected, GroupSettled, JobResult, Problem, run_local
from sandgate.trainer.client.attach import attach
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.pushed_groups import PushedGroups, collecting
from sandgate.trainer.export.arrow import merge_parquet, samples_in_parquet, write_parquet

log = logging.getLogger(__name__)

STOP_S = 20.0
"""For sessions that run when the trainer ends: they are told to stop, and nobody waits for what they say."""
RETIRE_S = 600.0
"""So long after a group was acknowledged its gateway keeps it: nothing of such a run is gone on with, and a training of
weeks would fill memory and disk."""
FOLDER = re.compile(r"\d{3,}")


@asynccontextmanager
async def local_job(job: RolloutJob, *, manifest_dir: Path, out: Path) -> AsyncIterator[PushedGroups]:
    """The job, run in the folder `out`; aborted when the block ends. Raises BadManifest, Unsupported, Unavailable (an
    engine or gateway that does not start) at the start; what ends it later goes to those who wait."""
    abort = asyncio.Event()
    groups: PushedGroups | None = None

    def tell(event: Event) -> None:
        if isinstance(event, Problem):
            log.warning("job %s: %s", job.metadata.name, event.text)
        elif groups is not None and (
            (isinstance(event, GroupSettled) and not event.sessions)
            or (isinstance(event, GroupCollected) and not event.trajectories)
        ):
            groups.nothing(event.uid)

    running = asyncio.ensure_future(
        run_local(
            job,
            manifest_dir=manifest_dir,
            out=out,
            write_groups=write_parquet,
            merge=merge_parquet,
            samples_in=samples_in_parquet,
            progress=tell,
            abort=abort,
            retire_s=RETIRE_S,
        )
    )
    try:
        async with _attached(out, running) as fleet, collecting(fleet) as made:
            groups = made
            running.add_done_callback(lambda done: made.fail(_why(done, out)))
            yield made
    finally:
        abort.set()
        if groups is not None:  # one that still starts looks for no abort, and has nothing that runs
            await asyncio.wait([running], timeout=STOP_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def _attached(out: Path, running: asyncio.Future[JobResult]) -> AsyncIterator[AsyncFleet]:
    """As soon as the run offers its gateways. Raises what ended it before."""
    async with AsyncExitStack() as stack:
        entering = asyncio.ensure_future(stack.enter_async_context(attach(out)))
        ends: list[asyncio.Future[Any]] = [entering, running]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
        if entering.cancelled():
            raise _why(running, out)
        yield entering.result()


def _why(ended: asyncio.Future[JobResult], out: Path) -> BaseException:
    """Of a job that ended, though nobody said that it may."""
    if ended.cancelled():
        return Unavailable("the job was stopped")
    if (error := ended.exception()) is not None:
        return error
    cause = ended.result().cause or "it was stopped"
    return Unavailable(f"the job in {out} is over: {cause}")


def fresh_folder(root: Path) -> Path:
    """The next number below `root`. What an earlier start of the trainer left is no part of this one: its prompts had
    other uids, and are drawn again."""
    root.mkdir(parents=True, exist_ok=True)
    number = max((int(one.name) for one in root.iterdir() if FOLDER.fullmatch(one.name)), default=-1) + 1
    while True:
        with suppress(FileExistsError):
            (root / f"{number:03d}").mkdir()
            return root / f"{number:03d}"
        number += 1
