"""POST /v1/messages: Anthropic's SDK against a whole gateway: what it says and gets, and its place in the tree."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock

from tests.support.gateway import Agent, Running, call_text, gateway

BUY: Any = {
    "name": "buy",
    "description": "buy some",
    "input_schema": {
        "type": "object",
        "properties": {"item": {"type": "string"}, "n": {"type": "integer"}},
    },
}
CALL = call_text("buy", item="kiwi", n=7)
SCRIPT = [f"<think>\nkiwi it is\n</think>\n\nI buy.{CALL}", "receipt 44", "you are welcome"]
CHAT_BUY = {
    "type": "function",
    "function": {"name": "buy", "description": "buy some", "parameters": BUY["input_schema"]},
}


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def sdk(agent: Agent, *, v1: bool = False, **more: Any) -> AsyncAnthropic:
    base = agent.handle["anthropic_base_url"]
    return AsyncAnthropic(
        base_url=f"{base}/v1" if v1 else base, api_key=agent.handle["api_key"], max_retries=0, **more
    )


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(SCRIPT) as running:
        yield running


async def say(client: AsyncAnthropic, messages: list[Any], stream: bool = False, **more: Any) -> Message:
    asked: dict[str, Any] = {"model": "shop", "max_tokens": 512, "messages": messages, "tools": [BUY], **more}
    if not stream:
        answer: Message = await client.messages.create(**asked)
        return answer
    async with client.messages.stream(**asked) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_three_turns_with_a_tool_are_one_branch(g: Running, stream: bool) -> None:
    agent = await g.session()
    async with sdk(agent) as client:
        history: list[Any] = [user("buy 7 kiwi")]
        first = await say(client, history, stream, system="You are a clerk.")
        thought, text, call = first.content
        assert isinstance(thought, ThinkingBlock)
        assert isinstance(text, TextBlock)
        assert isinstance(call, ToolUseBlock)
        assert (thought.thinking.strip(), text.text.strip(), call.name) == ("kiwi it is", "I buy.", "buy")
        assert call.input == {"item": "kiwi", "n": 7}
        assert first.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "7 kiwi: 14.00"}
        history += [{"role": "assistant", "content": first.content}, user([result])]
        second = await say(client, history, stream, system="You are a clerk.")
        history += [{"role": "assistant", "content": second.content}, user("thanks")]
        third = await say(client, history, stream, system=[{"type": "text", "text": "You are a clerk."}])
    assert third.stop_reason == "end_turn"
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * 3
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]
    assert third.usage.input_tokens + (third.usage.cache_read_input_tokens or 0) == turns[2]["prompt_tokens"]
    assert third.usage.output_tokens == turns[2]["sampled_tokens"]
    (row,) = await g.finalize(agent)
    assert sum(row["loss_mask"]) == sum(turn["sampled_tokens"] for turn in turns)


async def test_a_base_url_that_ends_in_v1_works(g: Running) -> None:
    agent = await g.session()
    async with sdk(agent, v1=True) as client:
        assert (await say(client, [user("buy 7 kiwi")])).stop_reason == "tool_use"


async def test_its_own_key_in_either_header(g: Running) -> None:
    agent = await g.session()
    key = agent.handle["api_key"]
    body = {"model": "shop", "max_tokens": 8, "messages": [user("hi")]}
    url = agent.handle["anthropic_base_url"] + "/v1/messages?beta=true"
    async with httpx.AsyncClient() as http:
        for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
            assert (await http.post(url, json=body, headers=headers)).status_code == 200
        refused = await http.post(url, json=body, headers={"x-api-key": "no"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


async def test_the_turn_of_a_chat_goes_on_as_messages_and_back(g: Running) -> None:
    agent = await g.session()
    first = await agent.ask(user("buy 7 kiwi"), tools=[CHAT_BUY])
    (call,) = first["tool_calls"]
    mark = call["id"].removeprefix("call_")
    used = {"type": "tool_use", "id": f"toolu_{mark}", "name": "buy", "input": {"n": 7, "item": "kiwi"}}
    result = {"type": "tool_result", "tool_use_id": used["id"], "content": "14.00"}
    async with sdk(agent) as client:
        second = await say(
            client,
            [user("buy 7 kiwi"), {"role": "assistant", "content": [used]}, user([result])],
        )
    assert isinstance(second.content[0], TextBlock)
    await agent.ask(
        user("buy 7 kiwi"),
        first,
        {"role": "tool", "tool_call_id": call["id"], "content": "14.00"},
        {"role": "assistant", "content": second.content[0].text},
        user("thanks"),
        tools=[CHAT_BUY],
    )
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * 3
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]


SAME = {
    "cache_control moves": {
        "system": [{"type": "text", "text": "You are a clerk.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{**BUY, "cache_control": {"type": "ephemeral"}}],
    },
    "a system prompt with another billing header": {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=12"},
            {"type": "text", "text": "You are a clerk."},
        ]
    },
    "a system prompt behind another billing header": {
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=12\nYou are a clerk."}]
    },
    "a tool that says it is custom": {"tools": [{**BUY, "type": "custom", "defer_loading": True}]},
    "what does not concern the prompt": {
        "metadata": {"user_id": "u"}, "extra_body": {"context_management": {"edits": []}}, "service_tier": "auto",
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"},
    },
}  # fmt: skip


@pytest.mark.parametrize("more", SAME.values(), ids=SAME)
async def test_the_same_conversation(g: Running, more: dict[str, Any]) -> None:
    agent = await g.session()
    async with sdk(agent) as client:
        first = await say(client, [user("buy 7 kiwi")], system="You are a clerk.")
        call = first.content[-1]
        assert isinstance(call, ToolUseBlock)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "ok"}]}
        history = [user("buy 7 kiwi"), {"role": "assistant", "content": first.content[1:]}, user([result])]
        asked: dict[str, Any] = {"system": "You are a clerk.", "tools": [BUY], **more}
        await client.messages.create(model="shop", max_tokens=64, messages=history, **asked)
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None, None]
    assert turns[1]["parent"] == turns[0]["turn"]


async def test_thinking_that_is_not_shown_comes_back_sealed(g: Running) -> None:
    agent = await g.session()
    shown: Any = {"type": "adaptive", "display": "omitted"}
    async with sdk(agent) as client:
        whole = await say(client, [user("buy 7 kiwi")], thinking=shown)
        thought = whole.content[0]
        assert isinstance(thought, ThinkingBlock)
        assert thought.thinking == ""
        call = whole.content[-1]
        assert isinstance(call, ToolUseBlock)
        # Another user text: all is rendered anew, and what the model thought is still there.
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "ok"}
        await say(
            client, [user("buy 8 kiwi"), {"role": "assistant", "content": whole.content}, user([result])]
        )
    turns = await g.tree(agent)
    assert turns[1]["fork"] == "user_or_tool_edited" or turns[1]["parent"] is None
    assert "kiwi it is" in turns[1]["spans"][0]["text"]


async def test_tokens_are_counted_and_nothing_is_kept(g: Running) -> None:
    agent = await g.session()
    async with sdk(agent) as client:
        counted = await client.messages.count_tokens(model="shop", messages=[user("buy 7 kiwi")], tools=[BUY])
        assert await g.tree(agent) == []
        await say(client, [user("buy 7 kiwi")])
    (turn,) = await g.tree(agent)
    assert counted.input_tokens == turn["prompt_tokens"]
    assert turn["fork"] is None


async def test_a_prompt_over_the_window_is_refused_in_words_that_start_a_compaction(g: Running) -> None:
    agent = await g.session()
    async with sdk(agent) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4096 maximum"):
            await say(client, [user("kiwi " * 5000)])
        counted = await client.messages.count_tokens(model="shop", messages=[user("kiwi " * 5000)])
        assert counted.input_tokens > 4096
        clamped = await say(client, [user("buy 7 kiwi")], True, max_tokens=128_000)
    assert clamped.stop_reason == "tool_use"


async def test_a_thread_is_refused_so_that_the_sdk_sends_the_whole_conversation(g: Running) -> None:
    agent = await g.session()
    asked: list[dict[str, Any]] = []

    @anthropic.beta_async_tool
    async def buy(item: str, n: int) -> str:
        """Buys some."""
        asked.append({"item": item, "n": n})
        return "14.00"

    async with sdk(agent) as client:
        runner = client.beta.messages.tool_runner(
            model="shop",
            max_tokens=256,
            tools=[buy],
            messages=[user("buy 7 kiwi")],
        )
        final = await runner.until_done()
    assert asked == [{"item": "kiwi", "n": 7}]
    assert final.stop_reason == "end_turn"
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None, None]
    assert turns[1]["parent"] == turns[0]["turn"]


async def test_a_stop_sequence_is_told() -> None:
    async with gateway(["one STOP two"]) as g:
        agent = await g.session()
        async with sdk(agent) as client:
            for stream in (False, True):
                answer = await say(client, [user("count")], stream, stop_sequences=["STOP"])
                assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")
                assert [block.text for block in answer.content if isinstance(block, TextBlock)] == ["one "]


async def test_the_same_events_again_for_a_retry(g: Running) -> None:
    agent = await g.session()
    body = {
        "model": "shop",
        "max_tokens": 99,
        "stream": True,
        "messages": [user("buy 7 kiwi")],
        "tools": [BUY],
    }
    url, key = agent.handle["anthropic_base_url"] + "/v1/messages", agent.handle["api_key"]
    async with httpx.AsyncClient(headers={"x-api-key": key}) as http:
        first = await http.post(url, json=body)
        again = await http.post(url, json=body, headers={"x-stainless-retry-count": "1"})
        whole = await http.post(url, json={**body, "stream": False}, headers={"x-stainless-retry-count": "1"})
    assert again.content == first.content
    assert whole.json()["id"] == json.loads(first.text.split("data: ")[1].split("\n")[0])["message"]["id"]
    assert len(await g.tree(agent)) == 1


async def test_parts_keep_the_order_in_which_they_were_said() -> None:
    said = f"first {CALL} then {CALL} last"
    async with gateway([said]) as g:
        agent = await g.session()
        async with sdk(agent) as client:
            for stream in (False, True):
                answer = await say(client, [user("buy twice")], stream)
                kinds = [block.type for block in answer.content]
                assert kinds == ["text", "tool_use", "text", "tool_use", "text"], stream
                assert "".join(b.text for b in answer.content if b.type == "text").split() == [
                    "first",
                    "then",
                    "last",
                ]


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "prefill": (
        {"messages": [user("hi"), {"role": "assistant", "content": "Sure"}]},
        "does not support assistant message prefill",
    ),
    "a server's tool": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        r"tools\[0\]\.type",
    ),
    "an mcp server": (
        {"extra_body": {"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}},
        "mcp_servers",
    ),
    "a tool without a schema": ({"tools": [{"name": "x"}]}, r"tools\[0\]\.input_schema is missing"),
    "a tool that is not there": ({"tool_choice": {"type": "tool", "name": "sell"}}, r"tool_choice\.name"),
    "no tools to choose of": ({"tool_choice": {"type": "any"}, "tools": []}, "tool_choice is any"),
    "a result of nothing": (
        {"messages": [user([{"type": "tool_result", "content": "x"}])]},
        r"messages\[0\]\.content\[0\]\.tool_use_id is missing",
    ),
    "an unknown block": ({"messages": [user([{"type": "video"}])]}, r"messages\[0\]\.content\[0\]\.type"),
    "no such role": ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\]\.role"),
    "no such effort": ({"output_config": {"effort": "huge"}}, r"output_config\.effort"),
    "no such model": ({"model": "claude"}, "does not exist"),
}


@pytest.mark.parametrize(("more", "words"), ERRORS.values(), ids=ERRORS)
async def test_refused_in_its_own_words(g: Running, more: dict[str, Any], words: str) -> None:
    agent = await g.session()
    body = {"model": "shop", "max_tokens": 9, "messages": [user("hi")], "tools": [BUY], **more}
    async with sdk(agent) as client:
        with pytest.raises((anthropic.BadRequestError, anthropic.NotFoundError), match=words) as seen:
            await client.messages.create(**body)
    assert seen.value.body["type"] == "error"  # type: ignore[index]
    assert seen.value.response.headers["x-sandgate-reason"]
    assert await g.tree(agent) == []
