"""The stream encoder, ids, and the table of dialects: what golden files do not say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandgate.gateway.conversation.ids import call_id, call_mark, mark_of
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.protocols.base import Choice, Context, Stream, Usage
from sandgate.gateway.protocols.openai_chat import OpenAIChat
from sandgate.gateway.protocols.sse import event, text_json
from sandgate.gateway.protocols.table import ADAPTERS, FALLBACK, adapter_for
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta

CONTEXT = Context(turns=("t1",), model='a "model"\u2028', created=1)
ODD = 'a"b\\c\n\r\t\x00\x1f\x7f\x85\u2028\u2029é🥝</script>'


def stream() -> Stream:
    return OpenAIChat().stream(CONTEXT)


def chunks(raw: bytes) -> list[dict[str, Any]]:
    """Read as the strictest client does: by Unicode's line breaks."""
    out = []
    for line in raw.decode().splitlines():
        if line and line != "data: [DONE]":
            assert line.startswith("data: ")
            out.append(json.loads(line.removeprefix("data: ")))
    return out


def test_text_stays_on_its_line() -> None:
    deltas: list[ParseDelta] = [
        TextDelta(ODD),
        ReasoningDelta(ODD),
        CallDelta(0, ODD, ODD),
        CallDelta(0, None, ODD),
    ]
    one, two, three, four = (chunks(stream().delta(delta)) for delta in deltas)
    assert [chunk["choices"][0]["delta"] for chunk in (*one, *two)] == [
        {"content": ODD},
        {"reasoning_content": ODD, "reasoning": ODD},
    ]
    assert three[0]["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "id": call_id("t1", 0), "type": "function", "function": {"name": ODD, "arguments": ODD}}
    ]
    assert four[0]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, "function": {"arguments": ODD}}]
    assert json.loads(text_json(ODD)) == ODD


def test_a_keepalive_is_a_chunk_that_says_nothing() -> None:
    (chunk,) = chunks(stream().keepalive())
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]


def test_the_end_is_told_by_finish_alone() -> None:
    encoder = stream()
    before = encoder.start() + encoder.delta(TextDelta("x")) + encoder.keepalive()
    assert b"[DONE]" not in before
    assert all(choice["finish_reason"] is None for chunk in chunks(before) for choice in chunk["choices"])
    end = encoder.finish([Choice(reply=Reply("x"), finish="stop")], Usage(1, 1))
    assert end.endswith(b"data: [DONE]\n\n")
    assert [choice["finish_reason"] for chunk in chunks(end) for choice in chunk["choices"]] == ["stop"]


def test_a_replay_is_byte_for_byte_the_same() -> None:
    said = Reply("x", "y", ())
    answers = {
        OpenAIChat().reply(CONTEXT, [Choice(reply=said, finish="stop")], Usage(1, 1)) for _ in range(2)
    }
    assert len(answers) == 1


def test_a_named_event_has_its_name_first() -> None:
    assert event(b"{}", b"ping") == b"event: ping\ndata: {}\n\n"


def test_call_ids_keep_the_form_that_no_client_rewrites() -> None:
    ids = {call_id(f"turn-{turn}", index) for turn in range(50) for index in range(20)}
    assert len(ids) == 1000
    for one in ids:
        prefix, _, mark = one.partition("_")
        assert prefix == "call"
        assert len(mark) == 24
        assert set(mark) <= set("0123456789abcdef")
    assert call_id("t1", 0) == "call_fb5dfd558063683747e9c1b1", (
        "journals of older versions are replayed with it"
    )
    assert mark_of(call_id("t1", 3, "toolu_")) == call_mark("t1", 3)


PATHS = {
    "/chat/completions": True,
    "/v1/chat/completions": True,
    "/v1/v1/chat/completions": True,
    "/v1/v1/v1/chat/completions": False,
    "/v2/chat/completions": False,
    "/v1/chat/completions/": False,
    "/": False,
    "": False,
}


@pytest.mark.parametrize(("path", "found"), PATHS.items())
def test_which_url_speaks_which_dialect(path: str, found: bool) -> None:
    adapter = adapter_for(path)
    assert (adapter is not None) == found
    if adapter:
        assert adapter.name == "openai_chat"


def test_errors_of_no_dialect_have_words() -> None:
    assert FALLBACK in ADAPTERS.values()
