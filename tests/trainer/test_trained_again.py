"""A group that a trainer has trained on, and is given again because its lease ended while the trainer stood still."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandgate.trainer.client.fleet import AsyncFleet
from tests.trainer.world import World

TTL_S = 90.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(1) as made:
        await made.roll("g0", "q1")
        yield made


async def offered(fleet: AsyncFleet, *, train: bool = True) -> list[str]:
    """What it is handed out now; `train`: and trains on."""
    found = []
    async for group in fleet.groups(ttl_s=TTL_S, idle_s=0.0):
        found.append(group.uid)
        if train:
            fleet.trained(group)
    return found


async def slept(world: World) -> AsyncFleet:
    """A trainer that has trained on the group, slept, and asked for more."""
    fleet = world.fleet()
    assert await offered(fleet) == ["q1"]
    world.clock.now += TTL_S + 1
    assert await offered(fleet) == [], "not twice to the same weights"
    return fleet


def kill(fleet: AsyncFleet) -> None:
    if fleet.keeper.task is not None:
        fleet.keeper.task.cancel()


async def test_one_that_is_in_no_checkpoint_is_not_acknowledged(world: World) -> None:
    """Whatever the weights have learned from it goes with them."""
    kill(await slept(world))
    assert await offered(world.fleet()) == [], "it is on lease"
    world.clock.now += TTL_S + 1
    assert await offered(world.fleet()) == ["q1"]


async def test_the_next_checkpoint_has_it_and_acknowledges_it(world: World) -> None:
    fleet = await slept(world)
    await fleet.commit(await fleet.checkpoint())
    assert fleet.counters.acked == 1
    kill(fleet)
    world.clock.now += TTL_S + 1
    assert await offered(world.fleet()) == []


async def test_one_that_a_checkpoint_has_is_acknowledged_unseen(world: World) -> None:
    fleet = world.fleet()
    await offered(fleet)
    note = await fleet.checkpoint()
    kill(fleet)
    world.clock.now += TTL_S + 1
    other = world.fleet()
    assert await offered(other, train=False) == ["q1"], "another had it in between, and gave it back"
    kill(other)
    world.clock.now += TTL_S + 1
    again = world.fleet()
    await again.resume_from(note)
    assert await offered(again) == []
    assert again.counters.repeated == 1
    kill(again)
    world.clock.now += TTL_S + 1
    assert await offered(world.fleet()) == []


async def test_one_that_came_again_while_its_checkpoint_was_written_is_acknowledged_by_it(
    world: World,
) -> None:
    fleet = world.fleet()
    assert await offered(fleet) == ["q1"]
    note = await fleet.checkpoint()
    for _ in range(2):
        world.clock.now += TTL_S + 1
        assert await offered(fleet) == [], "not twice to the same weights"
    await fleet.commit(note)
    assert fleet.counters.acked == 1
    kill(fleet)
    world.clock.now += TTL_S + 1
    assert await offered(world.fleet()) == []
