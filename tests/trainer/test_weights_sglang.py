"""Weight updates of SGLang engines through gateways: what is left when one does not go as it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.gateway.engine.sglang import control
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.weight_update import HalfUpdated
from tests.trainer.made_checkpoint import packed, tensors, write
from tests.trainer.world import World


@pytest.fixture
async def fleet() -> AsyncIterator[AsyncFleet]:
    async with World() as world:
        yield world.fleet()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedSglang]:
    async with ScriptedSglang(Player(lambda ids, number: [1])) as serving:
        yield serving


async def reload(fleet: AsyncFleet, server: ScriptedSglang, version: int, path: str = "") -> None:
    async with fleet.weight_update(version, engines=[server.url], kind="sglang") as found:
        await found.reload(path or f"/weights/{version}")


async def test_new_weights_behind_a_400_are_never_served_under_the_old_label(
    fleet: AsyncFleet, server: ScriptedSglang
) -> None:
    await reload(fleet, server, 1)
    server.load_answer = 400, "Weights were updated, but the cache was not flushed."
    with pytest.raises(ExceptionGroup, match="stays paused"):
        await reload(fleet, server, 2)
    assert (server.player.label, server.player.paused) == ("1", True)
    server.load_answer = None
    await reload(fleet, server, 2)
    assert (server.player.label, server.player.paused) == ("2", False)


async def test_a_folder_that_is_not_there_leaves_the_old_weights_at_work(
    fleet: AsyncFleet, server: ScriptedSglang
) -> None:
    await reload(fleet, server, 1)
    server.load_answer = 400, "Failed to get weights iterator: no such folder."
    with pytest.raises(ExceptionGroup, match="is not loaded"):
        await reload(fleet, server, 2)
    assert (server.player.label, server.player.paused) == ("1", False)


async def test_a_checkpoint_that_lacks_what_the_one_before_had_is_not_loaded(
    fleet: AsyncFleet, server: ScriptedSglang, tmp_path: Path
) -> None:
    """SGLang says where its weights are from."""
    model = tensors({"a": [2], "b": [3]})
    whole = write(tmp_path / "v1", {"model.safetensors": packed(model)})
    part = write(tmp_path / "v2", {"model.safetensors": packed({"a": model["a"]})})
    await reload(fleet, server, 1, str(whole))
    with pytest.raises(InvalidBody, match="it lacks b of 2 tensors"):
        await reload(fleet, server, 2, str(part))
    assert (server.player.label, server.player.paused, server.model) == ("1", False, str(whole))


async def test_an_engine_whose_cache_cannot_be_cleared_goes_on_with_the_old_weights(
    fleet: AsyncFleet, server: ScriptedSglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "WAITS_S", (0.0,))
    server.queued = 100
    with pytest.raises(ExceptionGroup, match="pause"):
        await reload(fleet, server, 2)
    assert (server.player.label, server.player.paused, server.model) == ("default", False, "scripted")


async def test_an_engine_that_another_trainers_update_left_paused_stays_so_until_one_goes_through(
    fleet: AsyncFleet, server: ScriptedSglang
) -> None:
    server.player.pause("keep")
    with pytest.raises(ZeroDivisionError):
        async with fleet.weight_update(2, engines=[server.url], kind="sglang"):
            raise ZeroDivisionError
    assert (server.player.label, server.player.paused) == ("default", True)
    await reload(fleet, server, 2)
    assert (server.player.label, server.player.paused) == ("2", False)


async def test_an_engine_that_is_started_anew_within_an_update_is_named_and_not_labelled(
    fleet: AsyncFleet, server: ScriptedSglang
) -> None:
    await reload(fleet, server, 1)

    async def half() -> None:
        async with fleet.weight_update(2, engines=[server.url], kind="sglang"):
            server.player.restart()

    with pytest.raises(HalfUpdated, match="started anew during the update"):
        await half()
    assert (server.player.label, server.player.paused) == ("default", True)
