"""A gateway and its engines after restarts: what was told of labels is durable, and what is refused says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from sandgate.gateway import app
from sandgate.gateway.config import EngineConfig
from sandgate.gateway.engine.scripted.engine import Gate, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import EnginesLabelled
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.web.server import AsgiApp
from tests.gateway.test_engine_set import server
from tests.support.gateway import (
    Wire,
    admin_key,
    bearer,
    codec,
    config_in,
    eventually,
    gated,
    gateway,
    ids,
    within,
)


@dataclass
class Life:
    """One life of a gateway that is composed as in production."""

    core: GatewayService
    app: AsgiApp
    http: httpx.AsyncClient

    def asgi(self) -> httpx.ASGITransport:
        """For another client."""
        return httpx.ASGITransport(app=self.app)

    async def tell(self, version: int, **more: Any) -> dict[str, Any]:
        answer = await self.http.put("/v1/policy-version", json={"version": version, **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def status(self) -> dict[str, Any]:
        return dict((await self.http.get("/v1/status")).json())

    async def turn(self, session: str) -> httpx.Response:
        handle = (await self.http.post("/v1/sessions", json={"session_id": session})).json()
        body = {"model": "shop", "messages": [{"role": "user", "content": "hi"}]}
        path = f"/sessions/{session}/v1/chat/completions"
        return await self.http.post(path, json=body, headers=bearer(handle["api_key"]))

    async def versions(self, session: str) -> set[int]:
        """Of a new session's turn."""
        answer = await self.turn(session)
        assert answer.status_code == 200, answer.text
        (turn,) = self.core.sessions.live[session].tree.turns
        return {version for version, _, _ in turn.versions}


@dataclass
class Home:
    """A journal and engines that outlive gateways."""

    folder: Path
    disk: MemoryDisk
    engines: tuple[ScriptedServer, ...]

    def label(self, label: str) -> None:
        for one in self.engines:
            one.player.label = label

    def restart_engines(self) -> None:
        for one in self.engines:
            one.player.restart()

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Life]:
        async with AsyncExitStack() as stack:
            engine = EngineConfig(urls=tuple(one.url for one in self.engines))
            config = msgspec.structs.replace(config_in(self.folder), engine=engine)
            store = await MemoryStore.open(self.disk)
            stack.push_async_callback(store.aclose)
            up = await stack.enter_async_context(
                app.gateway(config, origin="http://gateway", store=store, codec=codec())
            )
            http = httpx.AsyncClient(
                transport=httpx.ASGITransport(app=up.app),
                base_url="http://gateway",
                headers=bearer(admin_key()),
            )
            yield Life(up.core, up.app, await stack.enter_async_context(http))


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with server(["done"]) as one:
        yield Home(tmp_path, MemoryDisk(), (one,))


async def refused(life: Life, session: str) -> None:
    """Nothing is sampled, everybody is told why."""
    answer = await life.turn(session)
    assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (503, "EngineUnavailable")
    assert "labelled 'default', which is no version, but version 7 was told" in answer.text
    assert not life.core.sessions.live[session].tree.turns
    (engine,) = (await life.status())["engines"]
    assert not engine["healthy"]
    assert "make the weight update again" in engine["detail"]
    ready = await life.http.get("/readyz")
    assert (ready.status_code, "labelled 'default'" in ready.text) == (503, True)
    assert "sandgate_engines_unlabelled 1.0" in (await life.http.get("/metrics")).text


async def test_streamed_tokens_of_unknown_weights_are_nobodys_to_learn_from() -> None:
    gate = Gate()
    async with gateway([Reply(ids("hello dear world"), gate=gate, gate_at=3), "again"]) as up:
        up.engine.player.label = "step-5"
        await up.core.set_version(5, True)
        agent = await up.session()
        asked = asyncio.create_task(agent.post("hi", stream=True))
        await within(gate.reached)
        up.engine.player.label = "default"  # it was started anew, and nobody saw it
        gate.open.set()
        assert "labelled 'default', which is no version, but version 5 was told" in (await asked).text
        up.engine.player.label = "step-6"
        await up.core.set_version(6, True)
        await agent.ask("hi again")
        (row,) = await up.finalize(agent, reward=1.0)
        assert {version for version in row["versions"] if version >= 0} == {6}
        assert row["finish_reason"] == "stop"


async def test_rows_of_turns_that_were_let_go_of_carry_their_engines_labels() -> None:
    """One of two replicas missed an update: `max_behind` must not take its cut turns for fresh ones."""
    scripts = [gated("ordered seven kiwis", at=2) for _ in range(2)]
    async with server([scripts[0][0]]) as old, server([scripts[1][0]]) as new:
        old.player.label, new.player.label = "step-6", "step-7"
        engine = await VllmEngine.connect([old.url, new.url], model="shop", version_now=lambda: 7)
        async with gateway(engine, limits={"linger_s": 0.0}) as g:
            await g.core.set_version(7, True)
            agents = [await g.session(), await g.session()]
            wires = [await Wire.chat(agent, agent.body("hi", stream=True)) for agent in agents]
            for wire, (_, gate) in zip(wires, scripts, strict=True):
                await within(gate.reached)
                await wire.until_said("orde")
                await wire.cut()
            await eventually(lambda: not g.core.turns.registry.calls, "both calls are gone")
            rows = [row for agent in agents for row in await g.finalize(agent, reward=1.0)]
    assert [row["finish_reason"] for row in rows] == ["cut", "cut"]
    assert sorted(max(row["versions"]) for row in rows) == [6, 7]


@pytest.mark.parametrize("said", [True, None], ids=["the trainer says so", "a label was seen"])
@pytest.mark.parametrize(
    "gateway_too", [False, True], ids=["the engine restarts", "engine and gateway restart"]
)
async def test_an_engine_that_restarts_samples_nothing_under_the_told_version(
    home: Home, said: bool | None, gateway_too: bool
) -> None:
    async with AsyncExitStack() as stack:
        life = await stack.enter_async_context(home.life())
        home.label("step-7")
        assert (await life.tell(7, labelled=said))["labelled"]
        home.restart_engines()
        if gateway_too:
            await stack.aclose()
            life = await stack.enter_async_context(home.life())
        else:
            await life.core.engine.version_told()  # type: ignore[attr-defined]  # as every 5 s
        await refused(life, "s1")
        home.label("7")  # the update made again
        await life.tell(7, labelled=said)
        assert await life.versions("s2") == {7}
        assert (await life.http.get("/readyz")).status_code == 200
        assert "sandgate_engines_unlabelled 0.0" in (await life.http.get("/metrics")).text


async def test_the_first_answer_after_a_restart_is_not_believed_either(home: Home) -> None:
    """Before any probe: the answer itself has the label."""
    async with home.life() as life:
        home.label("step-7")
        await life.tell(7)
        home.restart_engines()
        answer = await life.turn("s1")
        assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (503, "EngineUnavailable")
        session = life.core.sessions.live["s1"]
        assert (session.engine_errors, session.engine_failing) == (1, 1)
        assert not session.tree.turns
        home.label("7")
        await life.tell(7)
        assert (await life.turn("s1")).status_code == 200
        assert (session.engine_errors, session.engine_failing) == (1, 0), "it got over it"


async def test_a_number_in_an_answer_is_remembered_before_its_turn(home: Home) -> None:
    """The trainer labels engines after it told the gateway, so that only an answer shows it."""
    async with home.life() as life:
        assert not (await life.tell(7))["labelled"]
        home.label("step-7")
        assert await life.versions("s1") == {7}
    async with home.life() as life:
        kinds = [type(record).__name__ for _, _, record in life.core.sessions.store.scan()]
        assert kinds.index("EnginesLabelled") < kinds.index("TurnCommitted")
        assert kinds.count("EnginesLabelled") == 1
    home.restart_engines()
    async with home.life() as life:
        await refused(life, "s2")


async def test_labels_that_nobody_sets_are_the_told_version_through_restarts(home: Home) -> None:
    async with home.life() as life:
        assert not (await life.tell(7))["labelled"]
        assert await life.versions("s1") == {7}
    home.restart_engines()
    async with home.life() as life:
        assert await life.versions("s2") == {7}
        assert await life.tell(8)
        assert await life.versions("s3") == {8}


async def test_bare_engines_are_right_before_any_version_was_told(home: Home) -> None:
    home.label("step-3")  # another gateway's trainer did
    async with home.life() as life:
        assert await life.versions("s1") == {3}
        home.restart_engines()
        assert await life.versions("s2") == {0}


async def test_a_trainer_that_labels_no_more_says_so(home: Home) -> None:
    async with home.life() as life:
        home.label("step-7")
        await life.tell(7, labelled=True)
        home.restart_engines()
        assert not (await life.tell(8, labelled=False))["labelled"]
        assert await life.versions("s1") == {8}
    async with home.life() as life:
        assert not (await life.status())["labelled"]
        assert await life.versions("s2") == {8}


async def test_what_was_told_of_labels_outlives_compaction(home: Home) -> None:
    async with home.life() as life:
        await life.tell(7, labelled=True)
        kept = [
            record
            for record in life.core.sessions.process.snapshot(1.0)
            if isinstance(record, EnginesLabelled)
        ]
        assert kept == [EnginesLabelled(at=1.0, labelled=True)]


async def test_the_engine_in_this_process_is_held_to_the_same() -> None:
    async with gateway(["done"]) as g:
        g.engine.player.label = "step-7"
        assert (await g.admin.put("/v1/policy-version", json={"version": 7})).json()["labelled"]
        agent = await g.session()
        assert (await agent.ask("hi"))["content"] == "done"
        g.engine.player.restart()
        answer = await agent.post("again")
        assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (503, "EngineUnavailable")


@pytest.mark.parametrize("labelled", ["maybe", 7, []])
async def test_labelled_is_true_false_or_null(labelled: object) -> None:
    async with gateway() as g:
        answer = await g.admin.put("/v1/policy-version", json={"version": 1, "labelled": labelled})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "labelled")
