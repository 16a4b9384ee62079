"""AsyncFleet.lease: what a gateway leased whose answer was lost belongs to somebody soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandgate.contract.lease import Lease
from tests.support.gateway import eventually
from tests.trainer.world import World

LOST = ["/v1/leases"] * 2
"""Of a request, and of the one that is sent again."""
TTL_S = 300.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        await made.roll("g0", "p0", size=1)
        yield made


def uids(*leases: Lease | None) -> list[str]:
    return [row.uid for one in leases if one is not None for row in one.trajectories]


async def left(world: World) -> list[str]:
    """What another trainer gets now."""
    other = world.fleet()
    return uids(*[await other.lease(max_groups=9, ttl_s=TTL_S) for _ in world.sites])


ANOTHER: dict[str, tuple[list[str], bool, str]] = {
    # groups of the other gateway, the gateway is away for one more call, the id of the next calls
    "another gateway gave a group under the same id": (["q0"], False, "l-2"),
    "another gateway gave a group, and it is away for a while": (["q0"], True, "l-2"),
    "no gateway gave one, and the caller goes on under its id": ([], False, "l-1"),
    "no gateway gave one, it is away, and the caller goes on under its id": ([], True, "l-1"),
    "no gateway gave one, and the caller takes another id": ([], False, "l-2"),
    "no gateway gave one, and the caller has no id": ([], False, ""),
}


@pytest.mark.parametrize(("others", "away", "then"), ANOTHER.values(), ids=ANOTHER)
async def test_a_group_whose_answer_was_lost_comes_when_its_gateway_is_asked_again(
    world: World, others: list[str], away: bool, then: str
) -> None:
    for uid in others:
        await world.roll("g1", uid, size=1)
    world.sites["g0"].lose += LOST
    fleet = world.fleet()
    first = await fleet.lease(ttl_s=TTL_S, lease_id="l-1" if then else "")
    assert uids(first) == others
    if away:
        world.sites["g0"].cut_off = True
        assert await fleet.lease(ttl_s=TTL_S, lease_id=then) is None
        world.sites["g0"].cut_off = False
    second = await fleet.lease(ttl_s=TTL_S, lease_id=then)
    assert uids(second) == ["p0"]
    for one in (first, second):
        if one is not None:
            await fleet.ack(one)
    await fleet.aclose()
    world.clock.now += 2 * TTL_S
    assert await left(world) == []


async def test_a_gateway_that_stays_away_is_asked_for_nothing_new(world: World) -> None:
    site = world.sites["g0"]
    site.lose += LOST
    fleet = world.fleet()
    assert await fleet.lease(ttl_s=TTL_S) is None
    site.cut_off = True
    for _ in range(3):
        assert await fleet.lease(ttl_s=TTL_S) is None
    site.cut_off = False
    site.seen.clear()
    assert uids(await fleet.lease(ttl_s=TTL_S)) == ["p0"]
    assert [path.rpartition("/")[2] for path in site.seen] == ["nack", "leases"]


@pytest.mark.parametrize("how", ["its answer was lost", "the call was cancelled"])
async def test_a_fleet_that_is_closed_gives_back_a_group_that_it_never_heard_of(
    world: World, how: str
) -> None:
    site, fleet = world.sites["g0"], world.fleet()
    if how == "its answer was lost":
        site.lose += LOST
        assert await fleet.lease(ttl_s=TTL_S) is None
    else:
        site.slow = asyncio.Event()
        site.seen.clear()
        call = asyncio.ensure_future(fleet.lease(ttl_s=TTL_S))
        await eventually(lambda: bool(site.seen) and not site.in_flight, "it leased a group")
        call.cancel()
        await asyncio.wait([call])
        site.slow.set()
    assert await left(world) == []
    await fleet.aclose()
    assert await left(world) == ["p0"]


async def test_of_two_calls_at_once_one_takes_nothing_from_the_other(world: World) -> None:
    """The first one's answer is late; the second finds the same gateway."""
    await world.roll("g0", "p1", size=1)
    site, fleet = world.sites["g0"], world.fleet_of("g0")
    site.slow = asyncio.Event()
    site.seen.clear()
    calls = [asyncio.ensure_future(fleet.lease(ttl_s=TTL_S)) for _ in range(2)]
    await eventually(lambda: len(site.seen) == 2 and not site.in_flight, "both leased a group")
    site.slow.set()
    assert sorted(uids(*await asyncio.gather(*calls))) == ["p0", "p1"]
    assert not any(path.endswith("/nack") for path in site.seen)
