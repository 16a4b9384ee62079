"""A turn's CPU beside a relay that looks at nothing and the least that owns tokens, in one run.

    python -m tests.bench.turns [--rounds N] [--only WORD] [--write]

In each round gateway, owner and relay take the same conversations one after the other, in an order that turns round.
CPU is each process's own clock; a ratio is that of one round, and the median of the rounds is told.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop

from sandgate.contract.keys import Key, Scope, mint
from tests.bench import report
from tests.bench.load import GROUP, Texts
from tests.bench.model import folder
from tests.bench.protocols import cpu_ms
from tests.bench.run import K5, K32, SECRET, gateway, process
from tests.bench.speakers import Chat
from tests.bench.wire import Connection

TITLE = "A turn beside a relay and the least that owns tokens"
HEAD = """\
CPU of a turn, in one run, one core each. The relay is an aiohttp server that passes bytes on. The owner
(`tests/bench/minimal_owner.py`) keeps sampled ids, encodes only what is new and commits each turn with an fsync; it
proves, checks and limits nothing. 256 sampled tokens, four tools; ten-turn conversations of 3.4k to 6.4k prompt
tokens ("5k"), four-turn ones of 30k to 31.5k ("32k"). "later": without the first turn, no prompt shared. "groups of
eight": all turns, eight sessions on one prompt. A stream has 67 events, at once or one each 5 ms.

Made by `python -m tests.bench.turns --write`.

"""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    chars: int
    turns: int
    sessions: int
    width: int = 1
    """Conversations at once."""
    stream: bool = False
    first: bool = False
    """First turns count."""
    shared: bool = False
    delay_ms: float = 0.0


CASES = (
    Case("5k, later turns", K5, 10, 4),
    Case("5k, groups of eight", K5, 10, GROUP, first=True, shared=True),
    Case("32k, later turns", K32, 4, 3),
    Case("stream at once", K5, 6, 4, stream=True),
    Case("stream, an event each 5 ms", K5, 4, 8, 8, stream=True, delay_ms=320.0),
)


class Agents:
    """Conversations with one server."""

    def __init__(self, who: str, origin: str, pid: int) -> None:
        self.who, self.origin, self.pid = who, origin, pid
        self.texts = Texts()
        self.admin = mint(SECRET, Key(Scope.ADMIN, "", "", 0))

    async def cost(self, case: Case, number: int) -> float:
        """Milliseconds of CPU a turn. Raises on any error."""
        talks = [await self._begin(case, f"{case.name}-{number}", one) for one in range(case.sessions)]
        began = cpu_ms(self.pid)
        for talk in talks:
            await talk.turn()
        if not case.first:
            began = cpu_ms(self.pid)
        waiting = iter(talks)

        async def one_after_another() -> None:
            for talk in waiting:
                for _ in range(case.turns - 1):
                    await talk.turn()

        await asyncio.gather(*(one_after_another() for _ in range(case.width)))
        took = cpu_ms(self.pid) - began
        for talk in talks:
            talk.connection.close()
        return took / (case.sessions * (case.turns if case.first else case.turns - 1))

    async def _begin(self, case: Case, run: str, one: int) -> Talk:
        connection = await Connection.open(self.origin)
        name, path, key = f"{run}-{one}".replace(", ", "-").replace(" ", "-"), Chat.path, ""
        if self.who == "gateway":
            body = orjson.dumps({"session_id": name, "uid": run if case.shared else name})
            made = await connection.ask("POST", "/v1/sessions", body, self.admin)
            path, key = f"/sessions/{name}{path}", orjson.loads(made.body)["api_key"]
        shared = run if case.shared else name
        prompts = self.texts.cut(f"{shared}-system", case.chars // 2), self.texts.cut(shared, case.chars // 2)
        return Talk(connection, path, key, Chat(*prompts, stream=case.stream), self.texts, name)


@dataclass
class Talk:
    """One conversation."""

    connection: Connection
    path: str
    key: str
    speaker: Chat
    texts: Texts
    name: str
    turns: int = 0

    async def turn(self) -> None:
        got = await self.connection.ask("POST", self.path, self.speaker.request(), self.key)
        if got.status != 200:
            raise RuntimeError(f"{self.name}: {got.status} {got.body[:300]!r}")
        self.turns += 1
        self._take(got.body)

    def _take(self, raw: bytes) -> None:
        result = self.texts.cut(f"{self.name}-{self.turns}", 230)
        if b'"tool_calls":[{' in raw:
            self.speaker.take(raw, result)
        else:  # the relay's answers are the stub's own words
            said = {"role": "assistant", "content": "some words " * 100}
            self.speaker.history += [said, {"role": "user", "content": result}]


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Who -> milliseconds of CPU a turn, by round."""
    model = folder()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        slow = ("--delay-ms", str(case.delay_ms))
        engine, _ = stack.enter_context(
            process(1, "tests.bench.stub_engine", "--model-dir", str(model), *slow)
        )
        told = ("--engine", engine)
        agents = [
            Agents("gateway", *stack.enter_context(gateway(engine, model))),
            Agents("relay", *stack.enter_context(process(0, "tests.bench.relay", *told))),
        ]
        if not case.stream:
            more = ("--model-dir", str(model), "--journal", str(home / "owner.db"))
            owner = process(0, "tests.bench.minimal_owner", *told, *more)
            agents.append(Agents("owner", *stack.enter_context(owner)))
        return uvloop.run(_rounds(case, agents, rounds))


async def _rounds(case: Case, agents: list[Agents], rounds: int) -> dict[str, list[float]]:
    costs: dict[str, list[float]] = {one.who: [] for one in agents}
    for number in range(rounds + 1):
        for one in agents if number % 2 else reversed(agents):
            cost = await one.cost(case, number)
            if number:  # what only the first requests of a process cost is not a turn's
                costs[one.who].append(cost)
    return costs


def ratio(costs: dict[str, list[float]], to: str) -> float:
    """Of the gateway to another, the median of the rounds."""
    return statistics.median([mine / other for mine, other in zip(costs["gateway"], costs[to], strict=True)])


COLUMNS = ["case", "gateway", "owner", "relay", "to owner", "to relay"]


def row(case: Case, costs: dict[str, list[float]]) -> list[str]:
    """Of the table."""
    shown = [f"{statistics.median(costs[who]):.2f} ms" if who in costs else "" for who in COLUMNS[1:4]]
    ratios = [f"{ratio(costs, who):.2f}" if who in costs else "" for who in COLUMNS[2:4]]
    return [case.name, *shown, *ratios]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md and .json")
    args = parser.parse_args()
    rows, data = [], dict[str, Any]()
    for case in CASES:
        if args.only in case.name:
            data[case.name] = measure(case, args.rounds)
            rows.append(row(case, data[case.name]))
            print(" | ".join(rows[-1]), flush=True)
    if args.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        told = f"Measured on {machine}, {args.rounds} rounds, other work beside it (load {os.getloadavg()[0]:.0f})."
        report.write(TITLE, f"{HEAD}{report.table(COLUMNS, rows)}\n\n{told}", data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
