"""What a turn costs the gateway in each protocol, beside chat; or chat, beside another checkout of this repository.

    python -m tests.bench.protocols [--write]
    python -m tests.bench.protocols --beside FOLDER

One gateway takes turns in all protocols, round by round, so that whatever else the machine does hits all alike. CPU is
the process's own clock; of the rounds' numbers the smallest and the median are told. `--beside`: chat alone, in turns
by this tree's gateway and by the one of a checkout that has a `.venv` of its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import orjson
import uvloop

from sandgate.contract.keys import Key, Scope, mint
from tests.bench import report
from tests.bench.load import Texts
from tests.bench.model import folder
from tests.bench.run import K5, SECRET, gateway, process
from tests.bench.speakers import SPEAKERS
from tests.bench.wire import Connection

TITLE = "A turn in each protocol"
HEAD = """\
CPU time of the gateway's process for a turn of the conversations of "5k" above, one at a time, JSON and streamed. In
each round one gateway serves every protocol; a ratio is that to chat of the same round, and both are the medians of
the rounds. "responses" sends all items with each request and keeps none (`store: false`), as Codex does; "responses,
kept" goes on from `previous_response_id`. "completions" is a text that the client writes itself, without the tokens
that end turns, so that each turn is a root; "generate" are token ids.

Made by `python -m tests.bench.protocols --write`.

"""

Costs = dict[str, list[float]]
"""Case -> milliseconds of CPU a turn, by round."""


def cpu_ms(pid: int) -> float:
    """Of a process that runs, to the nanosecond: Linux numbers its clock so (clock_getcpuclockid)."""
    return time.clock_gettime(((~pid) << 3) | 2) * 1000


class Load:
    """Conversations with one gateway."""

    def __init__(self, origin: str, pid: int, turns: int, sessions: int) -> None:
        self.origin, self.pid, self.turns, self.sessions = origin, pid, turns, sessions
        self.texts = Texts()
        self.admin = mint(SECRET, Key(Scope.ADMIN, "", "", 0))

    async def cost(self, name: str, stream: bool, number: int) -> float:
        """Milliseconds of CPU a turn, of some sessions one after the other. Raises on any error."""
        began = cpu_ms(self.pid)
        seeds = [f"{name.replace(', ', '-')}-{stream}-{number}-{one}" for one in range(self.sessions)]
        for seed in seeds:
            await self._conversation(name, stream, seed)
        took = cpu_ms(self.pid) - began
        for seed in seeds:
            await self._check(name, seed)
        return took / (self.turns * self.sessions)

    async def _conversation(self, name: str, stream: bool, seed: str) -> None:
        connection = await Connection.open(self.origin)
        body = orjson.dumps({"session_id": seed, "uid": seed})
        made = await connection.ask("POST", "/v1/sessions", body, self.admin)
        handle = orjson.loads(made.body)
        prompts = self.texts.cut("system", K5 // 2), self.texts.cut(seed, K5 // 2)
        speaker = SPEAKERS[name](*prompts, stream=stream)
        for turn in range(self.turns):
            path = f"/sessions/{seed}{speaker.path}"
            got = await connection.ask("POST", path, speaker.request(), handle["api_key"])
            if got.status != 200:
                raise RuntimeError(f"{name}: {got.status} {got.body[:300]!r}")
            speaker.take(got.body, self.texts.cut(f"{seed}-{turn}", 230))
        connection.close()

    async def _check(self, name: str, seed: str) -> None:
        """All turns are one branch, where the protocol can have that."""
        connection = await Connection.open(self.origin)
        tree = await connection.ask("GET", f"/v1/sessions/{seed}/tree?text=0", b"", self.admin)
        forks = [turn["fork"] for turn in orjson.loads(tree.body)["turns"] if turn["parent"] is None]
        if len(forks) != (self.turns if SPEAKERS[name].forks else 1):
            raise RuntimeError(f"{name}: {len(forks)} roots, {forks}")
        connection.close()


async def compare(loads: dict[str, Load], names: list[str], rounds: int) -> Costs:
    """Each protocol, by each gateway, in each round; the order turns round."""
    costs: Costs = {}
    cases = [(who, name, stream) for name in names for stream in (False, True) for who in loads]
    for number in range(rounds + 1):
        for who, name, stream in cases if number % 2 else reversed(cases):
            cost = await loads[who].cost(name, stream, number)
            if number:  # what only the first requests of a process cost is not a turn's
                key = " ".join(part for part in (who, name, "SSE" if stream else "JSON") if part)
                costs.setdefault(key, []).append(cost)
    return costs


def measure(*, rounds: int, turns: int, sessions: int, beside: Path | None = None) -> Costs:
    """All protocols by this tree's gateway; or chat, by it and by the one of another checkout."""
    model = folder()
    with ExitStack() as stack:
        engine, _ = stack.enter_context(process(1, "tests.bench.stub_engine", "--model-dir", str(model)))
        loads = {"": Load(*stack.enter_context(gateway(engine, model)), turns, sessions)}
        if beside is not None:
            loads["other"] = Load(*stack.enter_context(gateway(engine, model, beside)), turns, sessions)
        names = ["chat"] if beside is not None else list(SPEAKERS)
        return uvloop.run(compare(loads, names, rounds))


def ratio(costs: Costs, name: str, to: str) -> float:
    """The median of the rounds' ratios."""
    return statistics.median([one / other for one, other in zip(costs[name], costs[to], strict=True)])


def rows(costs: Costs) -> list[list[str]]:
    """Of the table."""
    out = []
    for name in SPEAKERS:
        cells = [name]
        for wire in ("JSON", "SSE"):
            mine = costs[f"{name} {wire}"]
            cells += [
                f"{statistics.median(mine):.2f} / {min(mine):.2f} ms",
                f"{ratio(costs, f'{name} {wire}', f'chat {wire}'):.2f}",
            ]
        out.append(cells)
    return out


COLUMNS = ["protocol", "JSON, median / least", "to chat", "SSE, median / least", "to chat"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout, with a .venv; only chat is measured")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md and .json")
    args = parser.parse_args()
    costs = measure(rounds=args.rounds, turns=10, sessions=4, beside=args.beside)
    if args.beside is not None:
        for wire in ("JSON", "SSE"):
            mine, other = costs[f"chat {wire}"], costs[f"other chat {wire}"]
            print(
                f"chat {wire}: this {statistics.median(mine):.3f} / {min(mine):.3f} ms, "
                f"other {statistics.median(other):.3f} / {min(other):.3f} ms (median / least); "
                f"ratio {ratio(costs, f'chat {wire}', f'other chat {wire}'):.3f}, of the least "
                f"{min(mine) / min(other):.3f}"
            )
        return 0
    table = report.table(COLUMNS, rows(costs))
    print(table)
    if args.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        load = os.getloadavg()[0]
        text = f"{HEAD}{table}\n\nMeasured on {machine}, {args.rounds} rounds, other work beside it (load {load:.0f})."
        report.write(TITLE, text, costs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
