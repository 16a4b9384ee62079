"""Real agents of Node's registry, unmodified: three turns with tools are one branch, with the ids that the engine saw.

Their programs are installed by scripts/node-env.sh; each gets a HOME of its own, and reaches loopback alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.node_table import NODE_AGENTS
from tests.agents.three_turns import three_turns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize("name", NODE_AGENTS)
async def test_three_turns_with_tools_are_one_branch(name: str, tmp_path: Path) -> None:
    await three_turns(name, NODE_AGENTS[name], tmp_path)
