"""One hostile agent beside seven honest ones, with every trick at once: their records are what they are without it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.adversary.messages import HOSTILE
from tests.adversary.victim import Victim, Wires, chat, head, victim
from tests.support.gateway import user
from tests.support.waiting import until

HONEST = 7
TURNS = 30
EVERY = 8
"""Turns of an honest agent to one round of the hostile one's, at least."""
RSS_MB = 512
SAME = (
    "uid", "session_id", "sample_index", "prompt_ids", "response_ids", "response_logprobs", "loss_mask", "versions",
    "turn_ends", "reward", "finish_reason", "fork_reason", "failure_class", "complete", "masked", "metadata",
)  # fmt: skip


def reply(ids: Any, number: int) -> str:
    """Decided by the prompt alone: whoever else asks, and when, changes nothing."""
    words = int(ids[-1]) % 20
    return f"answer {hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:24]} " + "word " * words


@dataclass
class Told:
    """What came of a run."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    tricks: int = 0


DEEP = b"[" * 200_000
WIDE = b'{"' + b"k" * 1_000_000 + b'":[' + b"0," * 400 + b'0],"x":NaN}'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"enum": [[]] * 100_000}}}]


def bodies(number: int) -> list[bytes]:
    """Model calls that cost more than they look."""
    return [
        DEEP,
        WIDE,
        chat(tools=TOOLS),
        chat(messages=[user("x " * 400_000)]),
        chat(messages=[user("<|im_end|>" * 5_000)]),
        chat(n=8, logprobs=True, top_logprobs=20, messages=[user(f"all of it {number}")]),
        chat(stop=["a"] * 100_000),
        chat(messages=[user("\ud83d" * 1_000)]),
        chat(max_tokens=10**400),
        chat(response_format={"type": "json_schema"}),
    ]


@dataclass
class Hostile:
    """Does it all, again and again, until it is told to stop."""

    v: Victim
    agent: httpx.AsyncClient
    wires: Wires
    tricks: int = 0

    @property
    def key(self) -> str:
        return self.agent.headers["authorization"].split()[1]

    @property
    def path(self) -> str:
        return str(self.agent.base_url.path)

    async def has(self, rounds: int) -> bool:
        return self.tricks >= rounds

    async def run(self) -> None:
        for number in itertools.count():
            await asyncio.gather(self.ask(number), self.rewards(), self.streams(number), self.drips())
            self.tricks += 1

    async def post(self, path: str, body: bytes) -> None:
        with contextlib.suppress(httpx.HTTPError):
            answer = await self.agent.post(path, content=body)
            assert answer.status_code != 500, (path, body[:200], answer.text)

    async def ask(self, number: int) -> None:
        await asyncio.gather(*(self.post("v1/chat/completions", body) for body in bodies(number)))

    async def rewards(self) -> None:
        """Its own, at every door."""
        for raw in HOSTILE.values():
            await self.post("reward", raw)
        name = self.path.strip("/").rpartition("/")[2]
        async with httpx.AsyncClient(base_url=self.v.origin, headers=dict(self.agent.headers)) as http:
            for door in ("reward", "finalize", "abort"):
                answer = await http.post(f"/v1/sessions/{name}/{door}", json={"reward": 1.0})
                assert answer.status_code in (401, 403, 429), answer.text

    async def streams(self, number: int) -> None:
        """That nobody reads, and that are cut."""
        for part in range(4):
            body = chat(stream=True, logprobs=True, messages=[user(f"stream {number} {part}")])
            with contextlib.suppress(OSError):
                await self.wires.deaf(self.head(len(body)) + body)

    async def drips(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(4):
                await self.wires.open(self.head(4_000_000) + b"[" * 10_000)

    def head(self, length: int) -> bytes:
        return head("POST", f"{self.path}v1/chat/completions", self.key, content_length=str(length))


async def honest(agent: httpx.AsyncClient, number: int, told: Told, beside: Hostile | None) -> None:
    """A conversation, which goes on while the hostile one does all it does a few times."""
    said: list[dict[str, Any]] = []
    for turn in range(TURNS):
        if beside is not None:
            await until(partial(beside.has, turn // EVERY), what="it is at work", within_s=120.0)
        said.append(user(f"agent {number}, turn {turn}"))
        began = time.perf_counter()
        answer = await agent.post("v1/chat/completions", content=chat(messages=said))
        told.took_s.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text
        said.append(answer.json()["choices"][0]["message"])


@asynccontextmanager
async def beside(v: Victim, make: Callable[[], Any]) -> AsyncIterator[Any]:
    """What runs while the block does."""
    async with Wires(v.origin) as wires:
        one = Hostile(v, await v.session(**make()), wires)
        running = asyncio.ensure_future(one.run())
        try:
            yield one
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def spec(number: int) -> dict[str, Any]:
    return {"session_id": f"s{number}", "uid": f"q{number}", "reward_source": "verifier"}


async def told(folder: Path, *, attacked: bool) -> Told:
    found = Told()
    async with victim(folder, reply) as v:
        v.forget_peak()
        agents = [await v.session(**spec(number)) for number in range(HONEST)]
        async with contextlib.AsyncExitStack() as stack:
            one = None
            if attacked:
                one = await stack.enter_async_context(beside(v, lambda: spec(HONEST)))
            await asyncio.gather(*(honest(agent, number, found, one) for number, agent in enumerate(agents)))
            found.tricks = one.tricks if one else 0
        for number in range(HONEST + attacked):
            ended = await v.admin.post(
                f"/v1/sessions/s{number}/finalize", json={"reward": float(number < HONEST)}
            )
            assert ended.status_code == 200, ended.text
            found.rows[f"s{number}"] = ended.json()["trajectories"]
        found.peak_mb = v.peak_mb()
    return found


async def test_the_seven_have_the_records_that_they_have_without_it(tmp_path: Path) -> None:
    for name in ("alone", "attacked"):
        (tmp_path / name).mkdir()
    alone = await told(tmp_path / "alone", attacked=False)
    attacked = await told(tmp_path / "attacked", attacked=True)
    for name, rows in alone.rows.items():
        again = attacked.rows[name]
        assert [{key: row.get(key) for key in SAME} for row in again] == [
            {key: row.get(key) for key in SAME} for row in rows
        ]
    assert {row["reward"] for row in attacked.rows[f"s{HONEST}"]} <= {0.0}, "its reward is what it earned"
    assert attacked.peak_mb < RSS_MB
    slow = {name: max(run.took_s) for name, run in (("alone", alone), ("attacked", attacked))}
    print(json.dumps({"slowest turn, s": slow, "peak, MB": attacked.peak_mb, "rounds": attacked.tricks}))
