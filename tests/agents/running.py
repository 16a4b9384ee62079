"""One real agent's task on a gateway whose engine is scripted: three turns, and all that was seen of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.gateway.conversation.echo_matching import Level
from sandgate.gateway.conversation.tree import Match, Tree
from tests.agents.launch import launched
from tests.agents.only_loopback import only_loopback
from tests.agents.real_agent import PROMPT, RealAgent
from tests.support.gateway import Agent, codec, engine, gateway

WINDOW = 200_000
THOUGHT = "<think>\nI shall look.\n</think>\n\n"
TITLE = "A title"


class Brain:
    """Calls a tool, calls another, answers; and keeps what the engine was sent."""

    def __init__(self, agent: RealAgent) -> None:
        self.agent = agent
        self.seen: list[list[int]] = []

    def __call__(self, prompt: Any, number: int) -> str:
        self.seen.append(list(prompt))
        return self.say(codec().decode(prompt))

    def say(self, text: str) -> str:
        """What is sampled for a prompt."""
        if self.agent.tools_shown and "<tools>" not in text:
            return TITLE
        answered = text.rpartition(PROMPT)[2].count(self.agent.answered)
        thought = THOUGHT if self.agent.tools_shown else ""
        return (thought + self.agent.calls[0], self.agent.calls[1], self.agent.final)[min(answered, 2)]


@dataclass
class Episode:
    """What was seen."""

    said: str
    """What the agent printed."""
    turns: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    prompts: list[list[int]]
    """What the engine was sent."""
    levels: set[Level]
    """How freely echoes had to be read."""
    elsewhere: set[str]
    """Hosts that it asked for beside the gateway."""


async def episode(agent: RealAgent, home: Path, brain: Brain | None = None) -> Episode:
    """Run it, in a HOME of its own, with the model that its table says. Raises AssertionError if it fails."""
    brain = brain or Brain(agent)
    async with gateway(engine(brain, max_model_len=WINDOW)) as g, only_loopback() as (proxy, elsewhere):
        g.core.turns.told_window = WINDOW
        session = await g.session()
        with _levels() as levels:
            said = await _run(agent, session, home, proxy)
        turns = await g.tree(session)
        rows = await g.finalize(session)
    return Episode(said, turns, rows, brain.seen, levels, elsewhere)


@contextlib.contextmanager
def _levels() -> Iterator[set[Level]]:
    """How freely requests that go on with a turn are read meanwhile."""
    found: set[Level] = set()
    find = Tree.find

    def finding(*words: Any, **more: Any) -> Match:
        match = find(*words, **more)
        if match.parent is not None:
            found.add(match.level)
        return match

    Tree.find = finding  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Tree.find = find  # type: ignore[method-assign]


async def _run(agent: RealAgent, session: Agent, home: Path, proxy: str) -> str:
    """What it prints."""
    work = home / "work"
    work.mkdir()
    (work / "a.txt").write_text("kiwi\n")
    proxies = {
        **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    }
    ended = await launched(agent, session, home, work, more=proxies)
    assert ended.code == 0, ended.tail
    return ended.out
