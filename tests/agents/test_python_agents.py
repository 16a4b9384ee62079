"""Real agents of PyPI, unmodified: three turns with tools are one branch, with the ids that the engine saw.

Their environments are built by scripts/agent-env.sh; each gets a HOME of its own, and reaches loopback alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.python_table import PYTHON_AGENTS, TEAMS
from tests.agents.real_agent import FINAL, call
from tests.agents.running import Brain, episode
from tests.agents.three_turns import three_turns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize("name", PYTHON_AGENTS)
async def test_three_turns_with_tools_are_one_branch(name: str, tmp_path: Path) -> None:
    await three_turns(name, PYTHON_AGENTS[name], tmp_path)


class TeamBrain(Brain):
    """A clerk who asks a reader, who looks."""

    def say(self, text: str) -> str:
        answered = "<tool_response>" in text
        if "You are a reader." in text:
            return "a.txt has kiwi" if answered else self.agent.calls[0]
        return FINAL if answered else call("ask_reader", '{ "input":"look into a.txt"}')


@pytest.mark.parametrize("protocol", TEAMS)
async def test_an_agent_that_is_a_tool_of_another_is_its_sub_agent(protocol: str, tmp_path: Path) -> None:
    seen = await episode(TEAMS[protocol], tmp_path, TeamBrain(TEAMS[protocol]))
    assert FINAL in seen.said
    told = [(turn["role"], turn["role_why"], turn["fork"]) for turn in seen.turns]
    assert told == [
        ("main", "", None),
        ("subagent", "own_system_and_tools", "side_call"),
        ("subagent", "own_system_and_tools", None),
        ("main", "", None),
    ]
    names = [turn["turn"] for turn in seen.turns]
    rows = {row["role"]: ([names.index(turn) for turn in row["turn_ids"]], row["main"]) for row in seen.rows}
    assert rows == {"main": ([0, 3], True), "subagent": ([1, 2], False)}
