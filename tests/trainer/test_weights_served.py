"""Weight updates over real gateways and engines that are asked over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.journal.memory import MemoryDisk
from sandgate.trainer.client import weight_update
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.fleet import fleet as connected
from sandgate.trainer.client.weight_update import HalfUpdated
from tests.gateway.test_engine_set import server
from tests.gateway.test_labels import Home
from tests.support.gateway import admin_key
from tests.trainer.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as found:
        yield found


async def test_a_gateway_that_is_killed_in_the_middle_is_on_hold_until_the_update_is_made_again(
    world: World,
) -> None:
    fleet = world.fleet()
    with pytest.raises(HalfUpdated) as caught:
        async with fleet.weight_update(1):
            await world.sites["g1"].stop()
    assert sorted(caught.value.missed) == ["g1"]
    assert await fleet.version() == 1, "the weights are the new ones"
    await world.sites["g1"].start()
    found = await fleet.progress()
    assert found.paused == ("g1",), "it was told nothing, and samples nothing"
    async with fleet.weight_update(1):
        pass
    assert (await fleet.progress()).paused == ()
    said = (await fleet.status()).values()
    assert {(one["policy_version"], one["labelled"]) for one in said} == {(1, False)}, (
        "no engine was labelled"
    )


async def test_a_trainer_that_dies_in_the_middle_leaves_agents_on_hold_for_the_next(world: World) -> None:
    for admin in world.admins.values():
        await admin.pause()
    await world.restart("g0")
    nxt = world.fleet()
    assert (await nxt.progress()).paused == ("g0", "g1")
    async with nxt.weight_update(await nxt.version() + 1):
        pass
    assert (await nxt.progress()).paused == ()


async def test_an_update_made_again_brings_back_an_engine_that_restarted(tmp_path: Path) -> None:
    async with server(["done"]) as engine:
        home = Home(tmp_path, MemoryDisk(), (engine,))
        async with (
            home.life() as life,
            connected({"g": "http://g"}, admin_key(), transport=life.asgi()) as fleet,
        ):
            async with fleet.weight_update(1, engines=[engine.url]):
                pass
            assert await life.versions("s1") == {1}
            engine.player.restart()
            assert await fleet.engines_without_weights() == ()
            assert (await life.turn("s2")).status_code == 503
            assert await fleet.engines_without_weights() == (engine.url,)
            async with fleet.weight_update(1, engines=[engine.url]) as update:
                await update.reload("/weights/1")
            assert await life.versions("s3") == {1}
            assert await fleet.engines_without_weights() == ()


async def test_a_version_that_only_some_engines_got_is_never_given_to_other_weights(tmp_path: Path) -> None:
    """Its tokens are told apart from those of the next update, whoever makes it."""
    async with server(["done"]) as engine, AsyncExitStack() as stack:
        home = Home(tmp_path, MemoryDisk(), (engine,))
        life = await stack.enter_async_context(home.life())

        async def trainer() -> AsyncFleet:
            made = connected({"g": "http://g"}, admin_key(), transport=life.asgi())
            return await stack.enter_async_context(made)

        fleet = await trainer()
        async with fleet.weight_update(1, engines=[engine.url]):
            pass

        async def half() -> None:
            async with fleet.weight_update(await fleet.version() + 1, engines=[engine.url]) as update:
                await update.reload("/weights/2")
                raise RuntimeError("another engine has no memory left")

        with pytest.raises(RuntimeError, match="another engine has no memory left"):
            await half()
        assert await life.versions("s1") == {2}
        assert (await life.status())["policy_version"] == 1
        assert await fleet.version() == 2
        assert await (await trainer()).version() == 2, "one that is started anew"
        await stack.aclose()
        life = await stack.enter_async_context(home.life())
        assert await (await trainer()).version() == 2, "and the gateway, too"


async def test_an_engine_that_is_started_anew_within_an_update_is_named_and_not_labelled(
    world: World,
) -> None:
    """It has the weights of its start, and would sample under the new version; the other goes on."""
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        fleet, urls = world.fleet(), [one.url, two.url]
        async with fleet.weight_update(2, engines=urls) as found:
            await found.reload("/weights/2")

        async def half() -> None:
            async with fleet.weight_update(3, engines=urls) as found:
                await found.reload("/weights/3")
                players[1].restart()

        with pytest.raises(HalfUpdated, match="started anew during the update") as caught:
            await half()
        assert list(caught.value.missed) == [two.url]
        assert [player.label for player in players] == ["3", "default"]
        assert [player.paused for player in players] == [False, True]
        async with fleet.weight_update(3, engines=urls) as found:
            await found.reload("/weights/3")
        assert [player.label for player in players] == ["3", "3"]
        assert [player.paused for player in players] == [False, False]


async def test_an_engine_that_the_block_woke_goes_on_with_the_new_label(world: World) -> None:
    """vLLM's /wake_up ends the pause, too; its label says that it is the same process."""
    player = Player(lambda ids, number: [1])
    async with ScriptedServer(player) as one:
        fleet = world.fleet()
        for version in (2, 3):
            async with fleet.weight_update(version, engines=[one.url]) as found:
                await found.reload(f"/weights/{version}")
                player.resume()
        assert (player.label, player.paused) == ("3", False)


LOADS: dict[str, tuple[int, bool]] = {
    "one that refuses has its old weights, and goes on": (400, False),
    "one without the endpoint, too": (404, False),
    "one that failed has lost them, and stays paused": (500, True),
    "so it has behind a proxy": (502, True),
}


@pytest.mark.parametrize(("status", "paused"), LOADS.values(), ids=LOADS)
async def test_an_engine_that_does_not_load(world: World, *, status: int, paused: bool) -> None:
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        two.load_status = status

        async def step() -> None:
            async with world.fleet().weight_update(3, engines=[one.url, two.url]) as found:
                await found.reload("/weights/3")

        with pytest.raises(ExceptionGroup) as caught:
            await step()
        assert ("stays paused" in str(caught.value)) is paused
        assert ("start it anew" in str(caught.value.exceptions[0])) is paused
        assert [player.paused for player in players] == [False, paused]
        assert [player.label for player in players] == ["3", "default"]


async def test_an_engine_that_answers_that_its_cache_is_not_cleared_stays_paused(world: World) -> None:
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        fleet, urls = world.fleet(), [one.url, two.url]

        async def step() -> None:
            async with fleet.weight_update(3, engines=urls) as found:
                await found.reload("/weights/3")

        two.clears = False
        with pytest.raises(HalfUpdated, match="the cache is not cleared"):
            await step()
        assert [player.paused for player in players] == [False, True]
        two.clears = True
        await step()
        assert [player.paused for player in players] == [False, False]


async def test_engines_are_paused_labelled_and_let_go_over_http(world: World) -> None:
    players = [Player(lambda ids, number: [1]) for _ in range(2)]
    async with ScriptedServer(players[0]) as one, ScriptedServer(players[1]) as two:
        fleet = world.fleet()
        async with fleet.weight_update(3, mode="abort", engines=[one.url, two.url]) as found:
            assert [player.paused for player in players] == [True, True]
            await found.reload("/weights/3")
        assert [player.paused for player in players] == [False, False]
        async with weight_update.controls([one.url, two.url]) as controls:
            said = [await control.weight_versions() for control in controls.values()]  # type: ignore[attr-defined]
        assert said == [["3"], ["3"]]
        players[1].pause("keep")  # as a trainer left it that died in its update
        with pytest.raises(ZeroDivisionError):
            async with fleet.weight_update(4, engines=[one.url, two.url]):
                raise ZeroDivisionError
        assert [player.paused for player in players] == [False, True]
        async with fleet.weight_update(3, engines=[one.url, two.url]) as found:
            await found.reload("/weights/3")
        assert [player.paused for player in players] == [False, False]
    assert {one["labelled"] for one in (await fleet.status()).values()} == {True}
    assert fleet.counters.weight_updates == 2
