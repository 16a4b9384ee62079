"""A job's discount holds for whoever gives the rewards: the planner's seal, and what a gateway makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandgate.operator.plan.actions import SealSession, SessionObserved
from sandgate.operator.plan.session import plan_session
from tests.operator.plans import VERIFIER, after, ended, left, running, said, spec
from tests.support.gateway import Agent, Running, bearer, gateway

Give = Callable[[Running, Agent, int], Awaitable[Any]]
"""Gives rewards behind turn 0, 1, 2."""


async def nobody(g: Running, agent: Agent, turn: int) -> None:
    """What is sealed says it."""


async def completes(g: Running, agent: Agent, turn: int) -> None:
    if turn == 2:
        await agent.http.post("complete", json={"reward_info": {"reward": 1.0}})


async def each_turn(g: Running, agent: Agent, turn: int) -> None:
    await agent.http.post(agent.handle["reward_url"], json={"reward": 1.0})


async def judged(g: Running, agent: Agent, turn: int) -> None:
    """By a verifier, once the agent is done."""
    if turn == 2:
        url, key = agent.handle["reward_url"], bearer(agent.handle["reward_key"])
        await g.admin.post(url, json={"reward": 1.0}, headers=key)


AGENT = {"reward": {"source": "agent", "discount": 0.5}}
JUDGED = {"reward": {**VERIFIER["reward"], "discount": 0.5}}
TRAINED = {"reward": {"source": "trainer", "discount": 0.5}}
CASES: dict[str, tuple[dict[str, Any], SessionObserved, Give, float, list[float]]] = {
    "an agent's termination message": (
        AGENT, after(ended(message=left(reward=1.0))), nobody, 1.0, [0.25, 0.5, 1.0],
    ),
    "an agent's /complete": (
        AGENT, after(ended(), said("complete", reward=1.0)), completes, 1.0, [0.25, 0.5, 1.0],
    ),
    "an agent's word for each turn": (
        AGENT, after(ended(), said(reward=1.0)), each_turn, 1.75, [1.75, 1.5, 1.0],
    ),
    "a verifier's post": (
        JUDGED, after(ended(at=26.0), said(reward=1.0), verifier=running(25.0, ended(at=26.0))), judged, 1.0,
        [0.25, 0.5, 1.0],
    ),
    "a trainer's post is the last turn's": (
        TRAINED, after(ended(), said(reward=1.0)), judged, 0.25, [0.25, 0.5, 1.0],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("job", "observed", "give", "reward", "turns"), CASES.values(), ids=CASES)
async def test_rewards_are_discounted_as_the_job_says(
    job: dict[str, Any], observed: SessionObserved, give: Give, reward: float, turns: list[float]
) -> None:
    (sealed,) = plan_session(spec(**job), observed, 30.0)
    assert isinstance(sealed, SealSession)
    async with gateway(lambda ids, number: f"answer {number}") as g:
        agent = await g.session(reward_source=job["reward"]["source"])
        history: list[Any] = []
        for turn, question in enumerate(("one", "two", "three")):
            history.append({"role": "user", "content": question})
            history.append(await agent.ask(*history))
            await give(g, agent, turn)
        (row,) = await g.finalize(agent, **sealed.outcome.body(trajectories=True))
    assert (row["reward"], row["turn_rewards"]) == (reward, turns)
