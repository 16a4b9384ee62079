"""Agents that others wrote, as they are: their trajectories are as exact as our own example's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandgate.gateway.tokens.load import read_checkpoint
from tests.e2e import books, truth
from tests.e2e.rig import EXAMPLES, ROOT, Run, job
from tests.e2e.truth import Parity
from tests.support.environments import python_of
from tests.support.recorder import Chat, Recorder
from tests.support.vllm import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

THROUGH = str(Path(__file__).with_name("through.py"))


@dataclass(frozen=True)
class Agent:
    """One example, and what shows that nobody but its authors wrote its requests."""

    folder: str
    sessions: int
    is_itself: Callable[[Chat], bool]
    solved: int
    """Sessions at least."""
    uids: tuple[str, ...] = ()
    group: int = 4


def openai_agents(chat: Chat) -> bool:
    """Schemas made from Python signatures: pydantic's titles, strict, closed."""
    tools = {one["function"]["name"]: one["function"] for one in chat.asked["tools"]}
    schema = tools["buy"]["parameters"]
    return (
        [*tools] == ["buy", "sell", "pay"]
        and tools["buy"]["strict"] is True
        and (schema["title"], schema["additionalProperties"]) == ("buy_args", False)
        and schema["properties"]["n"] == {"title": "N", "type": "integer"}
        and "Agents/Python" in chat.headers["user-agent"]
    )


def mini_swe_agent(chat: Chat) -> bool:
    """A single tool, its shell."""
    (tool,) = chat.asked["tools"]
    return bool(
        tool["function"]["name"] == "bash" and "command" in tool["function"]["parameters"]["properties"]
    )


def verifiers(chat: Chat) -> bool:
    """Its client relays what the harness asks, under the name of the episode."""
    names = [one["function"]["name"] for one in chat.asked["tools"]]
    return names == ["buy", "sell"] and "x-session-id" in {name.lower() for name in chat.headers}


AGENTS = {
    "openai-agents": Agent("openai_agents", 8, openai_agents, 1, group=2),
    # A session of it takes 15 s of a core: litellm imports that long. The model solves half: of a few, perhaps none.
    "mini-swe-agent": Agent("mini_swe_agent", 2, mini_swe_agent, 0, ("errand-01",), 2),
    # verifiers imports transformers, in each session too.
    "verifiers": Agent("verifiers", 2, verifiers, 0, ("0-3bb986b5b9de",), 2),
}


def environment(folder: Path) -> Path:
    """Where scripts/agent-env.sh puts an agent's packages."""
    return python_of("agent-env.sh", str(folder.relative_to(ROOT))).parents[1]


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
async def test_as_it_is(
    tmp_path: Path,
    recorder: Recorder,
    parity: Parity,
    vllm: Vllm,
    monkeypatch: pytest.MonkeyPatch,
    agent: Agent,
) -> None:
    folder = EXAMPLES / agent.folder
    if (folder / "requirements.txt").exists():
        monkeypatch.setenv("PATH", f"{environment(folder) / 'bin'}{os.pathsep}{os.environ['PATH']}")
    run = Run(tmp_path / "out", recorder.url, base=folder)
    async with Recorder("http://127.0.0.1:9") as agents:
        through = [sys.executable, THROUGH, agents.url]
        limits = {"sessionSeconds": 300}  # their imports are slow where the machine is
        result = await run.go(
            job(folder / "job.yaml", uids=agent.uids, before=through, groupSize=agent.group, limits=limits)
        )
    assert (result.complete, result.sessions) == (True, agent.sessions)
    assert (result.failures, result.forks, result.restarts) == ({}, {}, 0)
    assert len(result.rewards) == agent.sessions
    assert sum(reward == 1.0 for reward in result.rewards) >= agent.solved

    assert all(agent.is_itself(chat) for chat in agents.chats)
    for session in books.sessions(run.out, agents.chats).values():
        session.check()
    made = truth.check(run.rows(), recorder.generations)
    assert len(made) == len(recorder.generations) == len(agents.chats) == result.turns
    assert parity.check(made) == result.sampled_tokens
    prompts = [read_checkpoint(vllm.folder).vocab.decode(one.prompt.tolist()) for one in made]
    (tools,) = {json.dumps(chat.asked["tools"]) for chat in agents.chats}
    assert all(as_template(tool) in prompt for tool in json.loads(tools) for prompt in prompts), (
        "the model sees the schemas as they were written"
    )


def as_template(tool: dict[str, Any]) -> str:
    """`tool | tojson` of the model's chat template."""
    return json.dumps(tool, ensure_ascii=False)
