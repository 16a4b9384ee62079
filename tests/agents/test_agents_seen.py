"""docs/agents-seen.md has every agent of the tables, in the version that is pinned; their own tests hold the rest."""

from __future__ import annotations

import re

import pytest

from tests.agents.real_agent import FOLDER
from tests.agents.seen import AGENTS, PAGE, page, recorded


def test_the_page_has_every_agent_and_no_other() -> None:
    assert list(recorded()) == list(AGENTS)
    assert PAGE.read_text("utf-8") == page(recorded()), "python -m tests.agents.report"


@pytest.mark.parametrize("name", AGENTS)
def test_the_page_tells_the_version_that_is_pinned(name: str) -> None:
    agent = AGENTS[name]
    assert recorded()[name].startswith(f"| {name} | `{agent.package}` {agent.version} | {agent.protocol} |")


@pytest.mark.parametrize("folder", ["openai2", "openai3"])
def test_what_is_installed_is_what_was_asked_for(folder: str) -> None:
    asked, pinned = (
        (FOLDER / folder / f"requirements.{end}").read_text().splitlines() for end in ("in", "txt")
    )
    assert {re.sub(r"\[.*\]", "", line) for line in asked} <= set(pinned)
