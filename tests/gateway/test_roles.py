"""Roles, seen from outside: in the tree, in the rows, after a restart, in every protocol."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.choices import TurnRole
from sandgate.contract.serving import RoleRule
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import BUY, gateway, user

TITLE = "Write a short title for this conversation: buy 7 kiwi"
TASK = user("buy 7 kiwi")


async def test_a_title_after_the_answer_is_not_the_sessions_answer() -> None:
    async with gateway(["receipt 44", "Buying kiwi"]) as g:
        agent = await g.session()
        await agent.ask(TASK, tools=[BUY])
        await agent.ask(TITLE)
        turns = await g.tree(agent)
        assert [(turn["role"], turn["role_why"]) for turn in turns] == [("main", ""), ("side", "title")]
        rows = await g.finalize(agent, reward=1.0)
    assert [(row["role"], row["main"]) for row in rows] == [("main", True), ("side", False)]


async def test_a_sub_agent_by_its_headers_has_its_parents_name() -> None:
    async with gateway(["I ask another.", "found", "done"]) as g:
        agent = await g.session()
        session = {"x-claude-code-session-id": "one"}
        first = await agent.post(TASK, headers=session)
        said = first.json()["choices"][0]["message"]
        await agent.post("find the shop", headers=session | {"x-claude-code-agent-id": "two"})
        await agent.post(TASK, said, user("on"), headers=session)
        turns = await g.tree(agent)
        rows = await g.finalize(agent)
    assert [(turn["role"], turn["thread"], turn["parent_thread"]) for turn in turns] == [
        ("main", "one", ""),
        ("subagent", "two", "one"),
        ("main", "one", ""),
    ]
    assert [(row["role"], row["main"]) for row in rows] == [("subagent", False), ("main", True)]


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("v1/chat/completions", {"messages": [TASK]}),
    "responses": ("v1/responses", {"input": "buy 7 kiwi"}),
    "messages": ("v1/messages", {"messages": [TASK], "max_tokens": 64}),
    "completions": ("v1/completions", {"prompt": "buy 7 kiwi"}),
    "token requests": (
        "inference/v1/generate",
        {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 8}},
    ),
}


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
async def test_an_agent_says_a_role_in_any_protocol(path: str, body: dict[str, Any]) -> None:
    async with gateway(["done"]) as g:
        agent = await g.session()
        answer = await agent.http.post(
            path, json={"model": "shop", **body}, headers={"X-Sandgate-Role": "side"}
        )
        assert answer.status_code == 200, answer.text
        (turn,) = await g.tree(agent)
    assert (turn["role"], turn["role_why"]) == ("side", "x-sandgate-role")


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
async def test_a_role_that_is_none_is_a_400_that_names_the_header(path: str, body: dict[str, Any]) -> None:
    async with gateway(["done"]) as g:
        agent = await g.session()
        answer = await agent.http.post(
            path, json={"model": "shop", **body}, headers={"x-sandgate-role": "boss"}
        )
        assert answer.status_code == 400
        assert "x-sandgate-role must be main, side or subagent" in answer.text
        assert await g.tree(agent) == []


async def test_the_jobs_rules_are_the_gateways() -> None:
    rules = (RoleRule(role=TurnRole.SIDE, system_contains="you judge"),)
    async with gateway(["good"], roles=rules) as g:
        agent = await g.session()
        await agent.ask({"role": "system", "content": "You judge it."}, "is it good?")
        (turn,) = await g.tree(agent)
    assert (turn["role"], turn["role_why"]) == ("side", "roles[0]")


async def test_roles_survive_a_restart() -> None:
    disk = MemoryDisk()
    async with MemoryStore(disk) as store, gateway(["receipt 44", "Buying kiwi"], store=store) as g:
        agent = await g.session()
        await agent.ask(TASK, tools=[BUY])
        await agent.ask(TITLE)
        before, handle = await g.tree(agent), agent.handle
    async with MemoryStore(disk) as store, gateway(store=store) as g:
        agent = g.agent(handle)
        assert await g.tree(agent) == before
        rows = await g.finalize(agent)
    assert [(row["role"], row["main"]) for row in rows] == [("main", True), ("side", False)]


async def test_what_an_agent_says_of_its_role_changes_no_token_and_no_reward() -> None:
    rows = []
    for headers in ({}, {"x-sandgate-role": "side"}):
        async with gateway(["receipt 44"]) as g:
            agent = await g.session(session_id="s")
            await agent.post(TASK, headers=headers)
            (row,) = await g.finalize(agent, reward=0.5)
            rows.append({name: row[name] for name in row if name not in ("turn_ids", "created_at")})
    assert rows[0] == rows[1], "the only row of a session is its main one, whatever it was called"
