"""Groups of tasks that this process pushed, by uid: each is waited for by the batch that pushed it, and by no other."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from sandgate.contract.errors import Conflict, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import Group

log = logging.getLogger(__name__)

PUSH_MAX = 1_000
"""Tasks of one push: a gateway takes 10,000, and a prompt may be large."""
AGAIN_S = 2.0
"""Before gateways that are away, as they may be, are asked again."""
POLL_S = 0.25
"""Between two questions for a group. The trainer waits for it, and one question costs a gateway some microseconds."""


@dataclass(slots=True)
class PushedGroups:
    """Groups that batches wait for. Belongs to one event loop.

    A group is acknowledged as soon as its batch has it: a prompt has another uid each time that it is pushed, so a
    trainer that goes on from a checkpoint asks for its prompts anew, and nobody would ever take this group again."""

    fleet: AsyncFleet
    clock: Callable[[], float]
    waiting: dict[str, asyncio.Future[tuple[Trajectory, ...]]] = field(default_factory=dict)
    progress_at: float = 0.0
    """When a group last came, or was asked for."""
    failed: BaseException | None = None
    """Why no group comes any more."""
    away: bool = False
    """The job is held, or not ready: that no gateway answers ends nothing."""

    async def push(self, tasks: Sequence[Task]) -> list[asyncio.Future[tuple[Trajectory, ...]]]:
        """A future of each task's group, in order. Raises what ended the job, Conflict, Overloaded."""
        if self.failed is not None:
            raise self.failed
        uids = Counter(task.uid for task in tasks)
        for uid, times in uids.items():  # before any of them counts as asked for
            if times > 1 or uid in self.waiting:
                raise Conflict(f"prompt {uid} is asked for twice at once")
        made = [asyncio.get_running_loop().create_future() for _ in tasks]
        self.waiting |= zip(uids, made, strict=True)
        self.progress_at = self.clock()
        try:
            for at in range(0, len(tasks), PUSH_MAX):
                part = tasks[at : at + PUSH_MAX]
                await when_back(partial(self.fleet.push_tasks, part), self._may_be_back)
        except BaseException as error:
            for task in tasks:
                self.waiting.pop(task.uid, None)
            if isinstance(error, Unavailable) and self.failed is not None:
                raise self.failed from None  # it says why
            raise
        return made

    async def group(
        self, uid: str, told: asyncio.Future[tuple[Trajectory, ...]], wait_s: float
    ) -> tuple[Trajectory, ...]:
        """Its rows; none if no session of it counts. A group that is not there when none came for `wait_s` seconds is
        given up, as one that failed. Raises what ended the job."""
        try:
            while True:
                left = self.progress_at + wait_s - self.clock()
                if left <= 0:
                    log.error("prompt %s: its group is given up, as none came for %g s", uid, wait_s)
                    return ()
                done, _ = await asyncio.wait([told], timeout=left)
                if done:
                    return told.result()
        finally:
            self.waiting.pop(uid, None)
            told.cancel()

    def nothing(self, uid: str) -> None:
        """The job says that this group has no row: it will never be leased, or without its name."""
        self._is_there(uid, ())

    def fail(self, error: BaseException) -> None:
        """The job ended: nobody need wait any longer."""
        self.failed = error
        for told in self.waiting.values():
            if not told.done():
                told.set_exception(error)
                told.exception()  # of a trainer that ends nobody asks, and asyncio need not say so

    async def collect(self) -> None:
        """Lease what becomes whole. For ever; the error that ends it goes to all who wait."""
        try:
            await when_back(self._stream, self._may_be_back)
        except BaseException as error:
            known = isinstance(error, Exception)
            self.fail(error if known else Unavailable(f"no groups are collected any more: {error!r}"))
            if not known:
                raise
            return
        self.fail(Unavailable("the job is over, and gives no groups any more"))

    def _may_be_back(self) -> bool:
        return self.away and self.failed is None

    async def _stream(self) -> None:
        """Until the job is over. What was leased when gateways went away is offered again."""
        async with self.fleet.groups(poll_s=POLL_S) as groups:
            async for group in groups:
                await self._take(group)

    async def _take(self, group: Group) -> None:
        try:
            await group.ack()
        except Conflict:  # its lease ended while this process stood still: it comes again
            return
        if group.uid in self.waiting:
            self._is_there(group.uid, group.trajectories)
        elif group.uid:  # or an older gateway's, without a row: a job of this process told `nothing` of it
            log.info("group %s came when nobody waited for it any more", group.uid)

    def _is_there(self, uid: str, rows: tuple[Trajectory, ...]) -> None:
        self.progress_at = self.clock()
        told = self.waiting.get(uid)
        if told is not None and not told.done():
            told.set_result(rows)


async def when_back(ask: Callable[[], Awaitable[object]], may_be: Callable[[], bool]) -> None:
    """Asks gateways until they answer, or as long as they `may_be` away and come back; then raises what they met with:
    of a job that a queue holds there are none."""
    while True:
        try:
            await ask()
            return
        except Unavailable:
            if not may_be():
                raise
        await asyncio.sleep(AGAIN_S)


@asynccontextmanager
async def collecting(fleet: AsyncFleet) -> AsyncIterator[PushedGroups]:
    """The groups that this fleet leases, for as long as the block runs."""
    made = PushedGroups(fleet, asyncio.get_running_loop().time)
    task = asyncio.ensure_future(made.collect())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def reasons_of(groups: Mapping[str, Sequence[Trajectory]]) -> str:
    """Why nothing of these can be trained on, the most frequent first, for the end of an error's text."""
    why = Counter(
        str(row.failure_reason or ("no reward" if row.reward is None else "nothing within the lengths"))
        for rows in groups.values()
        for row in rows
    )
    said = ", ".join(f"{reason}: {count}" for reason, count in why.most_common(5))
    return f" ({said})" if said else "; see the job for why"
