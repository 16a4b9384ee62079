"""Two trainers that update weights at once: the update that began last has gateways and engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from sandgate.contract.errors import Conflict
from sandgate.trainer.client import weight_update
from tests.trainer.updated import Log, Told, update
from tests.trainer.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as found:
        yield found


OLDER: dict[str, tuple[bool, bool]] = {
    "an update that another one overtook labels and lets go on nothing": (True, False),
    "an update that fails after another one began lets nothing go on": (False, False),
    "an update that another one overtook before it loaded asks no engine to": (True, True),
}


@pytest.mark.parametrize(("ends", "loads"), OLDER.values(), ids=OLDER)
async def test_of_two_updates_at_once_the_one_that_began_last_has_the_engines(
    *, ends: bool, loads: bool
) -> None:
    """A trainer that was thought dead, beside the one that was started for it."""
    log, between = Log(), list[str]()

    async def both() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as older:
            async with weight_update.weight_update(log.gateways, 8, engines=log.engines) as newer:
                log.lines.clear()
                if loads:
                    with pytest.raises(weight_update.Superseded, match="/weights/7 is not loaded"):
                        await older.reload("/weights/7")
                await newer.reload("/weights/8")
            between.extend(log.lines)
            if not ends:
                raise ZeroDivisionError

    with pytest.raises(weight_update.Superseded if ends else ZeroDivisionError) as caught:
        await both()
    said = "".join(getattr(caught.value, "__notes__", [])) + str(caught.value)
    assert "two trainers update at once" in said
    assert "g0, g1" in said
    assert log.of("e0") == log.of("e1") == ["reload", "label=8", "reset", "resume"]
    assert log.of("g0") == log.of("g1") == ["version=8", "resume"]
    assert log.lines == between


async def test_an_older_trainers_update_is_refused_by_gateways_themselves(world: World) -> None:
    one, two = world.fleet_of("g0"), world.fleet_of("g0")

    async def both() -> None:
        async with one.weight_update(3), two.weight_update(4):
            pass

    with pytest.raises(weight_update.Superseded):
        await both()
    (client,) = one.clients.values()
    status = await client.status()
    assert (status["policy_version"], status["paused"]) == (4, False)
    older = "000000000001.older"
    for late in (client.pause(older), client.resume(older), client.policy_version(5, update=older)):
        with pytest.raises(Conflict, match="another weight update began"):
            await late
    assert (await client.status())["policy_version"] == 4
    await client.pause()  # by a person: whoever has an update under way may end that
    await client.resume(status["update"])
    assert (await client.status())["paused"] is False


RESTARTED: dict[str, tuple[bool, bool]] = {
    "while the newer one goes on": (False, False),
    "once it is through": (True, False),
    "and whose log was compacted": (True, True),
}


@pytest.mark.parametrize(("through", "compacted"), RESTARTED.values(), ids=RESTARTED)
async def test_the_older_of_two_updates_is_refused_by_a_gateway_that_was_started_anew_between_them(
    world: World, *, through: bool, compacted: bool
) -> None:
    """It would go on under the older one's version, with the other's weights."""
    one, two = world.fleet_of("g0"), world.fleet_of("g0")

    async def older(newer: AsyncExitStack) -> None:
        async with one.weight_update(3):
            await newer.enter_async_context(two.weight_update(4))
            if through:
                await newer.pop_all().aclose()
            if compacted:
                core = world.sites["g0"].core
                assert core is not None
                sessions = core.sessions
                await sessions.store.replace(
                    "", *sessions.process.snapshot(1.0), *sessions.book.snapshot(1.0)
                )
            await world.restart("g0")

    async with AsyncExitStack() as newer:
        with pytest.raises(weight_update.Superseded):
            await older(newer)
    (client,) = two.clients.values()
    status = await client.status()
    assert (status["policy_version"], status["paused"]) == (4, False)


ALONE: dict[str, bool] = {
    "it labels and lets go on nothing": True,
    "it lets nothing go on when its swap fails": False,
}


@pytest.mark.parametrize("ends", ALONE.values(), ids=ALONE)
async def test_a_single_gateways_client_updates_in_the_same_order(world: World, *, ends: bool) -> None:
    one, two = world.admins["g0"], world.fleet_of("g0")

    async def older(newer: AsyncExitStack) -> None:
        async with one.weight_update(3):
            await newer.enter_async_context(two.weight_update(4))
            if not ends:
                raise ZeroDivisionError

    async with AsyncExitStack() as newer:
        with pytest.raises(weight_update.Superseded if ends else ZeroDivisionError) as caught:
            await older(newer)
        said = "".join(getattr(caught.value, "__notes__", [])) + str(caught.value)
        assert "weight update 3: another one began since" in said
        status = await one.status()
        assert (status["policy_version"], status["paused"]) == (0, True)
    async with one.weight_update(5):
        with pytest.raises(Conflict, match="another weight update began"):
            await one.resume("000000000002.older")
    status = await one.status()
    assert (status["policy_version"], status["paused"]) == (5, False)


async def test_an_update_that_is_overtaken_while_caches_are_cleared_lets_no_engine_go_on() -> None:
    log = Log()
    clearing, cleared = asyncio.Event(), asyncio.Event()

    class Slow(Told):
        async def reset_prefix_cache(self) -> None:
            clearing.set()
            await cleared.wait()

    log.engines["e0"] = Slow(log, "e0")
    older = asyncio.ensure_future(update(log))
    await clearing.wait()
    log.begun = "000000000002.newer"
    cleared.set()
    with pytest.raises(weight_update.Superseded):
        await older
    assert "resume" not in "".join(log.lines)


async def test_two_updates_that_begin_at_once_are_ordered_alike_by_all_gateways(world: World) -> None:
    one, two = world.fleet(), world.fleet()
    first, second = (
        {name: fleet.clients[name] for name in names}
        for fleet, names in ((one, ("g0", "g1")), (two, ("g1", "g0")))
    )
    known = [str((await client.status())["update"]) for client in first.values()]
    less, more = (weight_update.update_name(known, own) for own in ("a", "b"))
    await first["g0"].pause(less)
    await second["g1"].pause(more)
    await second["g0"].pause(more)
    with pytest.raises(Conflict, match="another weight update began"):
        await first["g1"].pause(less)
    assert {(await client.status())["update"] for client in second.values()} == {more}
    for client in second.values():
        await client.resume(more)


NAMES = {
    "the first": ([], "000000000001.x"),
    "behind the newest": (["000000000009.b", "000000000010.a", ""], "000000000011.x"),
    "beside what is no name": (["odd"], "000000000001.x"),
    "its own, where that is the newest": (["000000000009.y", "000000000010.x"], "000000000010.x"),
    "behind another one, though it has one": (["000000000010.x", "000000000010.y"], "000000000011.x"),
}


@pytest.mark.parametrize(("known", "name"), NAMES.values(), ids=NAMES)
def test_an_updates_name_is(known: list[str], name: str) -> None:
    assert weight_update.update_name(known, "x") == name
