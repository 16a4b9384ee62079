"""A stream of events of POST /v1/responses: what clients put together of it is the whole answer, for any deltas."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from sandgate.contract.errors import EngineFailed, Overloaded, PromptTooLong, SandgateError
from sandgate.gateway.conversation.messages import ResponseForm
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.protocols.base import Choice, Context, Usage
from sandgate.gateway.protocols.responses_out import reply
from sandgate.gateway.protocols.responses_stream import ResponseStream
from sandgate.gateway.tokens.reply import ReplyBuilder
from tests.support.gateway import events

TOOLS = [
    {"type": "function", "name": "buy"},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "shop", "tools": [{"type": "function", "name": "sell"}]},
]
WORDS = st.text('ab \n\u2028\x85é🥝"\\', min_size=1, max_size=5)
CALLS = st.builds(
    ReplyCall,
    st.sampled_from(["buy", "patch", "shop__sell", "foreign"]),
    st.sampled_from(["{}", '{"input":"+x"}', '{"input":7}', "not json", ""]),
)
SAID = st.lists(
    st.one_of(
        st.tuples(st.just("text"), WORDS),
        st.tuples(st.just("reasoning"), WORDS),
        st.tuples(st.just("call"), CALLS),
    ),
    max_size=8,
)
FINISH = st.sampled_from(["stop", "length", "abort"])


def context(*, summary: bool, sealed: bool) -> Context:
    echo = {"tools": msgspec.json.encode(TOOLS), "instructions": b'"clerk"'}
    if summary:
        echo["reasoning"] = b'{"summary":"auto"}'
    form = ResponseForm(echo=echo, sealed=sealed)
    return Context(turns=("t1",), model="shop", created=7, form=form)


def heard(told: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Items as a client puts them together of deltas alone; checks that each event fits those before."""
    items: dict[int, dict[str, Any]] = {}
    grown: dict[int, str] = {}
    done: set[int] = set()
    for event in told:
        index = event.get("output_index")
        if index is None:
            continue
        name = event["type"]
        if name == "response.output_item.added":
            assert index == len(items)
            assert done == set(items), "one item at a time"
            assert event["item"]["status"] == "in_progress"
            items[index], grown[index] = event["item"], ""
            continue
        assert index not in done
        assert event.get("item_id", items[index]["id"]) == items[index]["id"]
        if name.endswith(".delta"):
            grown[index] += event["delta"]
        elif name == "response.output_item.done":
            assert event["item"]["id"] == items[index]["id"]
            items[index] = {**event["item"], "heard": grown[index]}
            done.add(index)
        elif name.endswith(".done"):
            part = event.get("part", {}).get("text")
            said = [event[key] for key in ("text", "arguments", "input") if key in event]
            assert (said or [part]) == [grown[index]]
    assert done == set(items)
    return items


def words(item: dict[str, Any]) -> str:
    for name in ("arguments", "input"):
        if name in item:
            return str(item[name])
    parts = item.get("content") or item.get("summary") or []
    return "".join(part["text"] for part in parts)


@given(SAID, FINISH, st.booleans(), st.booleans())
def test_what_is_put_together_of_any_deltas_is_the_whole_answer(
    said: list[tuple[str, Any]], finish: Any, summary: bool, sealed: bool
) -> None:
    where = context(summary=summary, sealed=sealed)
    stream, builder = ResponseStream(where), ReplyBuilder()
    raw = stream.start()
    for kind, what in said:
        getattr(builder, kind)(what)
        raw += b"".join(map(stream.delta, builder.take())) + stream.keepalive()
    choices, usage = [Choice(reply=builder.reply(), finish=finish)], Usage(3, 4, 1)
    raw += stream.finish(choices, usage)
    whole = msgspec.json.decode(reply(where, choices, usage))
    told = events(raw)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    assert told[-1]["type"] == ("response.completed" if finish == "stop" else "response.incomplete")
    assert told[-1]["response"] == whole
    items = heard(told)
    assert [{k: v for k, v in items[i].items() if k != "heard"} for i in range(len(items))] == whole["output"]
    assert [items[i]["heard"] for i in range(len(items))] == [words(item) for item in whole["output"]]
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    for event in told:
        state.handle_event(construct_type_unchecked(type_=ResponseStreamEvent, value=event))  # type: ignore[arg-type]


def test_long_instructions_and_tools_are_told_twice_however_long_the_answer_takes() -> None:
    rule = "a rule of the house. " * 2_500
    form = ResponseForm(echo={"instructions": msgspec.json.encode(rule)})
    stream = ResponseStream(Context(turns=("t1",), model="shop", created=7, form=form))
    raw = stream.start() + b"".join(stream.keepalive() for _ in range(20))
    builder = ReplyBuilder()
    builder.text("done")
    raw += stream.finish([Choice(reply=builder.reply(), finish="stop")], Usage(1, 1))
    assert raw.count(rule.encode()) == 2


FAILED: dict[str, tuple[SandgateError, str]] = {
    "an engine that failed": (EngineFailed("boom"), "server_error"),
    "a gateway with too much to do": (Overloaded("busy"), "rate_limit_exceeded"),
    "a prompt that is too long": (PromptTooLong(tokens=5, limit=4), "context_length_exceeded"),
}


@pytest.mark.parametrize(("error", "code"), FAILED.values(), ids=FAILED)
def test_an_error_in_the_middle_has_a_code_that_agents_know(error: SandgateError, code: str) -> None:
    stream, builder = ResponseStream(context(summary=False, sealed=False)), ReplyBuilder()
    builder.text("half of")
    raw = stream.start() + b"".join(map(stream.delta, builder.take())) + stream.error(error)
    last = events(raw)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == code
