"""What is said with a reward can be stored, added up and given to a trainer, or it is refused at the door by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Agent, Running, gateway

DEEP = '{"a":' * 200 + "1" + "}" * 200
INFOS = {
    "a number that is none": '{"x":NaN}',
    "infinity": '{"x":Infinity}',
    "infinity far below": '{"x":[{"y":[-Infinity]}]}',
    "a number beyond float64": '{"x":1e999}',
    "an integer beyond 64 bits": '{"x":18446744073709551616}',
    "half a character": '{"x":"\\ud800"}',
    "half a character in a name": '{"\\ud800":1}',
    "more levels than a reader may recurse": DEEP,
    "more than 64 KiB": json.dumps({"x": "y" * 65_536}),
    "more than 64 KiB of nothing": '{"x":[' + "[]," * 30_000 + "[]]}",
    "no object": "[1]",
}
DOORS = {
    "the agent's /complete": ("agent", "complete", '{"reward_info":%s}'),
    "the agent's own reward": ("agent", "reward", '{"reward":1,"reward_info":%s}'),
    "the driver's complete": ("admin", "complete", '{"reward_info":%s}'),
    "a trainer's reward": ("admin", "reward", '{"reward":1,"reward_info":%s}'),
    "finalize": ("admin", "finalize", '{"reward":1,"reward_info":%s}'),
}
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "1.7e308", "-3.5e38", "1" + "0" * 400)


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(lambda ids, number: "hello") as running:
        yield running


async def post(g: Running, agent: Agent, who: str, what: str, raw: str) -> httpx.Response:
    if who == "agent" and what == "complete":
        return await agent.http.post("complete", content=raw)
    by = agent.http if who == "agent" else g.admin
    return await by.post(f"{g.origin}/v1/sessions/{agent.id}/{what}", content=raw)


@pytest.mark.parametrize(("who", "what", "body"), DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("info", INFOS.values(), ids=INFOS)
async def test_reward_info_that_cannot_be_kept_is_refused_by_name(
    g: Running, who: str, what: str, body: str, info: str
) -> None:
    agent = await g.session(reward_source="agent")
    await agent.ask("hi")
    answer = await post(g, agent, who, what, body % info)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("reward_info")
    assert len(answer.content) < 1_000
    summary = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
    assert (summary["state"], summary["reward"]) == ("open", None), "what is refused changes nothing"


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_reward_that_no_trainers_float_holds_is_refused_by_name(g: Running, number: str) -> None:
    agent = await g.session(reward_source="agent")
    await agent.ask("hi")
    for who, what, body, param in (
        ("agent", "complete", '{"reward_info":{"reward":%s}}', "reward_info"),
        ("agent", "reward", '{"reward":%s}', "reward"),
        ("admin", "reward", '{"reward":%s}', "reward"),
        ("admin", "finalize", '{"reward":%s}', "reward"),
    ):
        answer = await post(g, agent, who, what, body % number)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith(param)
    areal = await agent.http.post(f"{g.origin}/rl/set_reward", content=f'{{"reward":{number}}}')
    assert areal.status_code == 422, areal.text
    assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["reward"] is None


async def test_any_rewards_that_are_taken_add_up(g: Running) -> None:
    """The largest ones, on each of many turns, without a discount: finite, and given."""
    agent = await g.session(reward_source="agent")
    history: list[Any] = []
    for number in range(4):
        history += [{"role": "user", "content": str(number)}]
        history += [await agent.ask(*history)]
        assert (await post(g, agent, "agent", "reward", '{"reward":3.4e38}')).status_code == 200
    (row,) = await g.finalize(agent)
    assert row["reward"] == pytest.approx(4 * 3.4e38)


@pytest.mark.parametrize("field", ["metadata", "task", "sampling"])
async def test_a_session_is_not_created_with_what_no_row_can_hold(g: Running, field: str) -> None:
    answer = await g.admin.post("/v1/sessions", content=f'{{"{field}":{{"x":NaN}}}}')
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(field)
