"""A worker's own job in a cluster, which a queue takes its pods from, and gives them back; without AReaL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import SandgateError, Unavailable
from sandgate.trainer.areal import own_job as module
from sandgate.trainer.areal.link import Link
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.cluster_job import Standing
from tests.support.waiting import until_now
from tests.trainer.verl.jobs import write_job

RUNS = Standing(ready=True, failed=False, held=False, words="")
HELD = Standing(ready=False, failed=False, held=True, words="")


class Gateway:
    """What it was told, in order, while it was there."""

    def __init__(self) -> None:
        self.clients = {"g0": self}
        self.gone = False
        self.told: list[str] = []
        self.while_resuming: Callable[[], None] = lambda: None
        self.gives_up: asyncio.Event | None = None
        self.waits = False

    async def status(self) -> dict[str, Any]:
        if self.gone:
            raise Unavailable("no gateway answers")
        return {"update": ""}

    async def policy_version(self, version: int, update: str = "") -> None:
        self._hear(f"version {version}")

    async def pause(self, update: str = "") -> None:
        if self.gives_up is not None and not self.waits:
            self.waits = True
            await self.gives_up.wait()
            raise Unavailable("no gateway answers")
        self._hear("pause")

    async def resume(self, update: str = "") -> None:
        self.while_resuming()
        self._hear("resume")

    async def give_up(self) -> None:
        assert self.gives_up is not None
        self.gives_up.set()

    def _hear(self, what: str) -> None:
        if self.gone:
            raise Unavailable("no gateway answers")
        self.told.append(what)

    def groups(self) -> Any:
        raise AssertionError("nobody waits for a group")


class Job:
    """An open link to it, and its standing as it is looked at."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gateway = Gateway()

        @asynccontextmanager
        async def applied(
            job: Any, place: Any, *, ended: Any, stands: Any, **_: Any
        ) -> AsyncIterator[Gateway]:
            self._ended, self._stands = ended, stands
            yield self.gateway

        monkeypatch.setattr(module, "applied", applied)
        self.link: Link = module.own_job(write_job(folder), ClusterPlace("lab"), ["http://a"])
        self.link.open(3)
        self.gateway.told.clear()

    def look(self, now: Standing) -> None:
        """And what comes of it is done."""

        async def look() -> None:
            self._stands(now)
            if self.link._catching_up is not None:
                await self.link._catching_up

        self.link.loop.run(look())

    def end(self, error: SandgateError) -> None:
        async def end() -> None:
            self._ended(error)

        self.link.loop.run(end())

    def hold_here(self, raised: list[SandgateError]) -> None:
        try:
            self.link.hold()
        except SandgateError as error:
            raised.append(error)

    def hold(self, *looks: Standing, over: bool = False) -> list[SandgateError]:
        """What it raised. `looks`: that are made meanwhile, the last again and again."""
        raised, left = list[SandgateError](), list(looks)
        thread = threading.Thread(target=self.hold_here, args=(raised,))
        thread.start()
        for _ in range(2000):
            if not thread.is_alive():
                break
            if over:
                self.end(Unavailable("it was deleted"))
            else:
                self.look(left.pop(0) if len(left) > 1 else left[0])
            thread.join(0.01)
        assert not thread.is_alive()
        return raised


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job(tmp_path, monkeypatch)
    yield made
    made.link.close()


def test_a_job_that_is_held_ends_no_training_and_hears_what_it_missed(job: Job) -> None:
    gateway, link = job.gateway, job.link
    gateway.gone = True
    job.look(HELD)
    link.hold()
    link.version(4)
    link.resume()
    link.hold()
    gateway.gone = False
    job.look(RUNS)
    assert (gateway.told, link.away) == (["version 4", "pause"], False)
    link.resume()
    job.look(RUNS)
    assert gateway.told[2:] == ["resume"], "it is up to date"


def test_one_that_is_back_and_does_not_answer_yet_is_told_at_the_next_look(job: Job) -> None:
    gateway, link = job.gateway, job.link
    gateway.gone = True
    job.look(HELD)
    link.version(4)
    job.look(RUNS)
    assert link.away, "its gateways do not answer"
    link.hold()
    gateway.gone = False
    job.look(RUNS)
    assert (gateway.told, link.away) == (["version 4", "pause"], False)


def test_what_changes_while_it_is_told_has_the_last_word(job: Job) -> None:
    gateway, link = job.gateway, job.link
    job.look(HELD)

    def changed() -> None:
        """As by a thread that waits for this loop."""
        link.holds.by.add(id(link))
        link._version = 5

    gateway.while_resuming = changed
    job.look(RUNS)
    assert gateway.told == ["version 3", "resume", "version 5", "pause"]


def test_one_that_is_taken_while_it_is_told_stays_away(job: Job) -> None:
    gateway, link = job.gateway, job.link
    job.look(HELD)
    gateway.while_resuming = lambda: link.stands(ready=False)
    job.look(RUNS)
    assert link.away


def test_a_gateway_whose_pod_was_taken_before_anybody_looked_ends_no_training(job: Job) -> None:
    job.gateway.gone = True
    assert job.hold(RUNS, HELD) == [], "the first look began before"
    assert job.link.away


def test_nor_does_one_that_was_given_back_by_the_time_that_the_training_gives_up(job: Job) -> None:
    gateway, raised = job.gateway, list[SandgateError]()
    gateway.gives_up = asyncio.Event()
    thread = threading.Thread(target=job.hold_here, args=(raised,))
    thread.start()
    until_now(lambda: gateway.waits, what="the pause is on its way")
    job.look(HELD)
    job.look(RUNS)
    job.link.loop.run(gateway.give_up())
    thread.join(20)
    assert (raised, thread.is_alive(), gateway.told) == ([], False, ["version 3", "pause"])


def test_a_gateway_of_a_ready_job_that_does_not_answer_is_told_to_the_training(job: Job) -> None:
    job.gateway.gone = True
    (error,) = job.hold(RUNS)
    assert str(error) == "no gateway answers"


def test_no_look_is_waited_for_once_the_job_is_over(job: Job) -> None:
    job.gateway.gone = True
    (error,) = job.hold(over=True)
    assert str(error) == "no gateway answers"
