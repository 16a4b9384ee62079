"""POST /v1/responses against bodies and items that no client should send: never a 500, never a broken stream."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandgate.gateway.protocols import responses_in
from sandgate.gateway.service import session_history
from tests.support.gateway import Agent, Running, events, gateway


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(["one", "two", "three", "four"]) as running:
        yield running


async def raw(agent: Agent, body: bytes) -> Any:
    return await agent.http.post("v1/responses", content=body, headers={"content-type": "application/json"})


ITEM = b'{"role":"user","content":"hi",%s}'
KEPT = {
    "a number that is no double": ITEM % b'"x":1e999',
    "an integer of 4,000 digits": ITEM % (b'"x":' + b"9" * 4000),
    "300 lists in each other": ITEM % (b'"x":' + b"[" * 300 + b"]" * 300),
    "an id that is null": ITEM % b'"id":null',
    "an id of its own": ITEM % b'"id":"own \\u2028/%s"',
    "one name twice": ITEM % b'"x":1,"x":2',
    "more lines than one": ITEM % b'\n"x":\n1\n',
}


@pytest.mark.parametrize("item", KEPT.values(), ids=KEPT)
async def test_an_item_that_was_taken_can_be_read_back_and_gone_on_from(g: Running, item: bytes) -> None:
    agent = await g.session()
    made = await raw(agent, b'{"model":"shop","input":[' + item + b"]}")
    assert made.status_code == 200, made.text
    name = made.json()["id"]
    read = await agent.http.get(f"v1/responses/{name}/input_items")
    assert read.status_code == 200, read.text
    assert read.json()["data"][0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert isinstance(read.json()["data"][0]["id"], str)
    assert (await agent.http.get(f"v1/responses/{name}")).status_code == 200
    more = {"model": "shop", "input": "and", "previous_response_id": name}
    assert (await agent.http.post("v1/responses", json=more)).status_code == 200
    first, second = await g.tree(agent)
    assert second["parent"] == first["turn"]


ITEMS: dict[str, tuple[Any, str]] = {
    "a number": (7, "input[0]"),
    "a text": ("x", "input[0]"),
    "null": (None, "input[0]"),
    "a list": ([], "input[0]"),
    "content of a number": ({"role": "user", "content": 7}, "input[0].content"),
    "a part of a number": ({"role": "user", "content": [7]}, "input[0].content[0]"),
    "a part of null": ({"role": "user", "content": [None]}, "input[0].content[0]"),
    "a part without text": (
        {"role": "user", "content": [{"type": "input_text"}]},
        "input[0].content[0].text",
    ),
    "an image without a URL": (
        {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
        "input[0].content[0].file_id",
    ),
    "output of null": ({"type": "function_call_output", "call_id": "c", "output": None}, "input[0].output"),
    "output of a number": ({"type": "function_call_output", "call_id": "c", "output": 1}, "input[0].output"),
    "arguments of an object": (
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": {}},
        "input[0].arguments",
    ),
    "a call without an id": ({"type": "function_call", "name": "n", "arguments": ""}, "input[0].call_id"),
    "a custom call without input": (
        {"type": "custom_tool_call", "call_id": "c", "name": "n"},
        "input[0].input",
    ),
    "a summary of texts": ({"type": "reasoning", "summary": ["x"]}, "input[0].summary[0]"),
    "a role of a number": ({"role": 7, "content": "x"}, "input[0].role"),
    "no such role": ({"role": "critic", "content": "x"}, "input[0].role"),
}


@pytest.mark.parametrize(("item", "field"), ITEMS.values(), ids=ITEMS)
async def test_an_item_is_refused_by_the_path_of_what_is_wrong(g: Running, item: Any, field: str) -> None:
    agent = await g.session()
    answer = await agent.http.post("v1/responses", json={"model": "shop", "input": [item]})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
    assert await g.tree(agent) == []


TAKEN: dict[str, Any] = {
    "content of null": [{"role": "user", "content": None}],
    "arguments that are no JSON": [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{"},
        {"type": "function_call_output", "call_id": "c", "output": ""},
    ],
    "an output of no call that is known": [{"type": "function_call_output", "call_id": "?", "output": []}],
    "reasoning sealed elsewhere": [
        {"role": "user", "content": "x"},
        {"type": "reasoning", "encrypted_content": "sg1.%%%", "summary": None, "content": None},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "y"},
    ],
}


@pytest.mark.parametrize("items", TAKEN.values(), ids=TAKEN)
async def test_odd_items_are_no_bug(g: Running, items: Any) -> None:
    agent = await g.session()
    answer = await agent.http.post("v1/responses", json={"model": "shop", "input": items})
    assert answer.status_code == 200, answer.text


BODIES = {
    "half a surrogate in an item": b'{"model":"shop","input":[{"role":"user","content":"\\ud800"}]}',
    "half a surrogate in metadata": b'{"model":"shop","input":"hi","metadata":{"a":"\\ud800"}}',
    "bytes that are no UTF-8 in metadata": b'{"model":"shop","input":"hi","metadata":{"a":"\xff"}}',
    "bytes that are no UTF-8 beside an item": b'{"model":"shop","input":[' + ITEM % b'"x":"\xff"' + b"]}",
    "bytes that are no UTF-8 in a schema": (
        b'{"model":"shop","input":"hi","tools":[{"type":"function","name":"n","x":"\xff"}]}'
    ),
    "a NUL in a text": b'{"model":"shop","input":"a\x00b"}',
    "100,000 lists in each other": b'{"model":"shop","input":"hi","metadata":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}",
    "metadata that is not closed": b'{"model":"shop","input":"hi","metadata":{"a":[}}',
    "no object": b"[]",
    "an empty body": b"",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_that_is_no_json_is_refused(g: Running, body: bytes) -> None:
    agent = await g.session()
    answer = await raw(agent, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"]


async def test_a_body_of_many_lines_is_streamed_on_one_line_an_event(g: Running) -> None:
    agent = await g.session()
    tools = [{"type": "function", "name": "buy", "parameters": {"type": "object", "properties": {}}}]
    body = {"model": "shop", "input": "hi", "stream": True, "tools": tools, "metadata": {"a": "b"}}
    answer = await raw(agent, json.dumps(body, indent=2).encode())
    assert answer.status_code == 200, answer.text
    *_, last = events(answer.content)
    assert last["type"] == "response.completed"
    assert (last["response"]["tools"], last["response"]["metadata"]) == (tools, {"a": "b"})


async def test_fields_that_are_null_are_told_as_if_they_were_not_sent(g: Running) -> None:
    agent = await g.session()
    bare = (await agent.http.post("v1/responses", json={"model": "shop", "input": "hi"})).json()
    nulls = dict.fromkeys(["tools", "tool_choice", "text", "reasoning", "metadata", "truncation", "user"])
    told = (await agent.http.post("v1/responses", json={"model": "shop", "input": "yes", **nulls})).json()
    assert {name: told[name] for name in nulls} == {name: bare[name] for name in nulls}


REFERENCES = [
    "in_nobody_0",
    "in__",
    "in_",
    "in_x_\u00b2",
    "in_x_99999999999999999999",
    "resp_nobody",
    "",
    "resp_",
    "é\u2028",
    "x" * 10_000,
    "../../admin",
]


@pytest.mark.parametrize("name", REFERENCES, ids=range(len(REFERENCES)))
async def test_a_reference_to_nothing_is_refused_by_its_path(g: Running, name: str) -> None:
    agent = await g.session()
    more = {"model": "shop", "input": "hi", "previous_response_id": name}
    answer = await agent.http.post("v1/responses", json=more)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "previous_response_id")
    asked = {"model": "shop", "input": [{"type": "item_reference", "id": name}]}
    answer = await agent.http.post("v1/responses", json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input[0].id")
    assert len(answer.content) < 1_000


async def test_references_to_references_are_not_followed(g: Running) -> None:
    agent = await g.session()
    first = (await agent.http.post("v1/responses", json={"model": "shop", "input": "hi"})).json()["id"]
    inner = {"type": "item_reference", "id": f"in_{first.removeprefix('resp_')}_0"}
    made = await agent.http.post("v1/responses", json={"model": "shop", "input": [inner]})
    outer = {"type": "item_reference", "id": f"in_{made.json()['id'].removeprefix('resp_')}_0"}
    answer = await agent.http.post("v1/responses", json={"model": "shop", "input": [outer]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input[0].id")


async def test_references_to_one_long_item_are_bounded_in_all(
    g: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_history, "REFERRED_BYTES_MAX", 1_500)
    agent = await g.session()
    more = {"model": "shop", "input": "hi " * 200}
    name = (await agent.http.post("v1/responses", json=more)).json()["id"].removeprefix("resp_")
    reference = {"type": "item_reference", "id": f"in_{name}_0"}
    for many, field in ((2, None), (3, "input[2]")):
        asked = {"model": "shop", "input": [reference] * many}
        answer = (await agent.http.post("v1/responses/input_tokens", json=asked)).json()
        assert answer.get("error", {}).get("param") == field


async def test_a_chain_with_a_response_that_was_deleted_is_gone(g: Running) -> None:
    agent = await g.session()
    names: list[str] = []
    for _ in range(3):
        more = {"previous_response_id": names[-1]} if names else {}
        made = await agent.http.post("v1/responses", json={"model": "shop", "input": "hi", **more})
        names.append(made.json()["id"])
    assert (await agent.http.delete(f"v1/responses/{names[1]}")).status_code == 200
    assert (await agent.http.delete(f"v1/responses/{names[1]}")).status_code == 404
    assert (await agent.http.get(f"v1/responses/{names[2]}")).json()["previous_response_id"] == names[1]
    for name, status in zip(names, (200, 400, 400), strict=True):
        more = {"model": "shop", "input": "and", "previous_response_id": name}
        assert (await agent.http.post("v1/responses", json=more)).status_code == status


async def test_a_session_that_was_dropped_from_memory_says_that_it_has_ended(g: Running) -> None:
    agent = await g.session()
    made = (await agent.http.post("v1/responses", json={"model": "shop", "input": "hi"})).json()
    await g.finalize(agent)
    g.core.sessions.get(agent.id).evict()
    more = {"model": "shop", "input": "and", "previous_response_id": made["id"]}
    reference = {"model": "shop", "input": [{"type": "item_reference", "id": made["output"][0]["id"]}]}
    for body in (more, reference):
        answer = await agent.http.post("v1/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "session_ended")
    for path in ("", "/input_items"):
        assert (await agent.http.get(f"v1/responses/{made['id']}{path}")).status_code == 410


async def test_a_chain_that_one_content_makes_long_is_refused_before_it_is_read(
    g: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_in, "CHAIN_BYTES_MAX", 150_000)
    agent = await g.session()
    item = {"role": "user", "content": "hi", "padding": "x" * 100_000}
    asked: dict[str, Any] = {"model": "shop", "input": [item]}
    names: list[str] = []
    for _ in range(2):
        made = await agent.http.post("v1/responses", json=asked)
        names.append(made.json()["id"])
        asked["previous_response_id"] = names[-1]
    answer = await agent.http.post("v1/responses", json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "previous_response_id")
    kept = g.core.sessions.get(agent.id).kept
    before = kept.weight
    assert before > 200_000
    for name in names:
        await agent.http.delete(f"v1/responses/{name}")
    assert kept.weight == 0


async def test_a_request_that_goes_on_from_much_is_read_in_a_thread(
    g: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await g.session()
    long = {"model": "shop", "input": [{"role": "user", "content": "hi", "padding": "x" * 200_000}]}
    made = await agent.http.post("v1/responses", json=long)
    threads: list[threading.Thread] = []
    decode = responses_in.decode

    def seen(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return decode(*args)

    monkeypatch.setattr(responses_in, "decode", seen)
    more = {"model": "shop", "input": "and", "previous_response_id": made.json()["id"]}
    assert (await agent.http.post("v1/responses", json=more)).status_code == 200
    (thread,) = threads
    assert thread is not threading.main_thread()


async def test_an_item_that_is_named_by_many_responses_is_named_by_one_object(g: Running) -> None:
    agent = await g.session()
    items = [{"role": "user", "content": "hi"}]
    for text in ("a", "b", "c"):
        await agent.http.post("v1/responses", json={"model": "shop", "input": items})
        items.append({"role": "user", "content": text})
    kept = g.core.sessions.get(agent.id).kept
    assert len({id(response.items[0]) for response in kept.by_turn.values()}) == 1
