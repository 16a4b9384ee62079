"""A gateway's pod is replaced: what runs ends well, nothing new begins, the next pod goes on with the same sessions."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandgate.gateway.engine.scripted.script import Gate, Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from tests.support.gateway import Agent, client, codec, eventually, gated, gateway, ids, said, within
from tests.support.process import Process
from tests.support.waiting import until

ONLY_THE_GATEWAYS = "typer rich pyarrow kopf kubernetes yaml torch transformers pandas".split()
"""What the trainer, operator and cluster extras bring; a gateway's image has none of them."""
BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ONLY_THE_GATEWAYS!r} or name.startswith(
            ("sandgate.trainer", "sandgate.operator", "sandgate.sandbox")
        ):
            raise ImportError(f"{{name}} is not in the gateway's image")
sys.meta_path.insert(0, Blocker())
"""


@dataclass
class Pod:
    """A gateway in a process, one session in it, and the engine's replies under control."""

    process: Process
    handle: dict[str, Any]
    agent: Agent
    gate: Gate

    async def ready(self) -> int:
        async with client(self.process.origin) as http:
            return (await http.get("/readyz")).status_code

    async def term(self) -> None:
        """SIGTERM; returns when its readiness is red."""
        self.process.signal(signal.SIGTERM)

        async def red() -> bool:
            return await self.ready() == 503

        await until(red, what="readiness is red")

    async def gone(self) -> int:
        """Its exit code, once it ended."""
        assert self.process.life is not None
        async with asyncio.timeout(20):
            code = await self.process.life.wait()
        self.process.life = None
        return code


@asynccontextmanager
async def pod(folder: Path, *replies: Reply, gate: Gate | None = None, **settings: Any) -> AsyncIterator[Pod]:
    player = Player(list(replies), encode=ids, eos_ids=codec().stop_ids, max_model_len=4096)
    settings = {"limits": {"drain_s": 60.0}, **settings}
    async with (
        ScriptedServer(player, model="shop") as server,
        Process(folder, server.url, **settings) as process,
    ):
        await process.start()
        async with process.admin() as admin:
            handle = (await admin.post("/v1/sessions", json={"session_id": "s1", "uid": "q"})).json()
        agent = Agent(handle, client(f"{process.origin}/sessions/s1/", handle["api_key"]))
        yield Pod(process, handle, agent, gate or Gate())
        await agent.aclose()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_turn_in_flight_ends_as_if_nothing_happened_and_the_next_pod_goes_on(
    tmp_path: Path, stream: bool
) -> None:
    reply, gate = gated("kiwi", at=1)
    async with pod(tmp_path, reply, Reply("melon"), gate=gate) as it:
        running = asyncio.ensure_future(it.agent.post("hi", stream=stream))
        await within(gate.reached)
        await it.term()
        refused = await it.agent.post("another")
        assert (refused.status_code, refused.headers["x-sandgate-reason"]) == (503, "Draining")
        assert int(refused.headers["retry-after"]) >= 1
        gate.open.set()
        answer = await running
        text = said(answer.content) if stream else answer.json()["choices"][0]["message"]["content"]
        assert (answer.status_code, text) == (200, "kiwi")
        assert await it.gone() == 0
        closed(it.process)

        await it.process.start()
        assert await it.ready() == 200
        async with it.process.admin() as admin:
            again = (await admin.post("/v1/sessions", json={"session_id": "s1", "uid": "q"})).json()
            assert again == it.handle, "the same ids, URLs and keys"
            message = await it.agent.ask("hi", {"role": "assistant", "content": "kiwi"}, "and?")
            assert message["content"] == "melon"
            turns = (await admin.get("/v1/sessions/s1/tree")).json()["turns"]
        assert [turn["delivered"] for turn in turns] == [True, True]
        assert turns[1]["parent"] == turns[0]["turn"], "the branch goes on across the pods"


def closed(process: Process) -> None:
    """The journal is one whole file that nobody holds."""
    path = process.folder / "journal.sqlite"
    log = path.with_name(path.name + "-wal")
    assert not log.exists() or log.stat().st_size == 0, "everything is in the file itself"
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_a_turn_that_a_weight_update_holds_is_refused_at_once(tmp_path: Path) -> None:
    async with pod(tmp_path, Reply("never"), limits={"drain_s": 3600.0}) as it:
        async with it.process.admin() as admin:
            await admin.post("/v1/pause")
            held = asyncio.ensure_future(it.agent.post("hi"))

            async def holds() -> bool:
                return bool((await admin.get("/v1/status")).json()["in_flight"])

            await until(holds, what="the turn is held")
        it.process.signal(signal.SIGTERM)
        answer = await held
        assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (503, "Draining")
        assert await it.gone() == 0


WAITS = {
    "events": ("/v1/events?wait_s=600&after={cursor}", 200),
    "a session's end": ("/v1/sessions/s1/wait?timeout_s=600", 503),
    "tasks": ("/v1/tasks?wait_s=600", 200),
}


@pytest.mark.parametrize(("path", "status"), WAITS.values(), ids=WAITS)
async def test_who_only_waits_does_not_hold_it_up(path: str, status: int) -> None:
    async with gateway() as g:
        await g.session(session_id="s1")
        waiting = asyncio.ensure_future(g.admin.get(path.format(cursor=g.core.sessions.cursor)))
        await eventually(lambda: bool(g.core.sessions.changed._waiters), "it waits")
        assert await g.core.turns.drain(0.0)
        assert (await waiting).status_code == status


async def test_a_turn_that_takes_too_long_is_cut_and_asked_again_it_is_sampled_anew(tmp_path: Path) -> None:
    reply, gate = gated("never ends", at=2)
    async with pod(tmp_path, reply, Reply("anew"), gate=gate, limits={"drain_s": 0.1}) as it:
        running = asyncio.ensure_future(it.agent.post("hi"))
        await within(gate.reached)
        assert await it.process.end(signal.SIGTERM) == 0
        (cut,) = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(cut, httpx.HTTPError) or (
            isinstance(cut, httpx.Response) and cut.status_code >= 500
        )
        closed(it.process)
        await it.process.start()
        assert (await it.agent.ask("hi"))["content"] == "anew"


async def test_it_needs_the_gateway_extra_only(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    env = {"PYTHONPATH": str(tmp_path)}
    async with pod(tmp_path, Reply("lean"), env=env) as it:
        assert (await it.agent.ask("hi"))["content"] == "lean"
        assert await it.process.end(signal.SIGTERM) == 0


async def test_its_name_in_the_environment_names_its_url_and_its_journal(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "origin": "http://$(POD).gateways.ns.svc:8000",
        "journal": str(tmp_path / "$(POD).sqlite"),
    }
    async with pod(tmp_path, Reply("x"), env={"POD": "shop-gateway-1"}, **settings) as it:
        assert it.handle["base_url"] == "http://shop-gateway-1.gateways.ns.svc:8000/sessions/s1/v1"
        assert (tmp_path / "shop-gateway-1.sqlite").exists()
