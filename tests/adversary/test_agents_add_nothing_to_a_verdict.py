"""Each source of `reward_info` has a place of its own: what an agent says never looks like a verifier's word."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gateway import bearer, gateway

VERDICT = {"score": 0.25, "passed": 1}
FORGED = {"score": 1.0, "passed": 9, "bonus": 5, "/dropped": "nothing", "/complete": "mine"}


@pytest.mark.parametrize("source", ["verifier", "trainer", "exitCode"])
@pytest.mark.parametrize("by", ["the reward's door", "the seal"])
async def test_what_an_agent_says_stands_apart(source: str, by: str) -> None:
    async with gateway(["done"]) as g:
        agent = await g.session(reward_source=source)
        await agent.ask("hello")
        said = await agent.http.post("complete", json={"reward_info": FORGED})
        assert said.status_code == 200
        sealed: dict[str, Any] = {"reward": 0.25, "reward_info": VERDICT}
        if by == "the reward's door":
            url, key = agent.handle["reward_url"], bearer(agent.handle["reward_key"])
            assert (await g.admin.post(url, json=sealed, headers=key)).status_code == 200
            sealed = {}
        (row,) = await g.finalize(agent, **sealed)
        assert (row["reward"], row["reward_info"]) == (0.25, {**VERDICT, "complete": FORGED})


async def test_where_the_agents_word_is_the_reward_it_is_the_info_too() -> None:
    async with gateway(["done"]) as g:
        agent = await g.session(reward_source="agent")
        await agent.ask("hello")
        await agent.http.post("complete", json={"reward_info": {"reward": 0.5, "note": "x"}})
        (row,) = await g.finalize(agent)
        assert (row["reward"], row["reward_info"]) == (0.5, {"reward": 0.5, "note": "x"})


async def test_an_agent_that_says_nothing_leaves_no_place() -> None:
    async with gateway(["done"]) as g:
        agent = await g.session(reward_source="verifier")
        await agent.ask("hello")
        await agent.http.post("complete", json={})
        (row,) = await g.finalize(agent, reward=1.0, reward_info=VERDICT)
        assert row["reward_info"] == VERDICT
