"""A gateway process that is killed or stopped: what it told stays told, what it had not told is sampled once."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sandgate.gateway.engine.script import Player
from sandgate.gateway.engine.scripted_server import ScriptedServer
from tests.support.gateway import Agent, client, codec, gated, ids, within
from tests.support.process import Process
from tests.support.waiting import until

KILLS = 20
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
            # The history is cut now and then: the window is small, and each new root is one more thing to keep.
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


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killed_20_times_no_told_turn_is_lost_doubled_or_sampled_again(tmp_path: Path) -> None:
    """kill -9 at random moments under running conversations with the real SDK, whole and streamed, on real SQLite."""
    chance = random.Random(7)
    asked: list[tuple[int, ...]] = []

    def script(prompt: Any, number: int) -> str:
        asked.append(tuple(prompt))
        return f"r{number}"

    player = _player(script, token_s=0.002)
    async with ScriptedServer(player, model="shop") as server, Process(tmp_path, server.url) as process:
        await process.start()
        async with process.admin() as admin:
            specs = [{"session_id": f"s{number}", "uid": f"q{number}"} for number in range(AGENTS)]
            handles = (await admin.post("/v1/sessions", json=specs)).json()
            first_cursor = (await admin.get("/v1/events", params={"wait_s": 0})).json()["cursor"]
        agents = [
            Agent(handle, client(f"{process.origin}/sessions/{handle['session_id']}/")) for handle in handles
        ]
        workers = [Worker(number, agent) for number, agent in enumerate(agents)]
        stop = asyncio.Event()
        talking = [asyncio.ensure_future(worker.talk(stop)) for worker in workers]
        for _ in range(KILLS):
            assert process.life is not None
            seen = sum(len(worker.told) for worker in workers)

            async def goes_on(seen: int = seen) -> bool:
                return sum(len(worker.told) for worker in workers) > seen

            await until(goes_on, what="this life tells a turn")
            life = process.life
            asyncio.get_running_loop().call_later(chance.uniform(0.0, 0.2), life.kill)
            await life.wait()
            await process.start()
        stop.set()
        await asyncio.gather(*talking)
        async with process.admin() as admin:
            trees = [
                (await admin.get(f"/v1/sessions/{agent.id}/tree", params={"text": False})).json()
                for agent in agents
            ]
            again = (await admin.post("/v1/sessions", json=specs)).json()
            events = (await admin.get("/v1/events", params={"after": first_cursor, "wait_s": 0})).json()
            rows = [
                (await admin.post(f"/v1/sessions/{agent.id}/finalize", json={"reward": 1.0})).json()
                for agent in agents
            ]
        for agent in agents:
            await agent.aclose()
    assert process.lives == KILLS + 1
    assert again == handles, "open sessions go on with the same ids, URLs and keys"
    assert events["reset"] is True
    for worker, tree, row in zip(workers, trees, rows, strict=True):
        told = [turn for turn, _ in worker.told]
        assert len(set(told)) == len(told), "no answer was told as two turns"
        turns = tree["turns"]
        assert [turn["turn"] for turn in turns] == told, (
            "no told turn is lost, and nothing else was committed"
        )
        assert [turn["parent"] for turn in turns] == [None, *told[:-1]], "none was doubled: one branch"
        for turn, (_, text) in zip(turns, worker.told, strict=True):
            sampled = turn["spans"][1]["ids"]
            assert sampled == [*ids(text), codec().stop_ids[0]]
        assert [one["turn_ids"] for one in row["trajectories"]] == [told]
    committed = sum(len(tree["turns"]) for tree in trees)
    lost = len(asked) - committed
    assert committed > KILLS
    assert lost <= KILLS * AGENTS, "only what was in flight at a kill was sampled again"
    texts = {text for worker in workers for _, text in worker.told}
    assert len(texts) == committed, "each told answer is a generation of its own"


async def test_sigterm_lets_running_turns_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    reply, gate = gated("kiwi")
    player = _player([reply])
    async with ScriptedServer(player, model="shop") as server, Process(tmp_path, server.url) as process:
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
