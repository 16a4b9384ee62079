"""kill -9 of the gateway, again and again under one job: unmodified agents notice nothing, nothing told is lost.

At each moment of a turn once; `make chaos` kills more often."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from sandgate.operator.local.job import ProcessRestarted, SessionStarted
from sandgate.sandbox import procfs
from tests.e2e import books, truth
from tests.e2e.rig import SHOP, Run, job
from tests.e2e.truth import Parity
from tests.support.recorder import Chat, Exchange, Generation, Recorder

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(700)]

MOMENTS = [f"{who} {what}" for who in ("agent", "engine") for what in ("asked", "answered", "told")]
"""Of a turn: the agent asks, the engine is asked, answers, has told the gateway; the gateway answers, has told the
agent."""
KILLS = int(os.environ.get("SANDGATE_KILLS") or len(MOMENTS))
WITHIN_S = 500.0
"""A guard against a hang: 20 kills took 80 s alone on two cores; beside a cluster's pods over 200 s."""
JITTER_S = 0.02
"""A commit takes some 5 ms: kills fall before, into and behind it."""
STALL_S = 1.0
"""From the engine's answer to a durable turn, and from a gateway's request to our reading of it, it takes milliseconds;
two busy cores stall."""
RETRIES = 2
"""Of the OpenAI SDK, by default. An agent's last try is not cut: nobody promises that a third one comes."""


class Killer:
    """Hooks of the two recorders. Each kill waits for the n-th of its kind of moment."""

    def __init__(self, folder: Path, agents: Recorder, seed: int) -> None:
        self._folder = folder
        self._config = str(folder / "run" / "gateway-0.json").encode()
        self._agents, self._chance = agents, random.Random(seed)
        self.plan = [(MOMENTS[n % len(MOMENTS)], self._chance.randint(1, 3)) for n in range(KILLS)]
        self._chance.shuffle(self.plan)
        self._due = False
        self._last = 0
        """Process that was killed; it may take a moment to go."""
        self.killed: list[tuple[str, float]] = []
        """(moment, unix seconds)."""

    async def agent(self, what: str, exchange: Exchange) -> web.Response | None:
        self._moment(f"agent {what}")
        return None

    async def engine(self, what: str, exchange: Exchange) -> web.Response | None:
        self._moment(f"engine {what}")
        return None

    def _moment(self, name: str) -> None:
        if not self.plan or self._due:
            return
        wanted, left = self.plan[0]
        if name == wanted:
            self.plan[0] = (wanted, left - 1)
        if self.plan[0][1] <= 0:
            self._due = True
            asyncio.get_running_loop().call_later(self._chance.uniform(0.0, JITTER_S), self._kill)

    def _kill(self) -> None:
        """Not now if an agent is at its last try or no gateway is there: then at the next such moment."""
        self._due = False
        last_try = any(one.over_at == math.inf and retry_of(one) >= RETRIES for one in self._agents.chats)
        pids = [pid for pid in procfs.pids() if self._config in command_of(pid)]
        if last_try or not pids or pids[0] == self._last:
            return
        self._last = pids[0]
        os.kill(self._last, signal.SIGKILL)
        self.killed.append((self.plan.pop(0)[0], time.time()))

    def behind(self, lost: Generation, begun: float) -> float | None:
        """When the kill came that `lost` was lost to, the first since it was begun: while it was under way; or after
        its end, before it can have been committed. That takes a moment, and as long as the disk stands still: the
        journal is written in order, so that a turn whose end had been known when a later record was made is behind no
        record that is on disk."""
        end = next((at for _, at in self.killed if at >= begun), None)
        if end is None or self._noted(lost.over_at + STALL_S, end):
            return None
        return end

    def noted_since(self, lost: Generation, end: float) -> list[float]:
        """Records behind the note that it was begun, which waits 5 ms for company, and longer for a slow disk. The
        journal is written in order: if there are any, the note must be there as well."""
        return self._noted(lost.at, end)

    def _noted(self, since: float, until: float) -> list[float]:
        return [record.at for _, record in books.records(self._folder) if since < record.at < until]


def retry_of(chat: Chat) -> int:
    return int(chat.headers.get("x-stainless-retry-count", 0))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_killed_at_each_moment_of_a_turn_a_job_loses_nothing_it_told(
    tmp_path: Path, recorder: Recorder, parity: Parity
) -> None:
    run = Run(tmp_path / "out", recorder.url)
    async with Recorder("http://127.0.0.1:9") as agents:
        killer = Killer(run.out, agents, seed=20)
        agents.hook, recorder.hook = killer.agent, killer.engine
        through = [sys.executable, str(Path(__file__).with_name("through.py")), agents.url]
        result = await run.go(job(SHOP, before=through), within_s=WITHIN_S)
    assert Counter(moment for moment, _ in killer.killed) == Counter(
        MOMENTS[n % len(MOMENTS)] for n in range(KILLS)
    )
    assert len(run.of(ProcessRestarted)) == result.restarts == KILLS
    assert (result.complete, result.sessions, result.failures) == (True, 32, {})
    assert len(run.of(SessionStarted)) == 32, "no agent had to be started again"

    found = books.sessions(run.out, agents.chats)
    assert len(found) == 32
    for session in found.values():
        session.check()
    assert any(retry_of(chat) for chat in agents.chats), "agents did ask again"

    made = truth.check(run.rows(), recorder.generations)
    assert parity.check(made) == result.sampled_tokens
    assert len(made) == sum(len(session.committed) for session in found.values()) == result.turns
    explained(killer, recorder.generations, made, found)


def explained(
    killer: Killer, asked: list[Generation], made: list[Generation], found: dict[str, books.Session]
) -> None:
    """What the engine sampled beside the committed turns."""
    assert {*Counter(one.turn for one in asked).values()} == {1}, "the engine was asked for each turn once"
    lost = [one for one in asked if one not in made]
    assert lost
    noted = {one.turn: one.at for session in found.values() for one in session.lost}
    # One that no journal knows was asked for in the moments before it was read here.
    behind = {one: killer.behind(one, noted.get(one.turn, one.at - STALL_S)) for one in lost}
    unkilled = [(one.turn, one.at, one.over_at) for one, end in behind.items() if end is None]
    assert not unkilled, f"nothing is sampled again without a kill: {killer.killed}"
    unflagged = books.unknown(found, asked)
    assert {*unflagged} <= {*lost}
    assert not [one for one in unflagged if killer.noted_since(one, behind[one] or 0.0)], (
        "what is on disk is known to the next life"
    )
