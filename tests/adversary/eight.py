"""Seven honest agents and a gateway process, with and without a hostile agent beside them.

alone = await told(folder, attacked=False)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.adversary import hostile
from tests.adversary.victim import Victim, chat, victim
from tests.support.gateway import user
from tests.support.waiting import until

HONEST = 7
TURNS = 30
EVERY = 8
PROGRAM = hostile.__file__


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

    def quantile(self, percent: int) -> float:
        """Seconds of its turns."""
        return sorted(self.took_s)[len(self.took_s) * percent // 100]


@dataclass
class Hostile:
    """tests/adversary/hostile.py, which does it all, again and again, until it is killed."""

    process: asyncio.subprocess.Process
    rounds: int = 0

    async def watch(self) -> None:
        """It says a line for each round, and nothing else."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            assert line.decode().strip() == str(self.rounds), line
            self.rounds += 1

    async def has(self, rounds: int) -> bool:
        assert self.process.returncode is None, f"the hostile agent ended with {self.process.returncode}"
        return self.rounds >= rounds


async def honest(
    agent: httpx.AsyncClient, number: int, told: Told, beside: Hostile | None, turns: int, every: int
) -> None:
    """A conversation, which goes on while the hostile one does all it does a few times."""
    said: list[dict[str, Any]] = []
    for turn in range(turns):
        if beside is not None:
            await until(partial(beside.has, turn // every), what="it is at work", within_s=120.0)
        if turn % TURNS == 0:  # what fits into the window; then another conversation
            said = []
        said.append(user(f"agent {number}, turn {turn}"))
        began = time.perf_counter()
        answer = await agent.post("v1/chat/completions", content=chat(messages=said))
        told.took_s.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text
        said.append(answer.json()["choices"][0]["message"])


@asynccontextmanager
async def beside(v: Victim) -> AsyncIterator[Hostile]:
    """What runs while the block does."""
    agent = await v.session(**spec(HONEST))
    told = {
        "OPENAI_BASE_URL": f"{agent.base_url}v1",
        "OPENAI_API_KEY": agent.headers["authorization"].split()[1],
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, env={**os.environ, **told}, stdout=asyncio.subprocess.PIPE
    )
    one = Hostile(process)
    watching = asyncio.ensure_future(one.watch())
    try:
        yield one
    finally:
        process.kill()
        await process.wait()
        await watching


def spec(number: int) -> dict[str, Any]:
    return {"session_id": f"s{number}", "uid": f"q{number}", "reward_source": "verifier"}


async def told(folder: Path, *, attacked: bool, turns: int = TURNS, every: int = EVERY) -> Told:
    """`every`: turns of an honest agent to one round of the hostile one's, at least; more than `turns`: it does not
    wait for the other, which began before."""
    found = Told()
    async with victim(folder, reply) as v:
        v.forget_peak()
        agents = [await v.session(**spec(number)) for number in range(HONEST)]
        async with contextlib.AsyncExitStack() as stack:
            one = None
            if attacked:
                one = await stack.enter_async_context(beside(v))
            await asyncio.gather(
                *(honest(agent, number, found, one, turns, every) for number, agent in enumerate(agents))
            )
            found.tricks = one.rounds if one else 0
        for number in range(HONEST + attacked):
            ended = await v.admin.post(
                f"/v1/sessions/s{number}/finalize", json={"reward": float(number < HONEST)}
            )
            assert ended.status_code == 200, ended.text
            found.rows[f"s{number}"] = ended.json()["trajectories"]
        found.peak_mb = v.peak_mb()
    return found
