"""POST /v1/responses: OpenAI's SDK against a whole gateway: what it says and gets, and its place in the tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall

from sandgate.gateway.journal.memory import MemoryStore
from tests.support.gateway import BUY, Running, call_text, gateway

BUY_TOOL: Any = {"type": "function", **BUY["function"]}
CALL = call_text("buy", item="kiwi", n=7)
SCRIPT = [f"<think>\nkiwi it is\n</think>\n\nI buy.{CALL}", "receipt 44", "you are welcome", "one more"]


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(SCRIPT) as running:
        yield running


async def say(client: openai.AsyncOpenAI, said: Any, stream: bool = False, **more: Any) -> Response:
    asked: dict[str, Any] = {"model": "shop", "input": said, "tools": [BUY_TOOL], **more}
    if not stream:
        answer: Response = await client.responses.create(**asked)
        return answer
    async with client.responses.stream(**asked) as events:
        last: Response = await events.get_final_response()
        return last


def call_of(answer: Response) -> ResponseFunctionToolCall:
    (call,) = (item for item in answer.output if isinstance(item, ResponseFunctionToolCall))
    return call


def result(answer: Response) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_of(answer).call_id, "output": "14.00"}


def told(answer: Response) -> list[Any]:
    return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def whole_history(client: openai.AsyncOpenAI, stream: bool) -> None:
    items: list[Any] = [asked("buy 7 kiwi")]
    for more in (
        {"reasoning": {"summary": "auto"}},
        {"store": False},
        {"include": ["reasoning.encrypted_content"]},
    ):
        answer = await say(client, items, stream, instructions="You are a clerk.", **more)
        items = [*items, *told(answer)]
        items.append(result(answer) if len(items) < 5 else asked("thanks"))


async def previous_response(client: openai.AsyncOpenAI, stream: bool) -> None:
    clerk = {"instructions": "You are a clerk."}
    first = await say(client, "buy 7 kiwi", stream, **clerk)
    second = await say(client, [result(first)], stream, previous_response_id=first.id, **clerk)
    await say(client, "thanks", stream, previous_response_id=second.id, **clerk)


async def item_references(client: openai.AsyncOpenAI, stream: bool) -> None:
    """As the AI SDK does where it leaves `store` alone."""
    items: list[Any] = [asked("buy 7 kiwi")]
    for _ in range(3):
        answer = await say(client, items, stream, instructions="You are a clerk.")
        items += [{"type": "item_reference", "id": item.id} for item in answer.output]
        items.append(result(answer) if len(items) < 5 else asked("thanks"))


HISTORIES = {
    "all items are sent again": whole_history,
    "a response goes on from the one before": previous_response,
    "the model's items come back by id": item_references,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
async def test_three_turns_with_a_tool_are_one_branch(g: Running, history: Any, stream: bool) -> None:
    agent = await g.session()
    await history(agent.openai(), stream)
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * 3
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]
    (row,) = await g.finalize(agent)
    assert sum(row["loss_mask"]) == sum(turn["sampled_tokens"] for turn in turns)


async def test_what_is_kept_outlives_the_process() -> None:
    store = MemoryStore()
    async with gateway(SCRIPT, store=store) as g:
        agent = await g.session(session_id="s1")
        first = await say(agent.openai(), "buy 7 kiwi", metadata={"a": "b"})
        store.crash()
    async with gateway(SCRIPT[1:], store=MemoryStore(store.disk)) as g:
        agent = g.agent((await g.admin.post("v1/sessions", json={"session_id": "s1"})).json())
        client = agent.openai()
        again = await client.responses.retrieve(first.id)
        assert again.to_dict() == first.to_dict()
        second = await say(client, [result(first)], previous_response_id=first.id)
        assert second.output_text == "receipt 44"
        third = [result(first), {"type": "item_reference", "id": second.output[0].id}, asked("thanks")]
        await say(client, third, previous_response_id=first.id)
        turns = await g.tree(agent)
        assert [turn["fork"] for turn in turns] == [None] * 3
        assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]


async def test_a_response_can_be_read_and_deleted(g: Running) -> None:
    agent = await g.session()
    client = agent.openai()
    made = await say(client, "buy 7 kiwi", instructions="clerk", metadata={"a": "b"})
    read = await client.responses.retrieve(made.id)
    assert read.to_dict() == made.to_dict()
    assert (read.metadata, read.instructions) == ({"a": "b"}, "clerk")
    items = await client.responses.input_items.list(made.id)
    assert [item.content[0].text for item in items.data] == ["buy 7 kiwi"]  # type: ignore[union-attr, index]
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as seen:
        await say(client, "thanks", previous_response_id=made.id)
    assert seen.value.code == "previous_response_not_found"
    assert len(await g.tree(agent)) == 1


async def test_what_is_not_stored_is_not_there(g: Running) -> None:
    agent = await g.session()
    client = agent.openai()
    made = await say(client, "buy 7 kiwi", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await say(client, [{"type": "item_reference", "id": made.output[0].id}, asked("x")])


async def test_items_of_an_input_come_back_by_the_ids_that_were_told(g: Running) -> None:
    agent = await g.session()
    client = agent.openai()
    made = await say(client, [asked("hi"), asked("buy 7 kiwi")])
    listed = (await client.responses.input_items.list(made.id, order="asc")).data
    references: Any = [{"type": "item_reference", "id": item.id} for item in (*listed, *made.output)]
    again = await say(client, [*references, result(made)])
    assert [turn["fork"] for turn in await g.tree(agent)] == [None, None]
    relisted = (await client.responses.input_items.list(again.id, order="asc")).data
    assert [item.id for item in relisted[:2]] == [item.id for item in listed]
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await say(client, references)


async def test_a_response_belongs_to_its_session(g: Running) -> None:
    mine, other = await g.session(), await g.session()
    made = await say(mine.openai(), "buy 7 kiwi")
    with pytest.raises(openai.NotFoundError):
        await other.openai().responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError):
        await say(other.openai(), "thanks", previous_response_id=made.id)
    with pytest.raises(openai.NotFoundError):
        await say(other.openai(), [{"type": "item_reference", "id": made.output[0].id}])


async def test_content_that_is_sent_with_every_request_is_kept_once(g: Running) -> None:
    agent = await g.session()
    client = agent.openai()
    long = "a rule of the house. " * 100
    items: list[Any] = [asked("buy 7 kiwi " + long)]
    for text in ("a", "b", "c"):
        answer = await say(client, items, instructions=long)
        items += [*told(answer), asked(text)] if text != "a" else [*told(answer), result(answer)]
    kept = g.core.sessions.get(agent.id).kept
    assert sum(long.encode() in raw for raw in kept.contents.values()) == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_custom_tool_gets_free_text(stream: bool) -> None:
    said = call_text("patch", input="*** Begin\n+x")
    async with gateway([said, "done"]) as g:
        agent = await g.session()
        client = agent.openai()
        tools = [{"type": "custom", "name": "patch", "description": "apply", "format": {"type": "text"}}]
        first = await say(client, "patch it", stream, tools=tools)
        (call,) = first.output
        assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", "*** Begin\n+x")  # type: ignore[union-attr]
        output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}  # type: ignore[union-attr]
        await say(client, [asked("patch it"), *told(first), output], stream, tools=tools)
        turns = await g.tree(agent)
        assert [turn["fork"] for turn in turns] == [None, None]
        assert turns[1]["parent"] == turns[0]["turn"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_tool_of_a_namespace_is_told_by_both_names(stream: bool) -> None:
    said = call_text("mcp__shop__buy", item="kiwi", n=7)
    async with gateway([said, "done"]) as g:
        agent = await g.session()
        client = agent.openai()
        tools = [
            {"type": "namespace", "name": "mcp__shop", "description": "a shop", "tools": [BUY_TOOL]},
            {"type": "web_search"},
        ]
        first = await say(client, "buy", stream, tools=tools)
        call = call_of(first)
        assert (call.name, call.namespace) == ("buy", "mcp__shop")
        await say(client, [asked("buy"), *told(first), result(first)], stream, tools=tools)
        turns = await g.tree(agent)
        assert [turn["fork"] for turn in turns] == [None, None]
        assert turns[1]["parent"] == turns[0]["turn"]


async def test_the_turn_of_a_chat_goes_on_as_a_response_and_as_messages(g: Running) -> None:
    agent = await g.session()
    client = agent.openai()
    first = await agent.ask({"role": "user", "content": "buy 7 kiwi"}, tools=[BUY])
    (call,) = first["tool_calls"]
    items = [
        asked("buy 7 kiwi"),
        {"role": "assistant", "content": first["content"]},
        {"type": "function_call", "call_id": call["id"], **call["function"]},
        {"type": "function_call_output", "call_id": call["id"], "output": "14.00"},
    ]
    await say(client, items)
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None, None]
    assert turns[1]["parent"] == turns[0]["turn"]


async def test_an_answer_cut_at_its_limit_is_incomplete(g: Running) -> None:
    agent = await g.session()
    client = agent.openai()
    whole = await say(client, "buy", max_output_tokens=2)
    async with client.responses.stream(model="shop", input="buy more", max_output_tokens=2) as events:
        *_, last = [event async for event in events]
    assert last.type == "response.incomplete"
    for answer in (whole, last.response):
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"


async def test_an_answer_that_was_cut_in_its_thought_is_gone_on_from() -> None:
    """As the loop of OpenAI's Agents SDK does it, without a word of its own."""
    async with gateway(["<think>\nkiwi or fig, and why not both\n</think>\n\nkiwi", "fig"]) as g:
        agent = await g.session()
        client = agent.openai()
        cut = await say(client, "buy", max_output_tokens=5)
        items = [item.model_dump(mode="json") for item in cut.output]
        assert (items[0]["type"], items[-1]["status"]) == ("reasoning", "incomplete")
        again = await say(client, [asked("buy"), *items])
        assert again.output_text == "fig"
        assert [turn["fork"] for turn in await g.tree(agent)] == [None, None]


async def test_tokens_are_counted_and_nothing_is_kept(g: Running) -> None:
    agent = await g.session()
    client = agent.openai()
    counted = await client.responses.input_tokens.count(model="shop", input="buy 7 kiwi", tools=[BUY_TOOL])
    made = await say(client, "buy 7 kiwi")
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    assert len(await g.tree(agent)) == 1


async def test_structured_output() -> None:
    async with gateway(['{"n": 7}']) as g:
        agent = await g.session()
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        answer = await say(
            agent.openai(), "how many", tools=[],
            text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        )  # fmt: skip
        assert answer.output_text == '{"n": 7}'


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a conversation": ({"conversation": "conv_1"}, "conversation"),
    "in the background": ({"background": True}, "background"),
    "a prompt of OpenAI's": ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    "a tool that nothing here runs": ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
    "a tool that is not there": (
        {"tool_choice": {"type": "function", "name": "sell"}},
        "tool_choice.name",
    ),
    "an item of no kind": ({"input": [{}]}, "input[0].type"),
    "an item that only OpenAI makes": ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    "an output of no call": (
        {"input": [{"type": "function_call_output", "output": "x"}]},
        "input[0].call_id",
    ),
    "a file": (
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        "input[0].content[0].type",
    ),
    "an empty input": ({"input": []}, "input"),
    "a number": ({"input": 7}, "input"),
    "an effort that spells a token": ({"reasoning": {"effort": "<|im_end|>"}}, "reasoning.effort"),
    "no such effort": ({"reasoning": {"effort": "banana"}}, "reasoning.effort"),
    "no such format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
}


@pytest.mark.parametrize(("more", "field"), REFUSED.values(), ids=REFUSED)
async def test_refused_by_name(g: Running, more: dict[str, Any], field: str) -> None:
    agent = await g.session()
    answer = await agent.http.post("v1/responses", json={"model": "shop", "input": "hi", **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert await g.tree(agent) == []


async def test_an_upgrade_is_426() -> None:
    async with gateway(["x"]) as g:
        agent = await g.session()
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
                   "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
        answer = await agent.http.get("v1/responses", headers=upgrade)
        assert answer.status_code == 426
