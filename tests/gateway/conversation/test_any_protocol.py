"""Any conversation, sent back in any protocol with what clients do to it, finds its place; and no edited one does.

Each turn goes back as that protocol's own answer said it, and may be distorted as clients were measured to do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.messages import ResponseForm, TurnRequest
from sandgate.gateway.conversation.tree import Match
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.protocols.base import Choice, Context, Usage
from sandgate.gateway.protocols.table import ADAPTERS
from tests.gateway.conversation.talk import Talk
from tests.gateway.conversation.test_properties import REPLIES, TEXT, as_javascript

SYSTEM = "You are a clerk."
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
Json = dict[str, Any]


class Answered(NamedTuple):
    turn: str
    reply: Reply


class Result(NamedTuple):
    """Of call `index` of a turn."""

    turn: str
    number: int
    text: str


Step = str | Answered | Result
"""A user's words, an answer, a call's result."""


def told(path: str, step: Answered, form: ResponseForm | None = None) -> Json:
    """The answer as this protocol tells it."""
    context = Context(turns=(step.turn,), model="m", created=1, form=form)
    body = ADAPTERS[path].reply(context, [Choice(reply=step.reply, finish="stop")], Usage(1, 1))
    answer: Json = json.loads(body)
    return answer


def anew(arguments: Any, order: random.Random) -> Any:
    """As JavaScript prints it, keys in another order."""
    value = as_javascript(arguments)
    if order.random() < 0.5 or not isinstance(value, dict):
        return value
    items = list(value.items())
    order.shuffle(items)
    return dict(items)


def text_of(text: str, kind: str, order: random.Random) -> Any:
    if order.random() < 0.5:
        return text
    part: Json = {"type": kind, "text": text}
    if order.random() < 0.5:
        part["cache_control"] = {"type": "ephemeral"}
    return [part]


# --- the protocols


def chat(steps: list[Step], order: random.Random) -> TurnRequest:
    messages: list[Json] = [{"role": order.choice(["system", "developer"]), "content": SYSTEM}]
    calls: dict[tuple[str, int], str] = {}
    renamed = order.random() < 0.2
    for step in steps:
        match step:
            case str():
                messages.append({"role": "user", "content": text_of(step, "text", order)})
            case Answered(turn, reply):
                message = told("/chat/completions", step)["choices"][0]["message"]
                for index, call in enumerate(message.get("tool_calls", ())):
                    given = json.loads(call["function"]["arguments"])
                    call["function"]["arguments"] = json.dumps(anew(given, order))
                    call["id"] = f"x{len(calls)}" if renamed else call["id"]
                    calls[turn, index] = call["id"]
                if not reply.text:
                    message["content"] = order.choice([None, "", []])
                for name in ("reasoning", "reasoning_content", "refusal"):
                    if order.random() < 0.5:
                        message.pop(name, None)
                messages.append(message)
            case Result(turn, index, text):
                content = text_of(text, "text", order)
                messages.append({"role": "tool", "tool_call_id": calls[turn, index], "content": content})
    tool = {"type": "function", "function": {"name": "search", "parameters": SCHEMA}}
    return decoded("/chat/completions", {"messages": messages, "tools": [tool]})


def messages(steps: list[Step], order: random.Random) -> TurnRequest:
    out: list[Json] = []
    calls: dict[tuple[str, int], str] = {}

    def say(role: str, content: Any) -> None:
        """The results of several calls, and words behind them, are one message."""
        if out and out[-1]["role"] == role == "user" and isinstance(out[-1]["content"], list):
            out[-1]["content"] += (
                content if isinstance(content, list) else [{"type": "text", "text": content}]
            )
        else:
            out.append({"role": role, "content": content})

    for step in steps:
        match step:
            case str():
                say("user", text_of(step, "text", order))
            case Answered(turn):
                blocks = told("/messages", step)["content"]
                number = 0
                for block in blocks:
                    if block["type"] == "tool_use":
                        block["input"] = anew(block["input"], order)
                        calls[turn, number] = block["id"]
                        number += 1
                if order.random() < 0.5:
                    blocks = [block for block in blocks if block["type"] != "thinking"]
                say("assistant", blocks)
            case Result(turn, index, text):
                content = text_of(text, "text", order)
                block = {"type": "tool_result", "tool_use_id": calls[turn, index], "content": content}
                say("user", [block | ({"is_error": False} if order.random() < 0.5 else {})])
    tool = {"name": "search", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
    return decoded("/messages", {"messages": out, "system": text_of(SYSTEM, "text", order), "tools": [tool]})


def responses(steps: list[Step], order: random.Random) -> TurnRequest:
    items: list[Json] = []
    calls: dict[tuple[str, int], str] = {}
    form = ResponseForm(
        sealed=order.random() < 0.5,
        echo={"reasoning": b'{"summary":"auto"}'} if order.random() < 0.5 else {},
    )
    for step in steps:
        match step:
            case str():
                items.append({"role": "user", "content": text_of(step, "input_text", order)})
            case Answered(turn):
                output = told("/responses", step, form)["output"]
                number = 0
                for item in output:
                    if item["type"] == "function_call":
                        item["arguments"] = json.dumps(anew(json.loads(item["arguments"]), order))
                        calls[turn, number] = item["call_id"]
                        number += 1
                    if order.random() < 0.5:
                        item.pop("id")
                        item.pop("status")
                    if item["type"] == "reasoning" and order.random() < 0.5:
                        item.pop("content", None)
                        item["summary"] = []
                if order.random() < 0.5:
                    output = [item for item in output if item["type"] != "reasoning"]
                items += output
            case Result(turn, index, text):
                result = text_of(text, "input_text", order)
                items.append(
                    {"type": "function_call_output", "call_id": calls[turn, index], "output": result}
                )
    body: Json = {"tools": [{"type": "function", "name": "search", "parameters": SCHEMA}]}
    if order.random() < 0.5:
        body["instructions"] = SYSTEM
    else:
        items.insert(0, {"role": "developer", "content": SYSTEM})
    return decoded("/responses", {**body, "input": items})


def decoded(path: str, body: Json) -> TurnRequest:
    raw = json.dumps({"model": "m", "max_tokens": 9, **body}).encode()
    return ADAPTERS[path].decode(raw, {})


PROTOCOLS: tuple[Callable[[list[Step], random.Random], TurnRequest], ...] = (chat, messages, responses)

# --- the laws


def results(turn: str, reply: Reply, text: str) -> list[Step]:
    return [Result(turn, index, text) for index in range(len(reply.tool_calls))] or [text]


def held(replies: list[Reply], texts: list[str], order: random.Random) -> tuple[Talk, list[Step]]:
    """A conversation, each turn of it asked for in a protocol of its own."""
    talk, steps = Talk(), ["go"]
    so_far: list[Step] = list(steps)
    for number, reply in enumerate(replies):
        match = talk.find(order.choice(PROTOCOLS)(so_far, order))
        assert match.parent == (talk.records[-1].turn if talk.records else None)
        assert match.fork is None
        turn = talk.commit(match, reply)
        so_far += [Answered(turn, reply), *results(turn, reply, texts[number % len(texts)])]
    return talk, so_far


TEXTS = st.lists(TEXT.filter(bool), min_size=1, max_size=3)
ORDER = st.randoms(use_true_random=False)
MORE = settings(max_examples=max(200, settings.default.max_examples if settings.default else 0))


@MORE
@given(replies=st.lists(REPLIES, min_size=1, max_size=4), texts=TEXTS, order=ORDER)
def test_any_conversation_in_any_protocol_finds_its_place(
    replies: list[Reply], texts: list[str], order: random.Random
) -> None:
    talk, steps = held(replies, texts, order)
    for protocol in PROTOCOLS:
        match = talk.find(protocol(steps, order))
        assert (match.parent, match.fork) == (talk.records[-1].turn, None), protocol.__name__


@MORE
@given(replies=st.lists(REPLIES, min_size=1, max_size=4), texts=TEXTS, order=ORDER, data=st.data())
def test_an_edited_one_never_does(
    replies: list[Reply], texts: list[str], order: random.Random, data: st.DataObject
) -> None:
    talk, steps = held(replies, texts, order)
    places = [at for at, step in enumerate(steps) if not isinstance(step, Answered)]
    at = data.draw(st.sampled_from(places))
    old = steps[at]
    assert not isinstance(old, Answered)
    new = old + "!" if isinstance(old, str) else old._replace(text=old.text + "!")
    edited = [*steps[:at], new, *steps[at + 1 :]]
    before = sum(isinstance(step, Answered) for step in steps[:at])
    for protocol in PROTOCOLS:
        match: Match = talk.find(protocol(edited, order))
        assert match.parent == (f"t{before - 1}" if before else None), protocol.__name__
        if before < len(replies):
            assert match.fork not in (None, ForkReason.RETRY_RESAMPLED)


PICTURES: dict[str, Callable[[str], TurnRequest]] = {
    "chat": lambda data: decoded(
        "/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data}}]}]},
    ),
    "messages": lambda data: decoded(
        "/messages",
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": data.partition(",")[2]}}]}]},
    ),
    "responses": lambda data: decoded(
        "/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": data}]}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("one", PICTURES)
@pytest.mark.parametrize("other", PICTURES)
def test_pictures_decide_in_every_protocol(one: str, other: str) -> None:
    """Two conversations that differ in a picture alone never join; the same picture is the same in each protocol."""
    talk = Talk()
    talk.say(PICTURES[one]("data:image/png;base64,QUJD"), Reply("a cat"))
    asked = PICTURES[other]
    assert talk.find(asked("data:image/png;base64,QUJD")).fork is ForkReason.RETRY_RESAMPLED
    assert talk.find(asked("data:image/png;base64,QUJE")).fork is ForkReason.NEW_ROOT
