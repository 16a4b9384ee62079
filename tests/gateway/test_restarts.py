"""A gateway process that is killed or stopped: what it told stays told, what it had not told is sampled once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sandgate.gateway.engine.scripted.script import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from tests.support.gateway import Agent, client, codec, gated, ids, within
from tests.support.process import Process
from tests.support.waiting import until

KILLS = int(os.environ.get("SANDGATE_KILLS") or 8)
AGENTS = 4
BROKEN = (openai.APIConnectionError, openai.APIError, httpx.HTTPError)
"""What the SDK raises when a stream is cut; whole answers it asks for again by itself."""


def _player(script: Any, **more: Any) -> Player:
    return Player(script, encode=ids, eos_ids=codec().stop_ids, max_model_len=4096, **more)


class Worker:
    """An agent that keeps talking through every restart and writes down what it was told."""

    def __init__(self, number: int, agent: Agent) -> None:
        self.agent, self.streams = agent, number % 2 == 1
        self.told: list[tuple[str, str]] = []
        self.history: list[Any] = [{"role": "user", "content": f"I am agent {number}"}]
        self.sdk = agent.openai(max_retries=20)
        self.sdk._calculate_retry_timeout = lambda *_: 0.02  # type: ignore[method-assign]  # seconds; SDK: up to 8

    async def talk(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            turn, text = await (self._streamed() if self.streams else self._whole())
            self.told.append((turn, text))
            self.history += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]

    async def _whole(self) -> tuple[str, str]:
        answer = await self.sdk.chat.completions.create(model="shop", messages=self.history)
        return answer.id.removeprefix("chatcmpl-"), answer.choices[0].message.content or ""

    async def _streamed(self) -> tuple[str, str]:
        while True:
            try:
                stream = await self.sdk.chat.completions.create(
                    model="shop", messages=self.history, stream=True
                )
                text, ended, name = "", False, ""
                async for chunk in stream:
                    name = chunk.id
                    for choice in chunk.choices:
                        text += choice.delta.content or ""
                        ended = ended or choice.finish_reason is not None
                if ended:
                    return name.removeprefix("chatcmpl-"), text
            except BROKEN:
                pass


class World:
    """Agents that talk through every life of one gateway, and an engine that outlives them all."""

    def __init__(self) -> None:
        self.asked = 0
        self.player = _player(self._reply, token_s=0.002)
        self.specs = [{"session_id": f"s{number}", "uid": f"q{number}"} for number in range(AGENTS)]
        self.workers: list[Worker] = []

    def _reply(self, prompt: object, number: int) -> str:
        """No two generations say the same."""
        self.asked += 1
        return f"r{number}"

    @property
    def told(self) -> int:
        return sum(len(worker.told) for worker in self.workers)

    async def open(self, process: Process) -> Any:
        """Handles of the sessions, made or found again."""
        async with process.admin() as admin:
            return (await admin.post("/v1/sessions", json=self.specs)).json()

    async def talk(self, process: Process, handles: Any, kills: int) -> None:
        """Until the last life; each one tells at least one turn before it is killed at a random moment."""
        self.workers = [
            Worker(number, Agent(handle, client(f"{process.origin}/sessions/{handle['session_id']}/")))
            for number, handle in enumerate(handles)
        ]
        chance, stop = random.Random(7), asyncio.Event()
        talking = [asyncio.ensure_future(worker.talk(stop)) for worker in self.workers]
        for _ in range(kills):

            async def goes_on(seen: int = self.told) -> bool:
                return self.told > seen

            await until(goes_on, what="this life tells a turn")
            assert process.life is not None
            life = process.life
            asyncio.get_running_loop().call_later(chance.uniform(0.0, 0.2), life.kill)
            await life.wait()
            await process.start()
        stop.set()
        await asyncio.gather(*talking)
        for worker in self.workers:
            await worker.agent.aclose()

    async def look(self, process: Process, what: str, **body: Any) -> list[Any]:
        """One answer of the control API per session."""
        async with process.admin() as admin:
            method = "POST" if body else "GET"
            urls = [f"/v1/sessions/{spec['session_id']}/{what}" for spec in self.specs]
            return [(await admin.request(method, url, json=body or None)).json() for url in urls]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killed_again_and_again_no_told_turn_is_lost_doubled_or_sampled_again(tmp_path: Path) -> None:
    """kill -9 at random moments under running conversations with the real SDK, whole and streamed, on real SQLite."""
    world = World()
    async with ScriptedServer(world.player, model="shop") as server, Process(tmp_path, server.url) as process:
        await process.start()
        handles = await world.open(process)
        async with process.admin() as admin:
            cursor = (await admin.get("/v1/events", params={"wait_s": 0})).json()["cursor"]
        await world.talk(process, handles, KILLS)
        assert process.lives == KILLS + 1
        again = await world.open(process)
        async with process.admin() as admin:
            events = (await admin.get("/v1/events", params={"after": cursor, "wait_s": 0})).json()
        trees = await world.look(process, "tree")
        rows = await world.look(process, "finalize", reward=1.0)
    assert again == handles, "open sessions go on with the same ids, URLs and keys"
    assert events["reset"] is True
    for worker, tree, row in zip(world.workers, trees, rows, strict=True):
        told = [turn for turn, _ in worker.told]
        assert len(set(told)) == len(told), "no answer was told as two turns"
        turns = tree["turns"]
        assert [turn["turn"] for turn in turns] == told, (
            "no told turn is lost, and nothing else was committed"
        )
        assert [turn["parent"] for turn in turns] == [None, *told[:-1]], "none was doubled: one branch"
        for turn, (_, text) in zip(turns, worker.told, strict=True):
            assert turn["spans"][1]["ids"] == [*ids(text), codec().stop_ids[0]]
        assert [one["turn_ids"] for one in row["trajectories"]] == [told]
    committed = sum(len(tree["turns"]) for tree in trees)
    assert committed > KILLS
    assert world.asked - committed <= KILLS * AGENTS, "only what was in flight at a kill was sampled again"
    texts = {text for worker in world.workers for _, text in worker.told}
    assert len(texts) == committed, "each told answer is a generation of its own"


async def test_sigterm_lets_running_turns_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    reply, gate = gated("kiwi")
    player = _player([reply])
    patient = {"drain_s": 60.0}
    async with (
        ScriptedServer(player, model="shop") as server,
        Process(tmp_path, server.url, limits=patient) as process,
    ):
        await process.start()
        async with process.admin() as admin:
            handle = (await admin.post("/v1/sessions", json={"session_id": "s1"})).json()
            agent = Agent(handle, client(f"{process.origin}/sessions/s1/", handle["api_key"]))
            running = asyncio.ensure_future(agent.post("hi"))
            await within(gate.reached)
            process.signal(signal.SIGTERM)
            codes: list[int] = []
            while 503 not in codes:
                codes.append((await admin.get("/readyz")).status_code)
            refused = await agent.post("another")
            assert refused.status_code == 503
            assert refused.headers["x-sandgate-reason"] == "Draining"
            gate.open.set()
            assert (await running).status_code == 200
            await agent.aclose()
        assert process.life is not None
        async with asyncio.timeout(20):
            assert await process.life.wait() == 0


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "truncated"),
        ('{"journal": "j", "engine": {"urls": []}, "model": {"name": "x"}, "secret_file": "s"}', "tokenizer"),
        ('{"journal": "j", "wormhole": 1}', "wormhole"),
    ],
    ids=["no JSON", "a field is missing", "an unknown field"],
)
async def test_a_bad_config_is_one_line_and_exit_code_2(tmp_path: Path, config: str, says: str) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(config)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sandgate.gateway.app",
        "--config",
        str(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert error.count(b"\n") == 1
    assert error.startswith(b"error: ")
    assert says.encode() in error
