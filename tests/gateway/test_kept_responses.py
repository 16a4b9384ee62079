"""What is kept of POST /v1/responses across kills, retries, and other readers of the journal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandgate.gateway.journal.memory import MemoryStore
from tests.support.gateway import Agent, Running, call_text, events, gateway

TOOLS: Any = [{"type": "custom", "name": "patch"}]
SAID = "<think>\nso\n</think>\n\nI patch." + call_text("patch", input="+x")
BODY: dict[str, Any] = {
    "model": "shop",
    "input": [{"role": "user", "content": "go"}],
    "tools": TOOLS,
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
}
RETRY = {"x-stainless-retry-count": "1"}


async def same_session(g: Running) -> Agent:
    return g.agent((await g.admin.post("v1/sessions", json={"session_id": "s1"})).json())


def items(told: list[Any]) -> list[Any]:
    return [event["item"] for event in told if event["type"] == "response.output_item.done"]


@pytest.mark.parametrize("killed", [False, True], ids=["same process", "after a kill"])
async def test_a_retry_of_a_stream_gets_the_same_items_and_ids_and_is_kept_once(killed: bool) -> None:
    store = MemoryStore()
    async with gateway([SAID, "another"], store=store) as g:
        agent = await g.session(session_id="s1")
        first = events((await agent.http.post("v1/responses", json={**BODY, "stream": True})).content)
        if not killed:
            again = await agent.http.post("v1/responses", json={**BODY, "stream": True}, headers=RETRY)
            assert items(events(again.content)) == items(first)
            assert events(again.content)[-1] == first[-1]
        store.crash()
    async with gateway(["another"], store=MemoryStore(store.disk)) as g:
        agent = await same_session(g)
        again = await agent.http.post("v1/responses", json={**BODY, "stream": True}, headers=RETRY)
        told = events(again.content)
        assert items(told) == items(first)
        assert told[-1]["response"] == first[-1]["response"]
        whole = await agent.http.post("v1/responses", json=BODY, headers=RETRY)
        assert whole.json() == first[-1]["response"]
        read = await agent.http.get(f"v1/responses/{whole.json()['id']}")
        assert read.json() == first[-1]["response"]
        assert len(await g.tree(agent)) == 1
        assert len(g.core.sessions.get(agent.id).kept.by_turn) == 1


async def test_what_was_deleted_stays_deleted_after_a_kill() -> None:
    store = MemoryStore()
    async with gateway([SAID, "another"], store=store) as g:
        agent = await g.session(session_id="s1")
        gone = (await agent.http.post("v1/responses", json=BODY)).json()["id"]
        stays = (await agent.http.post("v1/responses", json={**BODY, "input": "other"})).json()["id"]
        await agent.http.delete(f"v1/responses/{gone}")
        before = g.core.sessions.get(agent.id).kept
        store.crash()
    async with gateway([SAID], store=MemoryStore(store.disk)) as g:
        agent = await same_session(g)
        kept = g.core.sessions.get(agent.id).kept
        assert (kept.contents, kept.by_turn, kept.weight) == (before.contents, before.by_turn, before.weight)
        assert (await agent.http.get(f"v1/responses/{gone}")).status_code == 404
        assert (await agent.http.get(f"v1/responses/{stays}")).status_code == 200
        first, second = await g.tree(agent)
        assert (first["fork"], second["parent"]) == (None, None)


async def test_requests_at_once_that_go_on_from_one_response_are_its_children() -> None:
    async with gateway(["one", "two", "three", "four"]) as g:
        agent = await g.session()
        made = (await agent.http.post("v1/responses", json=BODY)).json()
        asked = [
            agent.http.post("v1/responses", json={**BODY, "input": text, "previous_response_id": made["id"]})
            for text in ("a", "b", "c")
        ]
        told = [answer.json() for answer in await asyncio.gather(*asked)]
        first, *rest = await g.tree(agent)
        assert [turn["parent"] for turn in rest] == [first["turn"]] * 3
        assert {answer["previous_response_id"] for answer in told} == {made["id"]}


async def test_what_is_kept_changes_no_row_of_a_session() -> None:
    rows = []
    for store in (True, False):
        async with gateway([SAID, "done"]) as g:
            agent = await g.session(session_id="s1")
            made = (await agent.http.post("v1/responses", json={**BODY, "store": store})).json()
            (call,) = [item for item in made["output"] if item["type"] == "custom_tool_call"]
            output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
            body = {**BODY, "store": store, "input": [*BODY["input"], *made["output"], output]}
            assert (await agent.http.post("v1/responses", json=body)).status_code == 200
            (row,) = await g.finalize(agent)
            rows.append(
                {name: row[name] for name in ("prompt_ids", "response_ids", "loss_mask") if name in row}
            )
    assert rows[0] == rows[1]
    assert rows[0]
