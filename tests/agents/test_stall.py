"""A small stall in CI, of which tests/agents/stall.py has the real ones: clients take every event that says nothing."""

from __future__ import annotations

import pytest

from tests.agents.stall import CLIENTS, held

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize("name", ["Claude Code", "Codex", "openai-node"])
async def test_a_client_waits_as_long_as_events_come(name: str) -> None:
    assert name in CLIENTS
    cases = await held(2.0, [name], keepalive_s=0.05)
    assert {case.stall: case.wrong for case in cases} == {"first token": "", "middle": ""}
