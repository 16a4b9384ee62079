"""docs/agents-seen.md: what was seen of each real agent, and how that is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.echo_matching import Level
from tests.agents.node_table import NODE_AGENTS
from tests.agents.python_table import PYTHON_AGENTS
from tests.agents.real_agent import RealAgent
from tests.agents.running import Episode

AGENTS: dict[str, RealAgent] = NODE_AGENTS | PYTHON_AGENTS
PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents-seen.md"
HEAD = """\
# Agents that were seen

Real agents from their packages, unmodified, each with a task of three turns and two tool calls. `python -m
tests.agents.report` runs them on a gateway whose engine is scripted, and writes this page; `tests/agents` holds it
(`make test-all`). Every prompt in their rows is, id for id, what the engine was sent, and exactly one row of each is
the main one, with the answer. mini-swe-agent has a test of its own (`tests/e2e/test_third_party.py`).

* *Forks*: turns of an agent's own conversation that left their branch, and why. smolagents' `ToolCallingAgent` writes
  calls and results anew as text for each turn, so each turn is a row of its own.
* *Read as the same*: in what the history that came back differed at most from what was sampled, and went on all the
  same ([the rules](reference/matching.md)): who tells arguments in other words may leave out reasoning, too. The model
  never sees the difference: what it goes on with are its own tokens.

| agent | package | protocol | turns | forks | read as the same | roles |
|---|---|---|---|---|---|---|
"""
DIFFERENT = {
    Level.REASONING: "reasoning left out",
    Level.ARGUMENTS: "arguments in other words",
    Level.WHITESPACE: "outer white space",
    Level.CALL_IDS: "call ids renamed",
}
"""What is noted in the tree, too, is told in the tree's words."""


def row_of(name: str, agent: RealAgent, seen: Episode) -> str:
    """A line of the page."""
    own = [turn["fork"] for turn in seen.turns if turn["role"] == "main"]
    forks = Counter(fork for fork in own if fork and fork != ForkReason.NEW_ROOT)  # which a title came before
    different = [DIFFERENT[level] for level in sorted(seen.levels) if level in DIFFERENT]
    noted = sorted({note.partition(": ")[2] for turn in seen.turns for note in turn["notes"]})
    roles = Counter(
        turn["role"] + (f" ({turn['role_why']})" if turn["role_why"] else "") for turn in seen.turns
    )
    cells = [
        name,
        f"`{agent.package}` {agent.version}",
        agent.protocol,
        str(len(seen.turns)),
        _told(forks, "`"),
        "; ".join([*different, *noted]),
        _told(roles),
    ]
    return f"| {' | '.join(cells)} |"


def recorded() -> dict[str, str]:
    """Agent -> its line of the page."""
    lines = PAGE.read_text("utf-8").splitlines() if PAGE.exists() else []
    rows = [line for line in lines if line.startswith("| ")][1:]
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


def page(rows: Mapping[str, str]) -> str:
    """All of it, in the order of the tables."""
    return HEAD + "".join(f"{rows[name]}\n" for name in _in_order(rows))


def _in_order(rows: Iterable[str]) -> list[str]:
    known = set(rows)
    return [name for name in AGENTS if name in known]


def _told(counted: Mapping[str, int], quote: str = "") -> str:
    return ", ".join(f"{count} {quote}{what}{quote}" for what, count in sorted(counted.items()))
