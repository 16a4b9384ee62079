"""The policy as a LoRA adapter: what samples a token is the adapter that was told when it was asked for, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from sandgate.contract.errors import EngineUnavailable, ModelNotServed
from sandgate.gateway.engine.api import Delta, ServedAdapter, VersionSpan
from sandgate.gateway.engine.scripted.engine import Fault, Gate, Player, Reply, Script
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.sglang.engine import SGLANG
from sandgate.gateway.engine.vllm import VLLM, VllmEngine
from tests.gateway.engine.test_replicas import prompt
from tests.support.waiting import until

IDS = [11, 12, 13, 14]
FIRST, SECOND = ServedAdapter("shop-v7-a", 7), ServedAdapter("shop-v8-b", 8)


@dataclass
class Told:
    """What the trainer last told."""

    adapter: ServedAdapter | None = FIRST


@dataclass
class Fleet:
    engine: VllmEngine
    servers: list[ScriptedServer]
    told: Told

    asked: int = 0

    async def ask(self, *, stream: bool = False) -> Any:
        deltas: list[Delta] = []
        self.asked += 1
        asked = prompt(model="scripted", name=f"r{self.asked}")
        return await self.engine.generate(asked, deltas.append if stream else None)

    def load(self, adapter: ServedAdapter, *at: int) -> None:
        for one in at or range(len(self.servers)):
            self.servers[one].player.adapters[adapter.name] = "/folder"

    def unload(self, adapter: ServedAdapter) -> None:
        for one in self.servers:
            one.player.adapters.pop(adapter.name, None)

    def healthy(self) -> list[bool]:
        return [each.healthy for each in self.engine.status()]

    async def is_healthy(self, *want: bool) -> bool:
        return self.healthy() == list(want)

    @property
    def sampled_by(self) -> list[list[str]]:
        return [list(one.player.sampled_by) for one in self.servers]


@asynccontextmanager
async def fleet(*scripts: Script, loaded: bool = True, probe_s: float = 60.0) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedServer(Player(script))) for script in scripts]
        for one in servers if loaded else ():
            one.player.adapters[FIRST.name] = "/folder"
        told = Told()
        engine = await VllmEngine.connect(
            [one.url for one in servers],
            model="scripted",
            version_now=lambda: told.adapter.version if told.adapter else 9,
            adapter_now=lambda: told.adapter,
            probe_s=probe_s,
        )
        stack.push_async_callback(engine.aclose)
        yield Fleet(engine, servers, told)


async def test_tokens_are_of_the_adapters_version_whatever_the_label_of_the_weights_below_it() -> None:
    async with fleet([IDS]) as some:
        for label in ("default", "step-3"):
            some.servers[0].player.label = label
            sample = await some.ask()
            assert sample.versions == (VersionSpan(7, 0, 4),)
        assert some.sampled_by == [[FIRST.name, FIRST.name]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_in_flight_ends_by_the_adapter_that_began_it(stream: bool) -> None:
    gate = Gate()
    async with fleet([Reply(IDS, gate=gate, gate_at=2), IDS]) as some:
        task = asyncio.create_task(some.ask(stream=stream))
        await gate.reached.wait()
        assert some.engine.adapters_in_use() == {FIRST.name}
        some.load(SECOND)
        some.told.adapter = SECOND
        await some.engine.version_told()
        assert (await some.ask()).versions == (VersionSpan(8, 0, 4),)
        assert some.engine.adapters_in_use() == {FIRST.name}, "so it is neither unloaded nor removed"
        gate.open.set()
        assert (await task).versions == (VersionSpan(7, 0, 4),)
        assert some.engine.adapters_in_use() == frozenset()
        assert some.sampled_by == [[FIRST.name, SECOND.name]]


async def test_one_that_breaks_goes_on_by_the_adapter_of_now_and_each_token_is_of_its_own() -> None:
    gate = Gate()
    cut = Reply(IDS, gate=gate, gate_at=2, fault=Fault("reset", after=2))
    async with fleet([cut, [13, 14]]) as some:
        task = asyncio.create_task(some.ask(stream=True))
        await gate.reached.wait()
        some.load(SECOND)
        some.told.adapter = SECOND
        gate.open.set()
        sample = await task
        assert sample.ids.tolist() == IDS
        assert sample.versions == (VersionSpan(7, 0, 2), VersionSpan(8, 2, 4))


async def test_a_replica_that_restarted_serves_nothing_before_it_has_the_adapter_again() -> None:
    async with fleet([IDS], [IDS], probe_s=0.02) as some:
        some.servers[0].player.restart()
        assert (await some.ask()).versions == (VersionSpan(7, 0, 4),)
        await until(lambda: some.is_healthy(False, True), what="it is seen to lack it")
        (bare, _) = some.engine.status()
        assert bare.unlabelled, "so a trainer that looks publishes again"
        assert "lacks: it restarted or is new; make the weight update again" in bare.detail
        assert some.sampled_by[0] == []
        some.load(FIRST, 0)
        await until(lambda: some.is_healthy(True, True), what="it is used again")


async def test_a_new_replica_without_it_is_not_used_and_with_none_left_a_turn_is_refused() -> None:
    async with fleet([IDS], loaded=False) as some:
        assert some.healthy() == [False]
        with pytest.raises(EngineUnavailable, match=f"version 7 is the adapter {FIRST.name}"):
            await some.ask()
        some.load(FIRST)
        await some.engine.version_told()
        assert (await some.ask()).versions == (VersionSpan(7, 0, 4),)
        async with ScriptedServer(Player([IDS])) as fresh:
            await some.engine.set_urls([some.servers[0].url, fresh.url])
            assert some.healthy() == [True, False]


async def test_one_that_lost_it_between_two_probes_is_found_out_by_the_turn_itself() -> None:
    async with fleet([IDS], [IDS]) as some:
        first = some.servers[0].player
        first.adapters.clear()
        some.servers[1].player.adapters.pop(FIRST.name)
        with pytest.raises(EngineUnavailable, match="make the weight update again"):
            await some.ask()
        assert some.healthy() == [False, False]
        assert some.sampled_by == [[], []], "never by the weights below it"


async def test_an_adapter_that_was_unloaded_under_a_turn_that_had_not_begun_is_replaced_by_that_of_now() -> (
    None
):
    gate = Gate()
    refusal = Reply(IDS, gate=gate, fault=Fault("reset", after=0))
    async with fleet([refusal, IDS]) as some:
        task = asyncio.create_task(some.ask())
        await gate.reached.wait()
        some.load(SECOND)
        some.told.adapter = SECOND
        some.unload(FIRST)
        gate.open.set()
        assert (await task).versions == (VersionSpan(8, 0, 4),)
        assert some.healthy() == [True]


async def test_what_was_found_of_one_adapter_says_nothing_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet([IDS]) as some:
        asked = VLLM.names_of
        times = 0

        async def slow(http: Any, url: str) -> frozenset[str]:
            nonlocal times
            times += 1
            found = await asked(http, url)
            if times == 1:  # told while the answer was under way, which lacks it
                some.load(SECOND)
                some.told.adapter = SECOND
            return found

        monkeypatch.setattr(type(VLLM), "names_of", lambda _, http, url: slow(http, url))
        await some.engine.version_told()
        assert (some.healthy(), times) == ([True], 2)


async def test_merged_weights_end_it_and_doubts_with_it() -> None:
    async with fleet([IDS], loaded=False, probe_s=0.02) as some:
        assert some.healthy() == [False]
        some.told.adapter = None
        await until(lambda: some.is_healthy(True), what="labels count again, and nobody sets them")
        assert (await some.ask()).versions == (VersionSpan(9, 0, 4),)
        assert some.sampled_by == [[""]]


async def test_a_model_that_is_not_served_is_no_adapter_that_is_missing() -> None:
    async with fleet([IDS]) as some:
        some.told.adapter = None
        with pytest.raises(ModelNotServed):
            await some.engine.generate(prompt(model="other"))
        assert some.healthy() == [True]


async def test_sglang_is_asked_for_none() -> None:
    assert (VLLM.serves_adapters, SGLANG.serves_adapters) == (True, False)
