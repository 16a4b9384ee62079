"""One conversation in several protocols, or in an order of its own: it goes on in its branch."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.support.gateway import BUY, Agent, call_text, gateway, user

BOTH = call_text("buy", item="kiwi", n=7) + "\n" + call_text("buy", item="fig", n=1)
FUNCTION = {"type": "function", **BUY["function"]}
INPUT = {"name": "buy", "description": "buy some", "input_schema": BUY["function"]["parameters"]}
TASK = user("buy both")


async def by_chat(agent: Agent) -> Any:
    said = await agent.ask(TASK, tools=[BUY])
    one, other = said["tool_calls"]
    return await agent.post(
        TASK,
        {**said, "tool_calls": [one]},
        {"role": "tool", "tool_call_id": one["id"], "content": "done"},
        {"role": "assistant", "content": None, "tool_calls": [other]},
        {"role": "tool", "tool_call_id": other["id"], "content": "done"},
        tools=[BUY],
    )


async def by_responses(agent: Agent) -> Any:
    body = {"model": "shop", "tools": [FUNCTION]}
    answer = await agent.http.post("v1/responses", json={**body, "input": [TASK]})
    items = [TASK]
    for call in answer.json()["output"]:
        items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}]
    return await agent.http.post("v1/responses", json={**body, "input": items})


async def by_messages(agent: Agent) -> Any:
    body = {"model": "shop", "tools": [INPUT], "max_tokens": 99}
    answer = await agent.http.post("v1/messages", json={**body, "messages": [TASK]})
    said: list[Any] = [TASK]
    for call in answer.json()["content"]:
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
        said += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return await agent.http.post("v1/messages", json={**body, "messages": said})


@pytest.mark.parametrize("send", [by_chat, by_responses, by_messages], ids=lambda send: send.__name__)
async def test_parallel_calls_with_their_answers_between_them_are_one_turn(send: Any) -> None:
    async with gateway([BOTH, "bought"]) as g:
        agent = await g.session()
        answer = await send(agent)
        assert answer.status_code == 200, answer.text
        first, then = await g.tree(agent)
    assert (then["parent"], then["fork"]) == (first["turn"], None)


async def test_a_response_whose_parent_was_deleted_says_which() -> None:
    async with gateway(["one", "two"]) as g:
        agent = await g.session()

        async def say(**more: Any) -> Any:
            return await agent.http.post("v1/responses", json={"model": "shop", "input": "hi", **more})

        first = (await say()).json()["id"]
        second = (await say(previous_response_id=first)).json()["id"]
        await agent.http.delete(f"v1/responses/{first}")
        answer = await say(previous_response_id=second)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"Previous response with id '{first}' not found")
        assert answer.json()["error"]["code"] == "previous_response_not_found"
        none = await say(previous_response_id=first)
        assert none.json()["error"]["message"] == f"Previous response with id '{first}' not found."


SAID_WELL: dict[str, tuple[str, bytes, dict[str, str], int, str]] = {
    "half of a surrogate pair": (
        "v1/chat/completions", b'{"model":"shop","messages":[{"role":"user","content":"\\ud800"}]}', {}, 400,
        "messages[0].content: holds half of a surrogate pair",
    ),
    "a compressed body": (
        "v1/chat/completions", b"\x1f\x8b", {"content-encoding": "gzip"}, 415, "content-encoding is 'gzip'",
    ),
    "a compressed body of Anthropic's": (
        "v1/messages", b"\x1f\x8b", {"content-encoding": "br"}, 415, "content-encoding is 'br'",
    ),
    "no such endpoint of Responses": (
        "v1/responses/compact", b"{}", {}, 404, "no such endpoint: POST /responses/compact",
    ),
    "an image to a model of texts": (
        "v1/chat/completions",
        b'{"model":"shop","messages":[{"role":"user","content":[{"type":"image_url","image_url":'
        b'{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]}', {}, 400, "messages: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "headers", "status", "words"), SAID_WELL.values(), ids=SAID_WELL)
async def test_errors_say_what_is_wrong(
    path: str, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    async with gateway(["one"]) as g:
        agent = await g.session()
        answer = await agent.http.post(path, content=body, headers=headers)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text


async def test_anthropics_sdk_can_list_the_model() -> None:
    async with gateway() as g:
        agent = await g.session()
        made = anthropic.AsyncAnthropic(
            base_url=agent.handle["anthropic_base_url"], api_key=agent.handle["api_key"], max_retries=0
        )
        async with made as client:
            listed = await client.models.list()
            assert [one.id for one in listed.data] == ["shop"]
            assert (await client.models.retrieve("shop")).display_name == "shop"
            with pytest.raises(anthropic.NotFoundError, match="does not exist"):
                await client.models.retrieve("other")


STRICT: dict[str, dict[str, Any]] = {
    "not said": {},
    "null": {"strict": None},
    "false": {"strict": False},
}


@pytest.mark.parametrize("strict", STRICT.values(), ids=STRICT)
@pytest.mark.parametrize("first", STRICT.values(), ids=[f"{name} at first" for name in STRICT])
async def test_a_tool_that_is_not_strict_is_the_same_in_every_protocol(
    strict: dict[str, Any], first: dict[str, Any]
) -> None:
    async with gateway(["one", "two", "three"]) as g:
        agent = await g.session()
        said = await agent.ask("go", tools=[{**BUY, "function": {**BUY["function"], **first}}])
        two = [user("go"), {"role": "assistant", "content": said["content"]}, user("on")]
        tools = [{**FUNCTION, **strict}]
        answer = await agent.http.post("v1/responses", json={"model": "shop", "input": two, "tools": tools})
        three = [
            *two,
            {"role": "assistant", "content": answer.json()["output"][0]["content"][0]["text"]},
            user("end"),
        ]
        body = {"model": "shop", "messages": three, "tools": [{**INPUT, **strict}], "max_tokens": 9}
        assert (await agent.http.post("v1/messages", json=body)).status_code == 200
        turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * 3
