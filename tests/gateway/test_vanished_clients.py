"""A client that vanishes costs nothing for long, and loses nothing if it comes back in time."""

from __future__ import annotations

import asyncio

import pytest

from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import TurnCommitted
from tests.support.gateway import Latch, Stubborn, Wire, engine, eventually, gated, gateway, within

TEXT = "ordered seven kiwis"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("at", [0, 2], ids=["before the first token", "in the middle"])
async def test_nobody_listens_the_engine_aborts_after_linger_and_only_what_was_told_is_in_the_tree(
    stream: bool, at: int
) -> None:
    reply, gate = gated(TEXT, at=at)
    async with gateway([reply], limits={"linger_s": 0.01}) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi", stream=stream))
        await within(gate.reached)
        await wire.cut()
        await eventually(lambda: not g.core.turns.registry.calls, "the call is gone")
        assert g.engine.player.running == 0
        assert g.engine.player.counts["aborted"] == 1
        told = int(stream and at > 0)
        assert [turn["finish"] for turn in await g.tree(agent)] == ["cut"] * told
        summary = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert (summary["in_flight"], summary["turns"], summary["state"]) == (0, told, "open")
        assert summary["cut"] == 1, "either way it is counted"
        assert g.core.turns.load.in_flight == 0


async def test_a_silent_stream_notices_the_cut_without_waiting_for_a_token() -> None:
    reply, gate = gated(TEXT)
    async with gateway([reply]) as g:  # its keepalive would come in an hour
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(gate.reached)
        await wire.until(b"assistant")
        await wire.cut()
        await eventually(lambda: g.call().listeners == 0, "noticed")
        assert g.call().linger is not None


async def test_a_call_with_another_listener_is_not_aborted() -> None:
    reply, gate = gated(TEXT)
    async with gateway([reply], limits={"linger_s": 0.0}) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi"))
        await within(gate.reached)
        other = asyncio.ensure_future(agent.post("hi", headers={"x-stainless-retry-count": "1"}))
        await eventually(lambda: g.call().listeners == 2, "both listen")
        await wire.cut()
        await eventually(lambda: g.call().listeners == 1, "one is gone")
        assert g.call().linger is None
        gate.open.set()
        assert (await other).status_code == 200


async def test_a_retry_never_joins_a_call_that_is_being_aborted() -> None:
    """The engine takes its time to abort; a retry that joined would be told that its session's call was cancelled."""
    reply, gate = gated(TEXT)
    slow = Stubborn(engine([reply, "second try"]))
    async with gateway(slow, limits={"linger_s": 0.0}) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi"))
        await within(gate.reached)
        await wire.cut()
        await within(slow.aborting, "the abort is under way")
        answer = await agent.ask("hi")
        assert answer["content"] == "second try"
        slow.let_go.set()
        await eventually(lambda: not g.core.turns.registry.calls, "all calls are gone")
        assert g.core.turns.load.in_flight == 0
        assert len(await g.tree(agent)) == 1


async def test_a_turn_whose_commit_has_begun_is_kept_though_nobody_listens() -> None:
    """What is durable is visible: an abort between the engine's answer and the fsync must not part the two."""
    latch, disk = Latch(), MemoryDisk()
    async with gateway([TEXT, "other"], store=MemoryStore(disk, gate=latch), limits={"linger_s": 0.0}) as g:
        agent = await g.session()
        latch.shut()
        wire = await Wire.chat(agent, agent.body("hi"))
        await within(latch.reached)
        call = g.call()
        await wire.cut()
        await eventually(lambda: call.listeners == 0, "noticed")
        call.cancel()
        latch.open()
        await eventually(lambda: not g.core.turns.registry.calls, "the call is over")
        stored = [record for _, _, record in g.store.scan(agent.id) if isinstance(record, TurnCommitted)]
        assert [turn["turn"] for turn in await g.tree(agent)] == [record.turn for record in stored]
        assert (await agent.ask("hi"))["content"] == TEXT
        assert g.generations == 1


async def test_a_commit_is_carried_through_when_its_caller_is_cancelled() -> None:
    latch = Latch()
    async with gateway([TEXT], store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        latch.shut()
        asked = asyncio.ensure_future(agent.post("hi"))
        await within(latch.reached)
        task = g.call().task
        assert task is not None
        task.cancel()
        latch.open()
        await asked
        assert len(await g.tree(agent)) == 1
