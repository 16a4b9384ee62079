"""`python -m tests.agents.stall [SECONDS]`: five clients while the engine says nothing for 330 s, streaming.

Two stalls of each: before the first token, and in the middle of a thought. All at once against one gateway, so it takes
little more than SECONDS. Says for each whether it finished, what it sent, and what was captured; exit code 1 if one did
not finish in one branch with one sampling of each turn.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandgate.gateway.config import Limits
from sandgate.gateway.engine.scripted.engine import Gate, Reply
from tests.agents.launch import Ended, launched
from tests.agents.node_table import NODE_AGENTS, NodeAgent, driver
from tests.agents.real_agent import FINAL, LOOK
from tests.agents.running import THOUGHT, WINDOW
from tests.support.gateway import Running, codec, engine, gateway, ids

CLIENTS = {name: NODE_AGENTS[name] for name in ("Claude Code", "Codex", "qwen-code", "opencode")} | {
    "openai-node": NodeAgent(package="openai", protocol="chat", command=driver("openai_node.mjs"), calls=LOOK)
}
STALLS = {"first token": 0, "middle": len(ids(THOUGHT)) // 2}
"""Tokens sampled before the engine stalls."""
ASKED = "What does a.txt say? (case {number})"
START_S = 60.0
"""A client that has asked nothing by then does not come."""


@dataclass
class Case:
    """One client and one stall."""

    client: str
    stall: str
    gate: Gate = field(default_factory=Gate)
    generations: int = 0
    """Of its conversation; titles are not counted."""
    asides: int = 0
    ended: Ended | None = None
    took_s: float = 0.0
    turns: list[dict[str, Any]] = field(default_factory=list)

    @property
    def wrong(self) -> str:
        """Why it does not hold; empty: it does."""
        if self.ended is None or self.ended.code != 0 or FINAL not in self.ended.out:
            return f"did not finish: {self.ended.tail if self.ended else 'was not started'}"
        if self.generations != 3:
            return f"{self.generations} generations for three turns"
        main = [turn for turn in self.turns if turn["role"] == "main"]
        if [turn["parent"] for turn in main] != [None, *[turn["turn"] for turn in main[:2]]]:
            return f"not one branch: {[(turn['turn'], turn['parent'], turn['fork']) for turn in main]}"
        if any(turn["resampled"] or turn["notes"] or turn["delivered"] is not True for turn in self.turns):
            return "a turn was sampled again, or not delivered"
        return ""


class Brain:
    """Plays all cases; which one a prompt is of, it says."""

    def __init__(self, cases: list[Case]) -> None:
        self.cases = cases

    def __call__(self, prompt: Any, _: int) -> str | Reply:
        text = codec().decode(prompt)
        said = re.findall(r"\(case (\d+)\)", text)
        case = self.cases[int(said[-1])]
        if "<tools>" not in text:
            case.asides += 1
            return "A title"
        case.generations += 1
        answered = text.rpartition(f"(case {said[-1]})")[2].count("<tool_response>")
        if answered == 0:
            return Reply(THOUGHT + CLIENTS[case.client].calls[0], gate=case.gate, gate_at=STALLS[case.stall])
        return CLIENTS[case.client].calls[1] if answered == 1 else FINAL


async def held(seconds: float, names: Iterable[str], keepalive_s: float = Limits().keepalive_s) -> list[Case]:
    """Every client of `names` with every stall; the gateway's own times, unless one is said."""
    cases = [Case(name, stall) for name in names for stall in STALLS]
    with ExitStack() as stack:
        homes = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))) for _ in cases
        ]
        told = {"keepalive_s": keepalive_s}
        async with gateway(engine(Brain(cases), max_model_len=WINDOW), limits=told) as g:
            g.core.turns.told_window = WINDOW
            async with asyncio.TaskGroup() as tasks:
                for number, case in enumerate(cases):
                    tasks.create_task(_client(g, number, case, homes[number], seconds + 300))
                    try:  # one after the other: ten that start at once are slow on a small machine
                        await asyncio.wait_for(case.gate.reached.wait(), START_S)
                    except TimeoutError:
                        continue
                    asyncio.get_running_loop().call_later(seconds, case.gate.open.set)
    return cases


async def _client(g: Running, number: int, case: Case, home: Path, within_s: float) -> None:
    session = await g.session()
    work = home / "work"
    work.mkdir()
    (work / "a.txt").write_text("kiwi\n")
    began = time.monotonic()
    case.ended = await launched(
        CLIENTS[case.client], session, home, work, prompt=ASKED.format(number=number), within_s=within_s
    )
    case.took_s = time.monotonic() - began
    case.turns = await g.tree(session)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=330.0)
    parser.add_argument("--only", choices=CLIENTS, action="append")
    asked = parser.parse_args()
    cases = asyncio.run(held(asked.seconds, asked.only or list(CLIENTS)))
    for case in cases:
        print(
            f"{case.client:12} {case.stall:12} {case.took_s:6.1f} s  {case.generations} generations, "
            f"{len(case.turns)} turns, {case.asides} asides  {case.wrong or 'finished'}"
        )
    return 1 if any(case.wrong for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
