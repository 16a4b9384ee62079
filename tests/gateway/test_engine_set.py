"""The engine's replicas change while the gateway runs; without any it waits, ready for sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed, Unsupported
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.engine import logprobs_check
from sandgate.gateway.engine.scripted.script import Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.scripted.sglang_server import ScriptedSglang
from sandgate.gateway.engine.sglang.engine import SglangEngine
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import EnginesSet
from tests.gateway.engine.test_replicas import nowhere
from tests.support.gateway import Running, admin_key, codec, gated, gateway, ids, within
from tests.support.process import Process


def server(script: Any, **more: Any) -> ScriptedServer:
    player = Player(script, encode=ids, eos_ids=codec().stop_ids, **{"max_model_len": 4096, **more})
    return ScriptedServer(player, model="shop")


@asynccontextmanager
async def waiting(*urls: str, store: MemoryStore | None = None, **more: Any) -> AsyncIterator[Running]:
    """A gateway over the real engine client that may start with nothing."""
    engine = await VllmEngine.connect(urls, model="shop", patient=True)
    async with gateway(engine, store=store, wait=True, **more) as running:
        yield running


async def test_a_gateway_that_starts_during_a_weight_update_holds_turns_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot measure a paused engine's logprobs, and a turn does not fail for that."""
    monkeypatch.setattr(logprobs_check, "SETTLE_S", 0.01)
    async with server(["one"]) as one:
        one.player.pause("keep")
        engine = await VllmEngine.connect([one.url], model="shop", logprobs_mode="processed_logprobs")
        async with gateway(engine) as g:
            assert (await g.admin.get("/readyz")).json()["ready"] is True
            agent = await g.session()
            turn = asyncio.create_task(agent.post("hi"))
            done, _ = await asyncio.wait([turn], timeout=0.3)
            assert not done
            one.player.resume()
            assert (await turn).status_code == 200


@asynccontextmanager
async def client(g: Running) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(g.origin, admin_key(), deadline_s=0.0) as made:
        yield made


async def test_without_an_engine_it_is_ready_says_so_and_refuses_turns_with_503() -> None:
    async with waiting() as g:
        ready = await g.admin.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        assert "no engine answers" in ready.json()["detail"]
        agent = await g.session()
        for stream in (False, True):
            refused = await agent.post("hi", stream=stream)
            assert refused.status_code == 503, "also before a stream's headers are out"
            assert refused.headers["x-sandgate-reason"] == "EngineUnavailable"
            assert int(refused.headers["retry-after"]) >= 1
        seen = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert (seen["turns"], seen["engine_errors"], seen["engine_failing"], seen["state"]) == (
            0,
            2,
            2,
            "open",
        )


async def test_a_gateway_that_need_not_wait_is_not_ready_without_an_engine() -> None:
    engine = await VllmEngine.connect([nowhere()], model="shop")
    async with gateway(engine) as g:
        assert (await g.admin.get("/readyz")).status_code == 503


async def test_turns_go_where_the_engines_are_said_to_be() -> None:
    async with server(["first"]) as one, server(["second"]) as two, waiting() as g, client(g) as admin:
        agent = await g.session()
        await admin.set_engines([one.url + "/"])
        assert (await agent.ask("hi"))["content"] == "first"
        await admin.set_engines([two.url])
        assert (await agent.ask("ho"))["content"] == "second"
        status = await admin.status()
        assert [each["url"] for each in status["engines"]] == [two.url]
        assert await admin.ready() == ""
        await admin.set_engines([])
        assert (await agent.post("hu")).status_code == 503


async def test_turns_are_counted_by_whether_their_engine_is_on_the_gateways_node() -> None:
    async with server(["x"] * 4) as one, waiting(one.url, node="a") as g, client(g) as admin:
        agent = await g.session()
        assert (await admin.status())["engines"][0]["node"] == ""
        await agent.ask("nobody said; but it is on loopback")
        for node in ("a", "b"):
            await admin.set_engines([one.url], {one.url + "/": node})
            assert (await admin.status())["engines"][0]["node"] == node
            await agent.ask(f"on {node}")
        said = (await g.admin.get("/metrics")).text
        counts = {same: f'sandgate_turns_by_node_total{{same_node="{same}"}}' for same in ("true", "false")}
        assert f"{counts['true']} 2.0" in said
        assert f"{counts['false']} 1.0" in said


async def test_what_runs_on_a_removed_replica_ends_there() -> None:
    reply, gate = gated("from the old one", at=1)
    async with (
        server([reply]) as old,
        server(["from the new one"]) as new,
        waiting(old.url) as g,
        client(g) as admin,
    ):
        agent = await g.session(uid="q")
        running = asyncio.ensure_future(agent.ask("hi"))
        await within(gate.reached)
        await admin.set_engines([new.url])
        assert [each["url"] for each in (await admin.status())["engines"]] == [new.url]
        assert (await agent.ask("ho"))["content"] == "from the new one", "its group moved"
        gate.open.set()
        assert (await running)["content"] == "from the old one"
        assert set(g.engine.table.replicas) == {new.url}, "the old one went with its last generation"


async def test_a_removed_replica_that_comes_back_keeps_what_runs_on_it() -> None:
    reply, gate = gated("still here", at=1)
    async with (
        server([reply, "again"]) as old,
        server(["other"]) as new,
        waiting(old.url) as g,
        client(g) as admin,
    ):
        agent = await g.session()
        running = asyncio.ensure_future(agent.ask("hi"))
        await within(gate.reached)
        await admin.set_engines([new.url])
        await admin.set_engines([old.url])
        gate.open.set()
        assert (await running)["content"] == "still here"
        assert (await agent.ask("ho"))["content"] == "again"


async def test_one_that_does_not_answer_is_down_and_one_that_is_no_engine_too() -> None:
    async with server(["fine"]) as one, waiting() as g, client(g) as admin:
        gone = nowhere()
        await admin.set_engines([gone, g.origin, one.url])  # a gateway is no vLLM
        found = {each["url"]: each["healthy"] for each in (await admin.status())["engines"]}
        assert found == {gone: False, g.origin: False, one.url: True}
        agent = await g.session()
        assert (await agent.ask("hi"))["content"] == "fine"


async def test_at_the_start_what_is_no_engine_is_an_error_unless_it_may_wait() -> None:
    async with gateway() as other:
        with pytest.raises(EngineFailed):
            await VllmEngine.connect([other.origin], model="shop")
        patient = await VllmEngine.connect([other.origin], model="shop", patient=True)
        assert [each.healthy for each in patient.status()] == [False]
        await patient.aclose()


async def test_the_window_is_the_engines_once_it_is_known_and_never_over_the_jobs() -> None:
    async with (
        server(["a"], max_model_len=900) as small,
        server(["b"], max_model_len=9000) as large,
        waiting() as g,
        client(g) as admin,
    ):
        windows = []
        for urls in ([], [large.url], [small.url, large.url], [large.url]):
            await admin.set_engines(urls)
            windows.append((await admin.status())["max_model_len"])
        assert windows == [4096, 4096, 900, 4096]


async def test_a_turn_that_may_fill_the_window_leaves_room_for_an_engines_drafts() -> None:
    """Of a job whose window is all that the engine says it has: that is no mistake of its manifest."""
    player = Player(["one"], encode=ids, eos_ids=codec().stop_ids, max_model_len=4096)
    async with ScriptedSglang(player, model="shop", reserved=4) as eagle:
        engine = await SglangEngine.connect([eagle.url], model="shop")
        async with gateway(engine) as g, client(g) as admin:
            agent = await g.session()
            assert (await agent.post("hi")).status_code == 200
            asked = eagle.bodies[-1]
            assert len(asked["input_ids"]) + asked["sampling_params"]["max_new_tokens"] == 4092
            assert (await admin.status())["max_model_len"] == 4092


async def test_engine_sets_survive_a_kill(tmp_path: Path) -> None:
    async with server(["one", "two"]) as engine, Process(tmp_path, "", wait=True) as process:
        await process.start()
        async with GatewayClient(process.origin, admin_key()) as admin:
            await admin.set_engines([engine.url])
            await process.kill()
            await process.start()
            assert [each["url"] for each in (await admin.status())["engines"]] == [engine.url]
            assert await admin.ready() == ""


BAD = {
    "no list": {"urls": "http://e"},
    "no HTTP": {"urls": ["ftp://e"]},
    "no host": {"urls": ["http://:80"]},
    "a port of text": {"urls": ["http://e:port"]},
    "a password": {"urls": ["http://me:secret@e"]},
    "none at all": {},
}
BAD_NODES = {
    "no map": ["a"],
    "of no URL": {"engine": "a"},
    "a name that no node has": {"http://e": "a" * 254},
}


@pytest.mark.parametrize("nodes", BAD_NODES.values(), ids=BAD_NODES)
async def test_bad_nodes_are_400(nodes: Any) -> None:
    async with waiting() as g:
        answer = await g.admin.put("/v1/engines", json={"urls": ["http://e"], "nodes": nodes})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("nodes")


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
async def test_a_bad_set_is_400_and_changes_nothing(body: Any) -> None:
    disk = MemoryDisk()
    async with waiting(store=MemoryStore(disk)) as g:
        answer = await g.admin.put("/v1/engines", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("urls")
        assert not any(isinstance(record, EnginesSet) for _, _, record in g.store.scan())


async def test_an_engine_inside_the_process_cannot_be_replaced() -> None:
    async with gateway([Reply("x")]) as g, client(g) as admin:
        with pytest.raises(Unsupported, match="cannot be replaced"):
            await admin.set_engines(["http://e"])
