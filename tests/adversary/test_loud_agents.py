"""What an agent says with its reward is bounded for the session, and stands in no answer about other sessions."""

from __future__ import annotations

import json

from tests.support.gateway import gateway

INFO = {"reward_info": {"said": "y" * 60_000}}


async def test_what_complete_said_is_in_no_listing_and_in_no_event() -> None:
    async with gateway(["hello"] * 40) as g:
        agents = [await g.session() for _ in range(20)]
        for agent in agents:
            assert (await agent.http.post("complete", json=INFO)).status_code == 200
        listing = await g.admin.get("/v1/sessions")
        assert len(listing.json()["sessions"]) == 20
        assert len(listing.content) < 20 * 1_000
        assert all(one["complete_info"] is None for one in listing.json()["sessions"])
        assert all(one["has_complete_info"] for one in listing.json()["sessions"])
        events = await g.admin.get("/v1/events", params={"after": 1, "wait_s": 0})
        assert len(events.content) < 40 * 200
        one = (await g.admin.get(f"/v1/sessions/{agents[0].id}")).json()
        assert one["complete_info"] == INFO["reward_info"]


async def test_an_agents_own_rewards_are_bounded_together() -> None:
    async with gateway(["hello"]) as g:
        agent = await g.session(reward_source="agent")
        await agent.ask("hi")
        url = f"{g.origin}/v1/sessions/{agent.id}/reward"
        said = {"reward": 1.0, "reward_info": {"said": "y" * 30_000}}
        statuses = [(await agent.http.post(url, json=said)).status_code for _ in range(4)]
        assert statuses == [200, 200, 400, 400]
        assert (await agent.http.post(url, json={"reward": 0.5})).status_code == 200, (
            "the reward itself goes on"
        )
        verdict = await g.admin.post(url, json={**said, "reward": 0.0})
        assert verdict.status_code == 200, "an agent that is loud does not silence who judges it"
        (row,) = await g.finalize(agent)
        assert row["reward"] == 0.0
        assert len(json.dumps(row["reward_info"])) <= 65_536


async def test_an_agent_sets_so_many_rewards_and_no_more() -> None:
    async with gateway(["hello"]) as g:
        agent = await g.session(reward_source="agent")
        await agent.ask("hi")
        url = f"{g.origin}/v1/sessions/{agent.id}/reward"
        assert (await agent.http.post(url, json={"reward": 1.0})).status_code == 200
        rewards = g.core.sessions.get(agent.id).rewards
        rewards += rewards * 9_999
        for door in (url, f"{g.origin}/rl/set_reward"):
            answer = await agent.http.post(door, json={"reward": 1.0})
            assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (400, "LimitReached")
