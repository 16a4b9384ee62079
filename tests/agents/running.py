"""One real agent's task on a gateway whose engine is scripted: three turns, and all that was seen of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.gateway.conversation.matching import Level
from sandgate.gateway.conversation.tree import Match, Tree
from tests.agents.only_loopback import only_loopback
from tests.agents.real_agent import DRIVERS, NODE, PROMPT, RealAgent
from tests.support.gateway import Agent, codec, engine, gateway

WINDOW = 200_000
AGENT_S = 90
THOUGHT = "<think>\nI shall look.\n</think>\n\n"
TITLE = "A title"
QUIET = {
    "CI": "1", "DO_NOT_TRACK": "1", "DISABLE_AUTOUPDATER": "1", "CLINE_NO_AUTO_UPDATE": "1",
    "DISABLE_TELEMETRY": "1", "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "PI_OFFLINE": "1", "PI_TELEMETRY": "0", "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENAI_MODEL": "shop",
    "OPENAI_AGENTS_DISABLE_TRACING": "1", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1",
    "OTEL_SDK_DISABLED": "true", "ANONYMIZED_TELEMETRY": "False", "AGNO_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
}  # fmt: skip
"""No telemetry, no updates, no titles over the network."""


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
    installed = agent.installed
    work = home / "work"
    work.mkdir()
    (work / "a.txt").write_text("kiwi\n")
    base, key = session.handle["base_url"], session.handle["api_key"]
    for name, make in agent.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make(base, key)), "utf-8")
    if agent.environment == NODE:
        for driver in DRIVERS.glob("*.mjs"):  # a module finds its packages beside itself
            shutil.copy(driver, installed)
    (home / ".codex").mkdir()
    env = QUIET | {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "SANDGATE_PROMPT": PROMPT,
        "CODEX_HOME": str(home / ".codex"),
        "OPENAI_BASE_URL": base, "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": session.handle["anthropic_base_url"], "ANTHROPIC_API_KEY": key,
        **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *agent.command(installed, base),
        cwd=work,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), AGENT_S)
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
    assert process.returncode == 0, f"{out.decode()[-2000:]}\n{err.decode()[-3000:]}"
    return out.decode()
