"""What a trainer's client does in the background goes on after an error that nobody foresaw, or says that it ended."""

from __future__ import annotations

import asyncio
import errno
import time

import pytest

from sandgate.contract.errors import Conflict, Unavailable
from sandgate.contract.job import Task
from sandgate.trainer.client import fleet as client_fleet
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.lease_renewal import AT_ONCE, Keeper
from sandgate.trainer.client.pushed_groups import PushedGroups
from tests.support.waiting import until
from tests.trainer.world import JOB, World


class Full:
    """Its disk is full when it is asked for the first time."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        self.asked.append(lease_id)
        if len(self.asked) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_renewal_that_fails_oddly_ends_the_renewal_of_no_other_lease() -> None:
    now = [0.0]
    keeper = Keeper(Full(), lambda: now[0])
    holds = [keeper.hold(name, 30.0, 0.0) for name in ("a", "b")]
    now[0] = 15.0
    assert await keeper.renew_due() is not None
    assert await keeper.renew_due() is not None
    assert [hold.until for hold in holds] == [45.0, 45.0]
    await keeper.aclose()


async def settled() -> None:
    """Whatever can run has run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_lease_that_is_shorter_than_those_before_it_is_renewed_in_its_own_time() -> None:
    now, gateways = [0.0], Away()
    keeper = Keeper(gateways, lambda: now[0])
    held = keeper.hold("long", 300.0, 0.0)
    await settled()
    short = keeper.hold("short", 3.0, 0.0)
    now[0] = 1.5
    async with asyncio.timeout(10):
        await gateways.called.wait()
    await settled()
    assert gateways.asked == ["short"]
    assert (held.until, short.until) == (300.0, 4.5)
    await keeper.aclose()


class Away:
    """A trainer's gateways of which one takes calls and never answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.called = asyncio.Event()

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        self.asked.append(lease_id)
        self.called.set()
        if lease_id.startswith("away"):
            await asyncio.Event().wait()


async def test_a_gateway_that_never_answers_keeps_no_lease_of_another_from_being_renewed() -> None:
    now, gateways = [0.0], Away()
    keeper = Keeper(gateways, lambda: now[0], lambda lease_id: lease_id.split("-")[0])
    lost = [keeper.hold(f"away-{number}", 30.0, 0.0) for number in range(AT_ONCE + 4)]
    held = [keeper.hold(f"well-{number}", 30.0, 0.0) for number in range(AT_ONCE + 4)]
    for round_, now[0] in enumerate((12.0, 24.0, 36.0, 48.0), 1):
        async with asyncio.timeout(10):
            assert await keeper.renew_due(0.05) is not None
        assert {hold.until for hold in held} == {now[0] + 30.0}, round_
    assert len([one for one in gateways.asked if one.startswith("away")]) == AT_ONCE, (
        "none is asked twice at once"
    )
    assert {hold.until for hold in lost} == {30.0}
    await keeper.aclose()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("renew")]


class Beats(AsyncFleet):
    beats = 0
    again: asyncio.Event

    async def heartbeat(self) -> None:
        self.beats += 1
        if self.beats == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.again.set()


async def test_heartbeats_go_on_after_one_that_met_a_full_disk() -> None:
    async with World(1) as world:
        fleet = Beats(world.fleet().clients)
        fleet.again = asyncio.Event()
        async with asyncio.timeout(10), fleet.beating(0.0):
            await fleet.again.wait()


async def test_a_gateway_that_hangs_keeps_no_heartbeat_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_fleet, "BEAT_S", 0.05)
    async with World(2) as world:
        world.sites["g0"].slow = asyncio.Event()

        async def heard() -> bool:
            return world.sites["g1"].seen.count("/v1/heartbeat") >= 3

        async with world.fleet().beating(0.01):
            await until(heard, what="the other hears three", within_s=20)
        await world.fleet().heartbeat()
        world.sites["g1"].cut_off = True
        with pytest.raises(Unavailable):
            await world.fleet().heartbeat()
        world.sites["g0"].slow.set()


def awaited(world: World) -> PushedGroups:
    return PushedGroups(AsyncFleet(world.fleet().clients, job=JOB, clock=world.clock), time.monotonic)


ENDS = {"who collects is cancelled": "collect", "the stream is cancelled": "stream"}


@pytest.mark.parametrize("case", ENDS)
async def test_who_waits_for_a_group_of_verl_is_told_that_nobody_collects(case: str) -> None:
    async with World(1) as world:
        groups = awaited(world)
        collecting = asyncio.ensure_future(groups.collect())
        (told,) = await groups.push([Task(uid="q0", prompt="buy")])
        await world.settle()
        (stream,) = groups.fleet._streams
        assert stream.task is not None
        (collecting if ENDS[case] == "collect" else stream.task).cancel()
        async with asyncio.timeout(10):
            with pytest.raises(Unavailable, match="no groups are collected any more"):
                await groups.group("q0", told, 3600.0)
        await asyncio.gather(collecting, return_exceptions=True)


async def test_a_group_without_a_row_comes_to_the_prompt_that_waits_for_it() -> None:
    """Of a job elsewhere, which tells this process nothing: it would be waited for as long as for one that hangs."""
    async with World(1) as world:
        groups = awaited(world)
        collecting = asyncio.ensure_future(groups.collect())
        told = await groups.push([Task(uid=uid, prompt="buy") for uid in ("q0", "q1")])
        await world.roll("g0", "q1", turns=0)
        await world.roll("g0", "q0")
        async with asyncio.timeout(10):
            assert await groups.group("q1", told[1], 3600.0) == ()
            assert [row.uid for row in await groups.group("q0", told[0], 3600.0)] == ["q0", "q0"]
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


async def test_a_push_that_is_refused_leaves_none_of_its_prompts_asked_for() -> None:
    async with World(1) as world:
        groups = awaited(world)
        tasks = [Task(uid=uid, prompt="buy") for uid in ("q0", "q1", "q1")]
        with pytest.raises(Conflict, match="prompt q1 is asked for twice"):
            await groups.push(tasks)
        assert len(await groups.push(tasks[:2])) == 2
