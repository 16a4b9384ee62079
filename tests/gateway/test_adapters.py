"""A gateway that was told of an adapter: durable with its version, and refused where no engine could serve it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandgate.contract.errors import Unsupported
from sandgate.gateway.journal.memory import MemoryDisk
from tests.gateway.test_engine_set import server
from tests.gateway.test_labels import Home
from tests.support.gateway import gateway

NAME = "sandgate-shop-v7-0123456789ab"


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with server(["done"]) as one:
        yield Home(tmp_path, MemoryDisk(), (one,))


async def test_a_gateway_that_starts_anew_asks_for_the_adapter_of_its_journal(home: Home) -> None:
    player = home.engines[0].player
    player.adapters[NAME] = "/folder"
    async with home.life() as life:
        status = await life.tell(7, adapter=NAME)
        assert (status["policy_version"], status["adapter"], status["adapters"]) == (7, NAME, [])
        assert await life.versions("s1") == {7}
    async with home.life() as life:
        assert (await life.status())["adapter"] == NAME
        assert await life.versions("s2") == {7}
        home.restart_engines()
        answer = await life.turn("s3")
        assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (503, "EngineUnavailable")
        assert "make the weight update again" in answer.text
        (engine,) = (await life.status())["engines"]
        assert (engine["healthy"], engine["unlabelled"]) == (False, True)
        player.adapters[NAME] = "/folder"
        await life.tell(7, adapter=NAME)
        assert await life.versions("s4") == {7}
    assert list(player.sampled_by) == [NAME] * 3


async def test_a_version_without_one_is_of_the_engines_own_weights(home: Home) -> None:
    player = home.engines[0].player
    player.adapters[NAME] = "/folder"
    async with home.life() as life:
        await life.tell(7, adapter=NAME)
        assert (await life.tell(8))["adapter"] == ""
        assert await life.versions("s1") == {8}
    assert list(player.sampled_by) == [""]


async def test_an_engine_that_cannot_serve_one_is_not_told_of_it() -> None:
    async with gateway(["done"]) as up:
        with pytest.raises(Unsupported, match="are given no LoRA adapters here"):
            await up.core.set_version(7, None, NAME)
        assert up.core.sessions.process.version == 0
