"""Links of a process, without AReaL: one that was lost is made anew, and hears what its engine told meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.lease import Lease
from sandgate.trainer.areal import links
from sandgate.trainer.areal.link import Link
from sandgate.trainer.areal.links import linked
from tests.trainer.areal.test_link import Queue, Worker, until


class Engine:
    """AReaL's, as far as it is followed."""

    def __init__(self) -> None:
        self.now = 3

    def get_version(self) -> int:
        return self.now

    def set_version(self, version: int) -> None:
        self.now = version

    def pause(self) -> None:
        """Nobody asks it whether it is paused."""

    def resume(self) -> None:
        """Nor this."""

    def destroy(self) -> None:
        """Nor this."""


class Gateway(Worker):
    """Whose tasks are whole at once. `gone`: it answers no question for a group."""

    def __init__(self, *, gone: bool = False) -> None:
        super().__init__(Queue())
        self.gone, self.told = gone, list[str]()

    async def push_tasks(self, tasks: Sequence[Task]) -> None:
        await super().push_tasks(tasks)
        self.queue.ready()

    async def lease(self, **asked: Any) -> Lease | None:
        if self.gone:
            raise Unavailable("no gateway answers")
        return await super().lease(**asked)

    async def status(self) -> dict[str, Any]:
        return {"update": ""}

    async def policy_version(self, version: int, update: str = "") -> None:
        self.told.append(f"version {version}")

    async def pause(self, update: str = "") -> None:
        self.told.append("pause")

    async def resume(self, update: str = "") -> None:
        self.told.append("resume")


class Silent(Gateway):
    """No task becomes whole."""

    async def push_tasks(self, tasks: Sequence[Task]) -> None:
        await Worker.push_tasks(self, tasks)


class Job:
    """What `make` of `linked` gives: a link to each of these, in turn."""

    def __init__(self, *gateways: Gateway) -> None:
        self.gateways = iter(gateways)
        self.made: list[Link] = []
        self.engine = Engine()

    def make(self) -> Link:
        link = Link("shop", self._connection(next(self.gateways)), rest_s=0.0)
        self.made.append(link)
        return link

    @asynccontextmanager
    async def _connection(self, gateway: Gateway) -> AsyncIterator[Any]:
        yield gateway

    async def link(self) -> Link:
        return await linked(self.engine, "shop", self.make, 0.0)


@pytest.fixture(autouse=True)
def no_links() -> Iterator[None]:
    yield
    for followed in links._links.values():
        followed.link.close()
    links._links.clear()


async def test_a_link_that_was_lost_is_made_anew() -> None:
    job = Job(Gateway(gone=True), Gateway())
    async with asyncio.timeout(20):
        lost = await job.link()
        with pytest.raises(Unavailable, match="no gateway answers"):
            await lost.episode("buy", {}, "q0")
        link = await job.link()
        assert (link is lost, lost.closed, link.closed) == (False, True, False)
        assert await link.episode("buy", {}, "q1") == ()
        assert await job.link() is link


async def test_one_that_takes_the_place_of_another_hears_what_its_engine_told_meanwhile() -> None:
    gone, back = Gateway(gone=True), Gateway()
    job = Job(gone, back)
    async with asyncio.timeout(20):
        lost = await job.link()
        with pytest.raises(Unavailable):
            await lost.episode("buy", {}, "q0")
        job.engine.pause()
        job.engine.set_version(4)
        before = list(gone.told)
        await job.link()
    assert back.told == ["version 4", "version 4", "pause"], "it is on hold until its engine resumes"
    job.engine.resume()
    job.engine.pause()
    assert back.told[3:] == ["resume", "pause"], "told once, however often the link was made"
    assert gone.told == before, "what is closed is silent"


async def test_one_whose_job_is_over_is_not_made_anew() -> None:
    job = Job(Gateway(gone=True))
    async with asyncio.timeout(20):
        link = await job.link()
        link.loop.run(said(link))
        for _ in range(2):
            with pytest.raises(Unavailable, match="ProgramMissing"):
                await link.episode("buy", {}, "q0")
            assert await job.link() is link


async def said(link: Link) -> None:
    link.ended(Unavailable("ProgramMissing: agent"))


async def test_an_episode_without_a_group_is_told_so_after_a_rest() -> None:
    """AReaL would begin the next at once, for ever."""
    job = Job(Gateway(gone=True))
    now = asyncio.get_running_loop().time
    link = await job.link()
    link.rest_s = 0.2
    for _ in range(2):
        began = now()
        with pytest.raises(Unavailable, match="no g"):
            await link.episode("buy", {}, "q0")
        assert now() - began > 0.19


async def test_there_is_a_rest_where_no_link_can_be_made_too() -> None:
    def make() -> Link:
        raise Forbidden("a key")

    now = asyncio.get_running_loop().time
    began = now()
    with pytest.raises(Forbidden):
        await linked(Engine(), "shop", make, 0.2)
    assert now() - began > 0.19


async def test_an_episode_that_waits_or_rests_when_its_link_is_closed_has_failed_and_is_not_cancelled() -> (
    None
):
    """AReaL takes an error for a rejected episode; a cancellation would end its loop."""
    waits, rests = await Job(Silent()).link(), await Job(Gateway(gone=True)).link()
    for link, so in ((waits, lambda: bool(waits.waiting)), (rests, lambda: rests.lost and not rests.waiting)):
        link.rest_s = 3600.0
        episode = asyncio.ensure_future(link.episode("buy", {}, "q0"))
        await until(so)
        await asyncio.to_thread(link.close)
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable, match="its connection is closed"):
                await episode
            with pytest.raises(Unavailable, match="its connection is closed"):
                await link.episode("buy", {}, "q1")


async def test_an_episode_that_is_cancelled_stays_cancelled() -> None:
    link = await Job(Silent()).link()
    episode = asyncio.ensure_future(link.episode("buy", {}, "q0"))
    await until(lambda: bool(link.waiting))
    episode.cancel()
    await asyncio.to_thread(link.close)
    with pytest.raises(asyncio.CancelledError):
        await episode
