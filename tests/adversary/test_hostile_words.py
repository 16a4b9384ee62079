"""Whatever the model is made to say, and whatever comes back as its words: an answer or a 400, no 500, never slow."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.tokens import tool_calls
from tests.support.gateway import BUY, Agent, call_text, events, gateway, user


def read(raw: str | bytes) -> Any:
    """As every reader of JSON takes it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(raw, parse_constant=refuse)


def strict(raw: str | bytes) -> Any:
    """And what it holds can be written again."""
    value = read(raw)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


SAID = {
    "half a character as a name": hermes('{"name": "\\ud83d", "arguments": {}}'),
    "half a character in a name": hermes('{"name": "buy\\ud83d", "arguments": {}}'),
    "half a character in arguments": hermes('{"name": "buy", "arguments": {"item": "\\ud83d"}}'),
    "half a character as an argument's name": hermes('{"name": "buy", "arguments": {"\\ud83d": 1}}'),
    "a number that is none": hermes('{"name": "buy", "arguments": {"n": NaN}}'),
    "infinity": hermes('{"name": "buy", "arguments": {"n": -Infinity}}'),
    "a number beyond float64": hermes('{"name": "buy", "arguments": {"n": 1e999}}'),
    "an integer beyond 64 bits": hermes('{"name": "buy", "arguments": {"n": ' + "9" * 40 + "}}"),
    "an integer of many digits": hermes('{"name": "buy", "arguments": {"n": ' + "9" * 1_500 + "}}"),
    "arguments of many levels": hermes('{"name": "buy", "arguments": {"n": ' + "[" * 400 + "]" * 400 + "}}"),
    "arguments of levels without end": hermes('{"name": "buy", "arguments": ' + '{"a":' * 300),
    "a NUL": hermes('{"name": "buy", "arguments": {"item": "\\u0000"}}'),
}


async def _streamed(agent: Agent, *messages: Any) -> list[Any]:
    answer = await agent.post(*messages, tools=[BUY], stream=True)
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().endswith("data: [DONE]"), "the stream was not dropped"
    said = events(answer.content)
    assert not any("error" in one for one in said), said
    return said


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
async def test_whatever_is_sampled_is_told_kept_and_taken_back(said: str) -> None:
    async with gateway(lambda ids, number: said) as g:
        agent = await g.session()
        answer = await agent.post("go", tools=[BUY])
        assert answer.status_code == 200, answer.text
        message = strict(answer.content)["choices"][0]["message"]
        for one in await _streamed(agent, "go on"):
            strict(json.dumps(one))
        for call in message.get("tool_calls") or ():
            read(call["function"]["arguments"])
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
            for call in message.get("tool_calls") or ()
        ]
        continued = await agent.post("go", message, *results, user("and?"), tools=[BUY])
        assert continued.status_code in (200, 400), continued.text
        forked = await agent.post("gone", message, *results, user("and?"), tools=[BUY])
        assert forked.status_code in (200, 400), forked.text
        (one, *_) = await g.finalize(agent)
        assert one["response_ids"]


BACK = {
    "arguments of levels without end": '{"a":' * 50_000,
    "arguments of levels that end": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "lists without end": "[" * 50_000,
    "levels that a reader just takes": '{"a":' + "[" * 900 + "]" * 900 + "}",
    "half a character": '{"a":"\\ud83d"}',
    "half a character as a name": '{"\\ud83d":1}',
    "a number that is none": '{"a":NaN}',
    "a number beyond float64": '{"a":1e999}',
    "an integer of many digits": '{"a":' + "9" * 5_000 + "}",
    "no object": "[1]",
    "an empty text": "",
}


@pytest.mark.parametrize("arguments", BACK.values(), ids=BACK)
async def test_whatever_comes_back_as_arguments_is_understood_or_refused(arguments: str) -> None:
    async with gateway(lambda ids, number: "done") as g:
        agent = await g.session()
        call = {"id": "c1", "type": "function", "function": {"name": "buy", "arguments": arguments}}
        history = [
            user("go"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ]
        answer = await agent.post(*history, tools=[BUY])
        assert answer.status_code in (200, 400), answer.text
        strict(answer.content)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**70}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a tool's": {"tools": [TOOL]},
    "a tool's that is required": {"tools": [TOOL], "tool_choice": "required"},
    "a tool's that is named": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
}


@pytest.mark.parametrize("more", SCHEMAS.values(), ids=SCHEMAS)
async def test_an_integer_beyond_64_bits_in_a_tools_schema_is_no_error(more: dict[str, Any]) -> None:
    async with gateway([call_text("f", n=1)]) as g:
        agent = await g.session()
        answer = await agent.post("go", **more)
        assert answer.status_code == 200, answer.text


async def test_an_integer_beyond_64_bits_in_an_answers_schema_is_refused_by_name() -> None:
    async with gateway(["{}"]) as g:
        agent = await g.session()
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        answer = await agent.post("go", response_format=form)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "response_format.json_schema.schema"


def _glm(count: int) -> dict[str, str]:
    return {
        "keys without values": "buy" + "<arg_key>k</arg_key>" * count,
        "keys and values that never close": "buy" + "<arg_key>k</arg_key><arg_value>v" * count,
        "a key that never closes": "buy<arg_key>" + "</arg_key" * count,
        "openers": "buy" + "<arg_key>" * count,
        "space": "buy<arg_key>k</arg_key>" + " " * 20 * count + "<arg_value",
    }


@pytest.mark.parametrize("shape", _glm(1))
def test_a_call_of_glm_is_read_in_time_in_proportion_to_its_length(shape: str) -> None:
    def took(count: int) -> float:
        body, best = _glm(count)[shape], 9.0
        for _ in range(3):
            began = time.thread_time()
            assert tool_calls.glm(body, ()) is None
            best = min(best, time.thread_time() - began)
        return best

    took(10)
    assert took(8_000) < 12 * took(2_000) + 0.02


def test_what_glm_says_is_read_as_before() -> None:
    tool = Tool("buy", schema={"properties": {"item": {"type": "string"}, "n": {"type": "integer"}}})
    body = (
        "buy\n<arg_key>item</arg_key>\n<arg_value>a </b> <arg_key></arg_value>\n"
        "<arg_key>n</arg_key><arg_value>7</arg_value>"
    )
    found = tool_calls.glm(body, (tool,))
    assert found is not None
    (call,) = found
    assert not isinstance(call, str)
    assert json.loads(call.arguments) == {"item": "a </b> <arg_key>", "n": 7}


TYPED = {
    "NaN": "NaN",
    "-Infinity": "-Infinity",
    "1e999": "1e999",
    '"\\ud800"': '"\\ud800"',
    "[1, 2]": [1, 2],
    "7": 7,
}


@pytest.mark.parametrize(("text", "value"), TYPED.items(), ids=TYPED)
def test_a_value_that_cannot_be_said_as_json_stays_text(text: str, value: Any) -> None:
    assert tool_calls.typed_value(text, frozenset()) == value


# -- what is said back ----------------------------------------------------------------------------------------------


async def test_no_name_of_a_clients_is_sent_back_at_length() -> None:
    async with gateway(["hello"] * 3) as g:
        agent = await g.session()
        long = "x" * 100_000
        answers = [
            await agent.http.post("v1/chat/completions", json={**agent.body("hi"), "model": long}),
            await agent.http.get(f"v1/models/{long[:50_000]}"),
            await agent.http.get(f"v1/{long[:50_000]}"),
            await g.admin.get(f"/v1/sessions/{long[:50_000]}"),
            await g.admin.post(f"/v1/leases/{long[:50_000]}/ack"),
            await g.admin.post("/v1/groups/close", json={"uid": long[:50_000]}),
            await g.admin.post(f"/v1/sessions/{agent.id}/reward", json={"reward": 1, "interaction_id": long}),
            await agent.http.post("v1/chat/completions", json={**agent.body("hi"), "tool_choice": long}),
        ]
        for answer in answers:
            assert 400 <= answer.status_code < 500, answer.text[:300]
            assert len(answer.content) < 1_500


async def test_an_areal_agents_model_is_not_said_again_in_each_chunk_at_length() -> None:
    """Its agents say any model; what they say stands in every chunk of a stream."""
    async with gateway(["one two three four"] * 2) as g:
        await g.admin.post("/grant_capacity")
        made = (await g.admin.post("/rl/start_session", json={"task_id": "t"})).json()
        body = {"model": "m" * 100_000, "messages": [user("hi")], "stream": True}
        headers = {"authorization": f"Bearer {made['api_key']}"}
        answer = await g.admin.post("/v1/chat/completions", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
