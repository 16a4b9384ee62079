"""How clients of POST /v1/responses send a turn back (30 clients' traffic, 2026): one branch; an edit is another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.gateway import Agent, Running, call_text, gateway

FUNCTION: dict[str, Any] = {"type": "function", "name": "buy", "parameters": {"type": "object"}}
TOOLS: list[dict[str, Any]] = [
    FUNCTION,
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "mcp__shop", "tools": [{**FUNCTION, "name": "sell"}]},
]
SAID = (
    "<think>\nkiwi\n</think>\n\nI buy, patch and sell."
    + call_text("buy", item="kiwi", n=7, price=1.5)
    + call_text("patch", input="*** Begin\n+x")
    + call_text("mcp__shop__sell", item="fig")
)
Items = list[dict[str, Any]]


def of(items: Items, kind: str) -> Items:
    return [item for item in items if item["type"] == kind]


def without(*names: str) -> Callable[[Items], Items]:
    return lambda items: [{k: v for k, v in item.items() if k not in names} for item in items]


def changed(kind: str, **more: Any) -> Callable[[Items], Items]:
    return lambda items: [{**item, **more} if item["type"] == kind else item for item in items]


def calls_first(items: Items) -> Items:
    return [*of(items, "reasoning"), *sorted(items[1:], key=lambda item: item["type"] == "message")]


def one_space(items: Items) -> Items:
    return changed("function_call")(
        [
            {**item, "arguments": item["arguments"].replace(":", " : ")} if "arguments" in item else item
            for item in items
        ]
    )


def encrypted_only(items: Items) -> Items:
    assert items[0]["encrypted_content"]
    return [
        {"type": "reasoning", "summary": [], "encrypted_content": items[0]["encrypted_content"]},
        *items[1:],
    ]


def renamed(items: Items) -> Items:
    out = copy.deepcopy(items)
    for number, item in enumerate(out):
        if "call_id" in item:
            item["call_id"] = f"call_{number}"
    return out


ECHOES: dict[str, Callable[[Items], Items]] = {
    "as it was told": lambda items: items,
    "without reasoning": lambda items: items[1:],
    "reasoning in its opaque field only": encrypted_only,
    "reasoning of somebody else": changed("reasoning", encrypted_content="gAAAA", content=None),
    "without item ids": without("id"),
    "without status": without("status"),
    "with fields that are null": lambda items: [{**item, "phase": None, "caller": None} for item in items],
    "text as a string": changed("message", content="I buy, patch and sell."),
    "text as a string, of a message without a type": lambda items: [
        {"role": "assistant", "content": "I buy, patch and sell."} if item["type"] == "message" else item
        for item in items
    ],
    "text as input": changed("message", content=[{"type": "input_text", "text": "I buy, patch and sell."}]),
    "text in two parts": changed(
        "message",
        content=[
            {"type": "output_text", "text": "I buy, "},
            {"type": "output_text", "text": "patch and sell."},
        ],
    ),
    "text behind the calls": calls_first,
    "no text beside calls": lambda items: [item for item in items if item["type"] != "message"],
    "other blanks in arguments": one_space,
    "other call ids": renamed,
    "without the namespace": without("namespace"),
    "a namespace that is null": lambda items: [
        {**item, "namespace": None} if "namespace" in item else item for item in items
    ],
    "the namespace in the name": lambda items: [
        {**item, "namespace": None, "name": "mcp__shop__sell"} if "namespace" in item else item
        for item in items
    ],
}
EDITS: dict[str, Callable[[Items], Items]] = {
    "a message with another text": changed("message", content="I buy."),
    "a call is missing": lambda items: items[:-1],
    "other calls in order": lambda items: [*items[:-2], items[-1], items[-2]],
    "a call of another tool": lambda items: renamed(
        [{**item, "name": "buy"} if "input" in item else item for item in items]
    ),
    "other arguments of calls that are not known": lambda items: renamed(
        changed("function_call", arguments="{}")(items)
    ),
}


def outputs(items: Items) -> Items:
    out = []
    for item in items:
        if "call_id" in item:
            kind = f"{item['type']}_output"
            out.append(
                {"type": kind, "call_id": item["call_id"], "output": [{"type": "input_text", "text": "ok"}]}
            )
    return out


async def ask(agent: Agent, items: Items, **more: Any) -> dict[str, Any]:
    body = {
        "model": "shop",
        "input": items,
        "tools": TOOLS,
        "include": ["reasoning.encrypted_content"],
        **more,
    }
    answer = await agent.http.post("v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def two_turns(g: Running, echo: Callable[[Items], Items], script: Items | None = None) -> Items:
    agent = await g.session()
    asked: Items = [{"role": "developer", "content": "a clerk"}, {"role": "user", "content": "go"}]
    told = (await ask(agent, asked))["output"]
    again = echo(copy.deepcopy(told))
    head = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "a clerk"}]}
    await ask(
        agent,
        [head, {"role": "user", "content": [{"type": "input_text", "text": "go"}]}, *again, *outputs(again)],
    )
    return await g.tree(agent)


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
async def test_a_turn_that_is_sent_back_is_found(echo: Callable[[Items], Items]) -> None:
    async with gateway([SAID, "done"]) as g:
        first, second = await two_turns(g, echo)
        assert (second["parent"], second["fork"]) == (first["turn"], None)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_a_turn_that_was_edited_is_another_branch(edit: Callable[[Items], Items]) -> None:
    async with gateway([SAID, "done"]) as g:
        first, second = await two_turns(g, edit)
        assert second["parent"] != first["turn"]
        assert second["fork"]


FREE: dict[str, str] = {
    "an argument of another name": call_text("patch", patch="+x"),
    "more than the input": call_text("patch", input="+x", note=1),
    "a number": call_text("patch", input=7),
    "a call without arguments": call_text("patch"),
}


@pytest.mark.parametrize("said", FREE.values(), ids=FREE)
async def test_a_custom_call_with_odd_arguments_is_found(said: str) -> None:
    async with gateway([said, "done"]) as g:
        first, second = await two_turns(g, lambda items: items)
        assert (second["parent"], second["fork"]) == (first["turn"], None)


async def test_two_turns_in_a_row_are_both_found() -> None:
    async with gateway(["one", "two", "three"]) as g:
        agent = await g.session()
        items: Items = [{"role": "user", "content": "go"}]
        for _ in range(3):
            items = [*items, *(await ask(agent, items))["output"]]
        turns = await g.tree(agent)
        assert [turn["fork"] for turn in turns] == [None] * 3
        assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]


async def test_a_turn_goes_on_from_one_before_it_with_no_input_of_its_own() -> None:
    async with gateway(["one", "two"]) as g:
        agent = await g.session()
        made = await ask(agent, [{"role": "user", "content": "go"}])
        await ask(agent, [], previous_response_id=made["id"])
        first, second = await g.tree(agent)
        assert (second["parent"], second["fork"]) == (first["turn"], None)
