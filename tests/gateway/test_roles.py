"""Roles, seen from outside: in the tree, in the rows, after a restart, in every protocol."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.choices import TurnRole
from sandgate.contract.serving import RoleRule
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import BUY, Wire, eventually, gated, gateway, user

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


JUDGE, OTHER = {"role": "system", "content": "You grade it."}, {"role": "system", "content": "You research."}
HELPED = {"role": "system", "content": "You solve tasks."}
FIND = {**BUY, "function": {**BUY["function"], "name": "find"}}
Talk = tuple[dict[str, Any] | None, int, list[Any]]
"""A conversation: its system prompt, its turns, its tools."""
TALKS: dict[str, tuple[list[Talk], int]] = {
    "a judge is asked once, after a text-only agent's many turns": ([(HELPED, 3, []), (JUDGE, 1, [])], 0),
    "a judge of one answer comes after it": ([(HELPED, 1, []), (JUDGE, 1, [])], 0),
    "a planner without tools comes before many turns of a worker": ([(OTHER, 1, []), (HELPED, 3, [])], 1),
    "a planner without tools comes before a worker with tools": ([(OTHER, 1, []), (HELPED, 1, [BUY])], 1),
    "a text-only agent has a helper with tools": ([(HELPED, 3, []), (OTHER, 2, [FIND])], 0),
    "a helper has the agent's tools, and another system prompt": ([(HELPED, 3, [BUY]), (OTHER, 1, [BUY])], 0),
    "a text-only agent has no system prompt, its judge has one": ([(None, 2, []), (JUDGE, 1, [])], 0),
    "an agent asked anew is the newest of its conversations": ([(HELPED, 3, [BUY]), (HELPED, 1, [BUY])], 1),
    "an agent asked anew, with other tools": ([(HELPED, 3, [BUY]), (HELPED, 1, [FIND])], 1),
    "a critic is asked at each step": ([(HELPED, 2, []), (JUDGE, 1, []), (JUDGE, 1, []), (JUDGE, 1, [])], 0),
}  # fmt: skip


@pytest.mark.parametrize(("talks", "main"), TALKS.values(), ids=TALKS)
async def test_the_main_row_is_the_agents_own_conversation(talks: list[Talk], main: int) -> None:
    async with gateway([f"answer {number}" for number in range(12)]) as g:
        agent = await g.session()
        for number, (system, turns, tools) in enumerate(talks):
            said: list[Any] = [*([system] if system else []), user(f"task {number}")]
            for turn in range(turns):
                answer = await agent.ask(*said, **({"tools": tools} if tools else {}))
                said += [answer, user(f"output {turn}")]
        rows = await g.finalize(agent)
    assert [row["main"] for row in rows] == [number == main for number in range(len(talks))]


async def test_an_agent_that_names_its_main_calls_is_the_main_row_however_short() -> None:
    async with gateway(["one", "two", "three"]) as g:
        agent = await g.session()
        await agent.post(HELPED, "task", headers={"x-sandgate-role": "main"})
        said = await agent.ask(OTHER, "look")
        await agent.ask(OTHER, "look", said, user("more"))
        rows = await g.finalize(agent)
    assert [(row["role"], row["main"]) for row in rows] == [("main", True), ("main", False)]


async def test_a_system_prompt_that_changes_in_the_middle_is_one_conversation() -> None:
    async with gateway(["one", "two", "three", "four", "five"]) as g:
        agent = await g.session()
        said: list[Any] = [user("task")]
        for turn in range(4):
            today = {"role": "system", "content": f"It is day {turn // 3}."}
            said += [await agent.ask(today, *said), user(f"output {turn}")]
        rows = await g.finalize(agent)
    assert [(row["fork_reason"], row["main"]) for row in rows] == [("", False), ("system_changed", True)]


ENDS = ["the session ends first", "it ends first", "a kill comes between"]


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_that_the_agent_let_go_of_before_its_answer_is_not_the_main_row(end: str) -> None:
    slow, gate = gated("slow words and more of them", at=2)
    disk = MemoryDisk()
    async with MemoryStore(disk) as store, gateway([slow, "It says kiwi."], store=store) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("what is slow?", stream=True))
        await wire.until(b"delta")
        await gate.reached.wait()
        await wire.cut()
        await eventually(lambda: g.call().listeners == 0, "it let go")
        await agent.ask("what is slow?", {"role": "assistant", "content": "slow"}, user("Stop. What is it?"))
        if end != ENDS[0]:
            gate.open.set()
            session = g.core.sessions.get(agent.id)
            await eventually(lambda: session.turns == 2 and bool(session.partly), "it is whole")
        rows = await g.finalize(agent) if end != ENDS[2] else []
        handle = agent.handle
    if end == ENDS[2]:
        async with MemoryStore(disk) as store, gateway(store=store) as g:
            rows = await g.finalize(g.agent(handle))
    assert [(row["main"], row["finish_reason"]) for row in rows] == [
        (True, "stop"),
        (False, "cut" if end == ENDS[0] else "stop"),
    ]
