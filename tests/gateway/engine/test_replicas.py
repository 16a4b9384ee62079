"""Several replicas: groups stay together, the dead are left, the living take over."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable, Overloaded
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine import health
from sandgate.gateway.engine.api import Delta, Prompt
from sandgate.gateway.engine.scripted.engine import Fault, Gate, Player, Reply, Script
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.vllm import VllmEngine
from tests.support.waiting import until

IDS = [11, 12, 13, 14]


@dataclass
class Fleet:
    engine: VllmEngine
    servers: list[ScriptedServer]

    @property
    def asked(self) -> list[int]:
        return [server.player.counts["generations"] for server in self.servers]

    def healthy(self) -> list[bool]:
        return [each.healthy for each in self.engine.status()]


@asynccontextmanager
async def fleet(*scripts: Script, dead: int = 0, **more: Any) -> AsyncIterator[Fleet]:
    """One server per script, after `dead` URLs where nothing listens."""
    async with AsyncExitStack() as stack:
        players = [Player(script) for script in scripts]
        servers = [await stack.enter_async_context(ScriptedServer(player)) for player in players]
        urls = [nowhere() for _ in range(dead)] + [server.url for server in servers]
        engine = await VllmEngine.connect(urls, **more)
        stack.push_async_callback(engine.aclose)
        yield Fleet(engine, servers)


def nowhere() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def prompt(affinity: str = "", name: str = "r", **more: Any) -> Prompt:
    base: dict[str, Any] = {"ids": array("i", [5, 6, 7]), "sampling": SamplingParams(), "max_tokens": 20}
    return Prompt(**{**base, "request_id": name, "affinity": affinity, **more})


async def test_a_group_stays_on_its_replica_and_new_groups_spread() -> None:
    async with fleet([IDS], [IDS], [IDS]) as some:
        for group in ("a", "b", "c", "a", "b", "a"):
            sample = await some.engine.generate(prompt(group))
            assert sample.ids.tolist() == IDS
        assert some.asked == [3, 2, 1]


async def test_a_dead_replica_is_passed_over() -> None:
    async with fleet([IDS], dead=1) as some:
        assert some.healthy() == [False, True]
        sample = await some.engine.generate(prompt("a"))
        assert sample.engine == some.servers[0].url


async def test_none_alive_is_unavailable_and_says_why() -> None:
    async with fleet(dead=2) as some:
        with pytest.raises(EngineUnavailable, match="no engine is up") as caught:
            await some.engine.generate(prompt())
        assert caught.value.retry_after == 5.0
        assert some.engine.facts.max_model_len == 0


@pytest.mark.parametrize("status", [429, 503])
async def test_who_is_busy_is_passed_over(status: int) -> None:
    busy = Reply(IDS, fault=Fault("status", status=status))
    async with fleet([busy], [IDS]) as some:
        assert (await some.engine.generate(prompt())).engine == some.servers[1].url
    async with fleet([busy], [busy]) as some:
        with pytest.raises((Overloaded, EngineUnavailable)):
            await some.engine.generate(prompt())


async def test_a_stream_goes_on_at_another_replica_after_the_same_ids() -> None:
    """The second replica is asked for prompt + partial, and is not given a chance to say what was said already."""
    asked: list[list[int]] = []

    def rest(ids: array[int], _: int) -> list[int]:
        asked.append(ids.tolist())
        return [31, 32]

    breaks = [Reply(IDS, fault=Fault("reset", after=2)), Reply(IDS, fault=Fault("reset"))]
    deltas: list[Delta] = []
    async with fleet(breaks, rest) as some:
        some.servers[0].player._remember = lambda run: None  # type: ignore[method-assign]  # its process is gone
        sample = await some.engine.generate(prompt(), deltas.append)
    assert sample.ids.tolist() == [11, 12, 31, 32]
    assert asked == [[5, 6, 7, 11, 12]]
    assert [token for delta in deltas for token in delta.ids] == [11, 12, 31, 32]
    assert sample.engine == some.servers[1].url


async def test_probes_take_a_sick_replica_out_and_back_in() -> None:
    async with fleet([IDS], [IDS], probe_s=0.02) as some:
        some.servers[0].healthy = False
        await until(lambda: _is(some, [False, True]), what="the sick one is out")
        for group in "abc":
            assert (await some.engine.generate(prompt(group))).engine == some.servers[1].url
        some.servers[0].healthy = True
        await until(lambda: _is(some, [True, True]), what="it is back")
        assert (await some.engine.generate(prompt("d"))).engine == some.servers[0].url


async def test_an_engine_that_comes_up_later_is_learned() -> None:
    async with fleet(dead=1, probe_s=0.02) as some:
        port = int(some.engine.status()[0].url.rsplit(":", 1)[1])
        async with ScriptedServer(Player([IDS], max_model_len=777), port=port):
            await until(lambda: _is(some, [True]), what="it is up")
            await until(lambda: _window(some, 777), what="its window is known")
            assert (await some.engine.generate(prompt())).ids.tolist() == IDS


async def _is(some: Fleet, want: list[bool]) -> bool:
    return some.healthy() == want


async def _window(some: Fleet, want: int) -> bool:
    return some.engine.facts.max_model_len == want


async def test_an_abort_names_the_request_as_the_engine_does() -> None:
    gate = Gate()
    async with fleet([Reply(IDS, gate=gate)]) as some:
        aborted: list[str] = []

        def note(request_id: str) -> bool:
            aborted.append(request_id)
            return True

        some.servers[0].player.abort = note  # type: ignore[method-assign]
        task = asyncio.create_task(some.engine.generate(prompt(name="turn-1")))
        await gate.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert aborted == ["turn-1"]


async def test_each_attempt_has_a_name_of_its_own() -> None:
    names: list[str] = []

    class Notes(Player):
        def _plan(self, ask: Any) -> Any:
            names.append(ask.request_id)
            return super()._plan(ask)

    async with ScriptedServer(Notes([Reply(IDS, fault=Fault("abort", after=1))])) as server:
        engine = await VllmEngine.connect([server.url])
        await engine.generate(prompt(name="turn-1"))
        await engine.aclose()
    assert names == ["turn-1", "turn-1-r1"]


async def test_a_generation_that_takes_too_long_fails_and_frees_the_engine() -> None:
    gate = Gate()
    async with fleet([Reply(IDS, gate=gate)], timeout_s=0.05) as some:
        with pytest.raises(EngineFailed, match=r"within 0\.05 s"):
            await some.engine.generate(prompt())
        assert some.servers[0].player.running == 0
        assert [each.in_flight for each in some.engine.status()] == [0]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_a_generation_on_a_replica_that_hangs_goes_on_at_another(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel keeps the connection, and nothing breaks."""
    monkeypatch.setattr(health, "PROBE_TIMEOUT_S", 0.2)
    gates = [Gate(), Gate()]
    async with fleet(*([Reply(IDS, gate=gate)] for gate in gates), probe_s=0.01) as some:
        some.engine._silence.after_s = 0.8
        heard: list[Delta] = []
        asked = asyncio.create_task(some.engine.generate(prompt(), heard.append if streams else None))
        reached = [asyncio.create_task(gate.reached.wait()) for gate in gates]
        await asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED)
        hung = gates.index(next(gate for gate in gates if gate.reached.is_set()))
        some.servers[hung].mute = released = asyncio.Event()
        gates[1 - hung].open.set()
        try:
            assert (await asked).ids.tolist() == IDS
            assert some.asked == [1, 1]
            assert some.healthy()[hung] is False
            assert [each.in_flight for each in some.engine.status()] == [0, 0]
        finally:
            released.set()
            gates[hung].open.set()
            for task in reached:
                task.cancel()


async def test_a_lone_replica_that_hangs_is_no_engine_for_its_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "PROBE_TIMEOUT_S", 0.2)
    gate = Gate()
    async with fleet([Reply(IDS, gate=gate)], probe_s=0.01) as some:
        some.engine._silence.after_s = 0.8
        some.servers[0].mute = released = asyncio.Event()
        try:
            with pytest.raises(EngineUnavailable, match=r"no engine is up .*no answer within"):
                await some.engine.generate(prompt())
        finally:
            released.set()
            gate.open.set()


async def test_an_engine_without_the_model_is_refused_at_the_start() -> None:
    with pytest.raises(EngineFailed, match=r"model 'other' is not served; there are \['scripted'\]"):
        async with fleet([IDS], model="other"):
            pass


async def test_an_engine_without_the_model_is_not_used_before_it_has_it() -> None:
    """As an adapter that is loaded."""
    async with fleet([IDS], [IDS], model="other", patient=True, probe_s=0.01) as some:
        assert {each.detail for each in some.engine.status()} == {
            "model 'other' is not served; there are ['scripted']"
        }
        with pytest.raises(EngineUnavailable, match="model 'other' is not served"):
            await some.engine.generate(prompt(model="other"))
        some.servers[1].model = "other"

        async def used(*wanted: bool) -> bool:
            return some.healthy() == list(wanted)

        await until(lambda: used(False, True), what="the second is used")
        assert (await some.engine.generate(prompt(model="other"))).ids.tolist() == IDS
        assert some.asked == [0, 1]
        some.servers[0].model = "other"
        await until(lambda: used(True, True), what="both are used")


async def test_a_connection_that_was_kept_too_long_is_opened_anew() -> None:
    """The server closes idle connections; the next request must not be lost by that."""
    async with fleet([IDS]) as some:
        for _ in range(3):
            assert (await some.engine.generate(prompt())).ids.tolist() == IDS
            runner = some.servers[0]._runner
            assert runner is not None
            assert runner.server is not None
            for connection in list(runner.server.connections):
                connection.force_close()
        assert some.healthy() == [True]
