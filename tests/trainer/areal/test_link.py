"""A rollout worker's link to its run, without AReaL: who waits for a group is told when none will come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.contract.job import Task
from sandgate.trainer.areal.link import Link
from sandgate.trainer.client.fleet import AsyncFleet
from tests.trainer.world import JOB, World


class Over(AsyncFleet):
    """Of a run that is over as soon as it has a task."""

    ended = False

    async def push_tasks(self, tasks: Sequence[Task], *, last: bool = False) -> None:
        await super().push_tasks(tasks, last=last)
        self.ended = True

    def over(self) -> bool:
        return self.ended


@asynccontextmanager
async def run() -> AsyncIterator[AsyncFleet]:
    async with (
        World(1) as world,
        Over({"g0": world.sites["g0"].client()}, job=JOB, clock=world.clock) as fleet,
    ):
        yield fleet
        for client in fleet.clients.values():
            await client.aclose()


async def test_an_episode_whose_run_ends_without_its_group_is_told_so() -> None:
    link = Link("shop", run())
    await asyncio.to_thread(link.open, 0)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable, match="job shop: its run is over"):
                await link.episode("buy", {}, "q0")
    finally:
        await asyncio.to_thread(link.close)
