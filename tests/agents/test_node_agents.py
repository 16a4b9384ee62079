"""Real agents from their packages, unmodified: three turns with tools are one branch, with the ids that the engine saw.

Their programs are installed by scripts/node-env.sh; each gets a HOME of its own, and talks to loopback alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.table import DRIVERS, NODE_AGENTS, PROMPT, NodeAgent, written
from tests.support.environments import node_packages
from tests.support.gateway import Agent, Running, codec, engine, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WINDOW = 200_000
FINAL = "It says kiwi."
THOUGHT = "<think>\nI shall look.\n</think>\n\n"
QUIET = {
    "CI": "1", "DO_NOT_TRACK": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "IS_SANDBOX": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "PI_OFFLINE": "1", "PI_TELEMETRY": "0",
    "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENAI_MODEL": "shop", "OPENAI_AGENTS_DISABLE_TRACING": "1", "NO_COLOR": "1",
}  # fmt: skip
"""No telemetry, no updates, no titles over the network."""


class Brain:
    """Calls a tool, calls another, answers; and keeps what the engine was sent and what it sampled."""

    def __init__(self, agent: NodeAgent) -> None:
        self.agent = agent
        self.seen: list[list[int]] = []

    def __call__(self, prompt: Any, number: int) -> str:
        self.seen.append(list(prompt))
        text = codec().decode(prompt)
        if "<tools>" not in text:
            return "A title"
        answered = text.rpartition(PROMPT)[2].count("<tool_response>")
        return (THOUGHT + self.agent.calls[0], self.agent.calls[1], FINAL)[min(answered, 2)]


@pytest.fixture(params=NODE_AGENTS)
async def told(request: pytest.FixtureRequest) -> AsyncIterator[tuple[NodeAgent, Brain, Running]]:
    agent = NODE_AGENTS[request.param]
    brain = Brain(agent)
    async with gateway(engine(brain, max_model_len=WINDOW)) as running:
        running.core.turns.told_window = WINDOW
        yield agent, brain, running


async def run(agent: NodeAgent, session: Agent, home: Path) -> str:
    """What it prints."""
    packages = node_packages("tests/agents/node")
    work = home / "work"
    work.mkdir()
    (work / "a.txt").write_text("kiwi\n")
    base, key = session.handle["base_url"], session.handle["api_key"]
    written(agent.files, home, base, key)
    for driver in DRIVERS.glob("*.mjs"):  # a module finds its packages beside itself
        shutil.copy(driver, packages)
    (home / ".codex").mkdir()
    env = QUIET | {
        "PATH": os.environ["PATH"], "HOME": str(home), "SANDGATE_PROMPT": PROMPT,
        "CODEX_HOME": str(home / ".codex"),
        "OPENAI_BASE_URL": base, "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": session.handle["anthropic_base_url"], "ANTHROPIC_API_KEY": key,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *agent.command(packages / "node_modules" / ".bin", base),
        cwd=work,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 90)
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
    assert process.returncode == 0, f"{out.decode()[-2000:]}\n{err.decode()[-2000:]}"
    return out.decode()


async def test_three_turns_with_tools_are_one_branch(
    told: tuple[NodeAgent, Brain, Running], tmp_path: Path
) -> None:
    agent, brain, g = told
    session = await g.session()
    said = await run(agent, session, tmp_path)
    assert FINAL in said
    turns = await g.tree(session)
    main = [turn for turn in turns if "<tools>" in turn["spans"][0]["text"] or turn["parent"]]
    assert [turn["parent"] for turn in main] == [None, main[0]["turn"], main[1]["turn"]]
    assert [turn["notes"] for turn in main] == [[]] * 3
    assert [turn["fork"] for turn in main[1:]] == [None, None]
    asides = [turn for turn in turns if turn not in main]
    assert len(asides) == agent.asides
    assert all(turn["fork"] == "side_call" for turn in asides if turn is not turns[0])
    rows = await g.finalize(session)
    (row,) = (row for row in rows if row["turn_ids"] == [turn["turn"] for turn in main])
    path = row["prompt_ids"] + row["response_ids"]
    for turn, end in zip(main, row["turn_ends"], strict=True):
        before = len(row["prompt_ids"]) + end - turn["sampled_tokens"]
        assert path[:before] in brain.seen, "the prompt is not what the engine was sent"
