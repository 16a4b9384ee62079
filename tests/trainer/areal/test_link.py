"""A rollout worker's link to its run, without AReaL: who waits for a group is told when none will come."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Conflict, InvalidBody, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.lease import Lease
from sandgate.contract.names import UID_CHARS_MAX
from sandgate.trainer.areal.link import COMMAND, LOG, Holds, Link, alive, episode_uid, local_run, trainer_name
from sandgate.trainer.client import pushed_groups, streaming
from sandgate.trainer.client.fleet import AsyncFleet, fleet
from sandgate.trainer.client.update_order import Superseded
from sandgate.trainer.testing import gateway
from tests.support import waiting
from tests.trainer.world import JOB, World


class Over(AsyncFleet):
    """Of a run that is over as soon as it has a task."""

    ended = False

    async def push_tasks(self, tasks: Sequence[Task], *, last: bool = False) -> tuple[str, ...]:
        finished = await super().push_tasks(tasks, last=last)
        self.ended = True
        return finished

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
    link = Link("shop", run(), rest_s=0.0)
    await asyncio.to_thread(link.open, 0)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable, match="job shop: its run is over"):
                await link.episode("buy", {}, "q0")
    finally:
        await asyncio.to_thread(link.close)


# -- several workers of one job ---------------------------------------------------------------------------------------


class Queue:
    """One job of an operator: a task that was pushed is a whole group when `ready` says so."""

    def __init__(self) -> None:
        self.whole: deque[str] = deque()
        self.pushed: list[str] = []
        self.acked: list[str] = []
        self.nacked: list[str] = []
        self.leases = 0

    def ready(self) -> None:
        self.whole += self.pushed
        self.pushed = []


class Worker:
    """A fleet of it."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.clients = queue, {"g0": self}
        self.asks = 0

    async def policy_version(self, version: int, update: str = "") -> None:
        """It is told."""

    async def push_tasks(self, tasks: Sequence[Task]) -> None:
        self.queue.pushed += [task.uid for task in tasks]

    async def lease(self, **asked: Any) -> Lease | None:
        self.asks += 1
        if not self.queue.whole:
            return None
        uid = self.queue.whole.popleft()
        self.queue.leases += 1
        return Lease(f"l{self.queue.leases}", 0.0, (uid,), (), job="shop", uid=uid)

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        """It lasts."""

    async def ack(self, lease: Lease) -> None:
        self.queue.acked.append(lease.uid)

    async def nack(self, lease: Lease) -> None:
        self.queue.nacked.append(lease.uid)
        self.queue.whole.append(lease.uid)

    def groups(self) -> Any:
        return streaming.groups(self, ttl_s=300.0, idle_s=None, poll_s=0.01)


@asynccontextmanager
async def workers(
    count: int, *, asked_only: bool = False
) -> AsyncIterator[tuple[Queue, list[Link], list[Worker]]]:
    """In this loop, not in threads of their own."""
    queue = Queue()
    made = [Worker(queue) for _ in range(count)]

    @asynccontextmanager
    async def connection(worker: Worker) -> AsyncIterator[Any]:
        yield worker

    links = [Link("shop", connection(worker), rest_s=0.0, asked_only=asked_only) for worker in made]
    for link in links:
        await link._open(0)
    try:
        yield queue, links, made
    finally:
        for link in links:
            await link._close()
            link.loop.close()


async def test_a_worker_with_nothing_to_wait_for_takes_no_group_of_another() -> None:
    async with workers(2) as (queue, (idle, busy), (of_idle, _)):
        episodes = [
            asyncio.ensure_future(busy._episode(Task(uid=f"q{number}", prompt="buy"))) for number in range(8)
        ]
        await until(lambda: len(queue.pushed) == 8)
        queue.ready()
        async with asyncio.timeout(20):
            await asyncio.gather(*episodes)
        assert sorted(queue.acked) == [f"q{number}" for number in range(8)]
        assert (of_idle.asks, idle.waiting, queue.nacked) == (0, {}, [])


async def test_workers_that_wait_take_each_as_many_groups_as_they_pushed_tasks() -> None:
    async with workers(3) as (queue, links, _):
        episodes = [
            asyncio.ensure_future(link._episode(Task(uid=f"w{number}-{turn}", prompt="buy")))
            for number, link in enumerate(links)
            for turn in range(number + 1)
        ]
        await until(lambda: len(queue.pushed) == 6)
        queue.ready()
        async with asyncio.timeout(20):
            await asyncio.gather(*episodes)
        assert len(queue.acked) == len(set(queue.acked)) == 6


async def test_a_group_that_comes_when_its_episode_gave_up_is_given_back() -> None:
    async with workers(1) as (queue, (link,), (worker,)):
        gave_up = asyncio.ensure_future(link._episode(Task(uid="q0", prompt="buy")))
        await until(lambda: worker.asks > 0)
        gave_up.cancel()
        await asyncio.gather(gave_up, return_exceptions=True)
        queue.ready()
        await until(lambda: queue.nacked == ["q0"])
        assert queue.acked == []
        again = asyncio.ensure_future(link._episode(Task(uid="q1", prompt="buy")))
        async with asyncio.timeout(20):
            await again
        assert queue.acked == ["q0"], "it is the next one's that waits"


@pytest.mark.parametrize("uid", ["q0", "q" * 256])
def test_an_episode_has_a_uid_of_its_own_that_a_gateway_takes(uid: str) -> None:
    first, second = episode_uid(uid), episode_uid(uid)
    assert first != second
    assert first.startswith(uid[:200])
    assert max(len(first), len(second)) <= UID_CHARS_MAX


async def test_a_run_that_ends_at_once_is_told_at_once(tmp_path: Path) -> None:
    """A wrong manifest, as most are at first: nobody waits ten minutes for its gateways."""
    manifest, out = tmp_path / "job.yaml", tmp_path / "out"
    manifest.write_text("apiVersion: sandgate.dev/v1alpha1\nkind: RolloutJob\nmetadata: {name: shop}\n")
    with pytest.raises(Unavailable, match=r"ended at once, with code 2; .*areal-run.log says why"):
        async with local_run(COMMAND, manifest, out, ["http://127.0.0.1:1"]):
            pytest.fail("it has no gateways")
    assert "spec" in (out / LOG).read_text()


async def test_a_job_that_failed_is_told_to_the_episode_that_waits_and_to_the_next() -> None:
    async with workers(1) as (_, (link,), (worker,)):
        waits = asyncio.ensure_future(link._episode(Task(uid="q0", prompt="buy")))
        await until(lambda: worker.asks > 0)
        link.ended(Unavailable("job shop-1 failed: ProgramMissing: agent"))
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable, match="ProgramMissing: agent"):
                await waits
            with pytest.raises(Unavailable, match="ProgramMissing: agent"):
                await link._episode(Task(uid="q1", prompt="buy"))


@pytest.mark.parametrize("asked_only", [False, True])
async def test_what_was_asked_for_before_a_kill_is_trained_on_and_no_part_of_an_evaluation(
    asked_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with workers(1, asked_only=asked_only) as (queue, (link,), _):
        queue.whole.append("left")
        episode = asyncio.ensure_future(link._episode(Task(uid="q0", prompt="buy")))
        await until(lambda: queue.acked == ["left"])
        queue.ready()
        async with asyncio.timeout(20):
            await episode
    assert queue.acked == (["left", "q0"] if asked_only else ["left"])
    assert ("nobody waits for group left" in caplog.text) is asked_only


async def test_an_evaluations_group_that_was_given_up_is_passed_over_and_its_next_is_waited_for() -> None:
    async with workers(1, asked_only=True) as (queue, (link,), (worker,)):
        gave_up = asyncio.ensure_future(link._episode(Task(uid="q0", prompt="buy")))
        await until(lambda: worker.asks > 0)
        gave_up.cancel()
        await asyncio.gather(gave_up, return_exceptions=True)
        queue.ready()
        await until(lambda: queue.acked == ["q0"])
        episode = asyncio.ensure_future(link._episode(Task(uid="q1", prompt="buy")))
        await until(lambda: queue.pushed == ["q1"])
        queue.ready()
        async with asyncio.timeout(20):
            await episode
        assert (queue.acked, queue.nacked, link.waiting) == (["q0", "q1"], [], {})


@pytest.mark.parametrize(
    "error",
    [Conflict("its lease ended"), Unavailable("connection refused")],
    ids=["another worker is given its group", "the gateway is away"],
)
async def test_an_episode_that_gives_up_while_its_group_is_acknowledged_is_not_waited_with(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an idle worker would lease for it for ever."""
    monkeypatch.setattr(pushed_groups, "AGAIN_S", 0.0)
    async with workers(1) as (queue, (link,), (worker,)):
        link.away = True  # held by its queue: it goes on when its gateways are back
        episode = asyncio.ensure_future(link._episode(Task(uid="q0", prompt="buy")))
        refused = asyncio.Event()

        async def lost(lease: Lease) -> None:
            episode.cancel()
            await asyncio.gather(episode, return_exceptions=True)
            refused.set()
            raise error

        worker.ack = lost  # type: ignore[method-assign]
        await until(lambda: queue.pushed == ["q0"])
        queue.ready()
        await asyncio.wait_for(refused.wait(), 20)
        await until(lambda: not link._asked.is_set())
        assert link.waiting == {}


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await waiting.until(holds, what="so", within_s=20.0)


# -- turns that are on hold ----------------------------------------------------------------------------------------


async def test_what_a_killed_trainer_left_on_hold_goes_on_with_the_next() -> None:
    async with gateway(["hello"], job="shop") as running:

        def link() -> Link:
            return Link("shop", fleet({"g0": running.origin}, running.admin_key, job="shop"))

        async def on_hold() -> bool:
            return bool((await running.client.status())["paused"])

        killed, next_one, another = link(), link(), link()
        try:
            await asyncio.to_thread(killed.open, 3)
            await asyncio.to_thread(killed.hold)  # AReaL pauses for its weights, and is killed
            await asyncio.to_thread(next_one.open, 3)
            await asyncio.to_thread(next_one.begin, lambda: True)
            assert await on_hold(), "its engine is paused now, too"
            await asyncio.to_thread(next_one.resume)
            assert not await on_hold()
            await asyncio.to_thread(killed.hold)
            await asyncio.to_thread(another.open, 3)
            await asyncio.to_thread(another.begin, lambda: False)
            assert not await on_hold()
        finally:
            for one in (killed, next_one, another):
                await asyncio.to_thread(one.close)


TRAINERS: dict[str, tuple[str, str]] = {
    "of a run or job of each one's own": ("", ""),
    "of a job that workers share, each trainer with a name": ("trainer-b", "trainer-a"),
}


@pytest.mark.parametrize(("first", "second"), TRAINERS.values(), ids=TRAINERS)
async def test_the_older_of_two_trainers_that_update_at_once_is_refused(first: str, second: str) -> None:
    """It would tell its version for the other's weights, and let turns go on in the middle of its update."""
    async with gateway(["hello"], job="shop") as running:

        def link(trainer: str) -> Link:
            of_job = fleet({"g0": running.origin}, running.admin_key, job="shop")
            return Link("shop", of_job, holds=Holds(own=trainer) if trainer else Holds())

        older, newer = link(first), link(second)
        try:
            for one in (older, newer):
                await asyncio.to_thread(one.open, 3)
            await asyncio.to_thread(older.hold)
            await asyncio.to_thread(newer.hold)
            with pytest.raises(Superseded, match=r"weight update 9: another one began since \(shop\)"):
                await asyncio.to_thread(older.version, 9)
            with pytest.raises(Superseded):
                await asyncio.to_thread(older.resume)
            status = await running.client.status()
            assert (status["policy_version"], status["paused"]) == (3, True)
            await asyncio.to_thread(newer.version, 4)
            await asyncio.to_thread(newer.resume)
            status = await running.client.status()
            assert (status["policy_version"], status["paused"]) == (4, False)
            await asyncio.to_thread(older.hold)  # its next update is the one that began last
            await asyncio.to_thread(older.version, 10)
            await asyncio.to_thread(older.resume)
            status = await running.client.status()
            assert (status["policy_version"], status["paused"]) == (10, False)
        finally:
            await asyncio.to_thread(older.close)
            await asyncio.to_thread(newer.close)


@pytest.mark.parametrize("trainer", ["", "trainer-a"], ids=["without a name", "by the trainer's name"])
async def test_workers_of_one_trainer_that_share_a_job_update_together(trainer: str) -> None:
    """Each in a process of its own; AReaL waits for all before it goes a step further."""
    async with gateway(["hello"], job="shop") as running:
        workers = [
            Link("shop", fleet({"g0": running.origin}, running.admin_key), holds=Holds(own=trainer))
            for _ in range(2)
        ]
        try:
            for worker in workers:
                await asyncio.to_thread(worker.open, 3)
            for version in (4, 5):
                for worker in workers:
                    await asyncio.to_thread(worker.hold)
                for worker in workers:
                    await asyncio.to_thread(worker.version, version)
                for worker in workers:
                    await asyncio.to_thread(worker.resume)
                status = await running.client.status()
                assert (status["policy_version"], status["paused"]) == (version, False)
        finally:
            for worker in workers:
                await asyncio.to_thread(worker.close)


@pytest.mark.parametrize("trainer", ["run 7", "x" * 52, "läufer"])
def test_a_trainers_name_that_no_update_can_have_is_refused(trainer: str) -> None:
    with pytest.raises(InvalidBody, match="trainer: "):
        trainer_name(trainer)


async def test_a_link_says_how_large_its_groups_were_asked_for() -> None:
    async with gateway(["hello"], job="shop") as running:
        link = Link("shop", fleet({"g0": running.origin}, running.admin_key, job="shop"))
        handle = await running.client.create_session(uid="q0", job="shop", group_size=8)
        await asyncio.to_thread(link.open, 0)
        try:
            assert await link.group_size("nobody-knows-it") is None
            assert await link.group_size(handle.session_id) == 8
        finally:
            await asyncio.to_thread(link.close)


class Switch:
    """A gateway, as far as it is on hold; and what it was told, in order."""

    def __init__(self) -> None:
        self.clients = {"g0": self}
        self._paused, self.told = False, [""]
        self.resuming, self.before_resume = threading.Event(), threading.Event()
        self.before_resume.set()

    def on_hold(self) -> bool:
        return self._paused

    async def status(self) -> dict[str, Any]:
        return {"update": ""}

    async def policy_version(self, version: int, update: str = "") -> None:
        """It is told."""

    async def pause(self, update: str = "") -> None:
        self._paused = True
        self.told.append("pause")

    async def resume(self, update: str = "") -> None:
        self.told.append("resume")
        self.resuming.set()
        await asyncio.to_thread(self.before_resume.wait, 20)
        self._paused = False


@pytest.fixture
def switched() -> Iterator[tuple[Switch, list[Link]]]:
    """Three links of one process to one gateway, open."""
    switch, holds = Switch(), Holds()

    @asynccontextmanager
    async def connection() -> AsyncIterator[Any]:
        yield switch

    links = [Link("", connection(), collects=False, holds=holds) for _ in range(3)]
    for link in links:
        link.open(0)
    yield switch, links
    for link in links:
        link.close()


def test_a_link_that_opens_lets_nothing_go_that_another_holds_on_purpose(
    switched: tuple[Switch, list[Link]],
) -> None:
    switch, (first, second, third) = switched
    first.hold()
    second.begin(lambda: False)
    assert switch.on_hold(), "the first one's engine changes its weights"
    third.hold()
    first.resume()
    assert switch.on_hold(), "the third one's does still"
    third.resume()
    assert not switch.on_hold()
    third.hold()
    third.close()
    second.begin(lambda: False)
    assert not switch.on_hold(), "its engine is no more"


def test_an_engine_that_pauses_while_a_link_lets_go_has_the_last_word(
    switched: tuple[Switch, list[Link]],
) -> None:
    switch, (first, second, _) = switched
    switch.resuming.clear()
    switch.before_resume.clear()
    beginning = threading.Thread(target=second.begin, args=(lambda: False,))
    beginning.start()
    assert switch.resuming.wait(20)
    pausing = threading.Thread(target=first.hold)
    pausing.start()
    switch.before_resume.set()
    beginning.join(20)
    pausing.join(20)
    assert switch.told[-2:] == ["resume", "pause"]
    assert switch.on_hold()


async def test_a_job_hears_that_its_trainer_lives_for_as_long_as_the_link_is_open() -> None:
    """Nobody waits for a group: AReaL trains, or writes a checkpoint."""
    async with World(1) as world:
        site = world.sites["g0"]

        async def heard() -> bool:
            return site.seen.count("/v1/heartbeat") >= 3

        link = Link("shop", alive(world.fleet(), 0.01))
        await link._open(0)
        try:
            await waiting.until(heard, what="three heartbeats", within_s=20.0)
        finally:
            await link._close()
            link.loop.close()
