"""However an answer is cut into deltas, Anthropic's own SDK ends with what the JSON body says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sandgate.contract import errors
from sandgate.gateway.engine.api import Finish
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.protocols.base import Choice, Context, Usage
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta
from sandgate.gateway.tokens.reply import ReplyBuilder
from tests.gateway.protocols.golden import MESSAGES, Case, cases

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, VALUE, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
DEEP = '{"a":' * 300 + "1" + "}" * 300
ARGUMENTS = (
    OBJECT | TEXT | st.sampled_from(["{}", "[]", "null", '{"a": ', '{"a":1e400}', '{"_unparsed":"x"}', DEEP])
)
SAID = st.lists(
    st.tuples(st.just("text"), TEXT)
    | st.tuples(st.just("reasoning"), TEXT)
    | st.tuples(st.just("call"), ARGUMENTS),
    max_size=7,
)
ENDS = st.sampled_from([("stop", None), ("stop", "END"), ("stop", 5), ("length", None), ("abort", None)])
CONTEXT = Context(turns=("t1",), model="tiny", created=1)
USAGE = Usage(prompt=120, completion=20, cached=100)


def events(raw: bytes) -> Iterator[dict[str, Any]]:
    """Read as the strictest client does: by Unicode's line breaks. Each has its type as its name."""
    name = ""
    for line in raw.decode().splitlines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line:
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == name
            yield event


def accumulated(raw: bytes) -> dict[str, Any]:
    """What the SDK makes of the events, each of which is of its type."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in events(raw):
        if event["type"] == "ping":  # the SDK's own reader of events leaves it out
            continue
        EVENT.validate_python(event)
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)  # type: ignore[arg-type]
    return told(json.loads(message.to_json()))


def told(message: dict[str, Any]) -> dict[str, Any]:
    """What both forms of an answer say."""
    Message.model_validate(message)
    names = ("id", "model", "content", "stop_reason", "stop_sequence", "usage")
    return {name: message[name] for name in names}


@given(said=SAID, cuts=st.randoms(use_true_random=False), hidden=st.booleans(), ends=ENDS)
def test_the_events_of_any_split_add_up_to_the_json_answer(
    said: list[tuple[str, str]], cuts: Any, hidden: bool, ends: tuple[Finish, str | int | None]
) -> None:
    context = Context(turns=("t1",), model="tiny", created=1, prompt_tokens=120, hide_reasoning=hidden)
    builder, stream = ReplyBuilder(), MESSAGES.stream(context)
    out = [stream.start()]
    for kind, text in said:
        pieces = cut(text, cuts)
        if kind == "call":
            builder.call(ReplyCall("buy", text))
        for piece in pieces if kind != "call" else ():
            (builder.text if kind == "text" else builder.reasoning)(piece)
        for delta in builder.take():
            out += [stream.delta(part) for part in parts(delta, pieces)]
        if cuts.random() < 0.2:
            out.append(stream.keepalive())
    choice = Choice(reply=builder.reply(), finish=ends[0], stop_reason=ends[1])
    out.append(stream.finish([choice], USAGE))
    assert accumulated(b"".join(out)) == told(json.loads(MESSAGES.reply(context, [choice], USAGE)))


def cut(text: str, chance: Any) -> list[str]:
    """In pieces, one at least; some may be empty."""
    at = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(4)))
    return [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]


def parts(delta: ParseDelta, pieces: list[str]) -> Iterator[ParseDelta]:
    """A whole call as a parser might give it in pieces; other deltas are cut already."""
    if not isinstance(delta, CallDelta):
        yield delta
        return
    yield CallDelta(delta.index, delta.name, pieces[0])
    yield from (CallDelta(delta.index, None, piece) for piece in pieces[1:])


@given(arguments=ARGUMENTS)
def test_arguments_come_back_as_they_were_meant(arguments: str) -> None:
    """Sent back by a client that keeps values, not text: an object is that object, and anything else its text."""
    body = json.loads(
        MESSAGES.reply(
            CONTEXT, [Choice(reply=Reply(tool_calls=(ReplyCall("buy", arguments),)), finish="stop")], USAGE
        )
    )
    user = {"role": "user", "content": "x"}
    history = [user, {"role": "assistant", "content": body["content"]}, user]
    request = MESSAGES.decode(json.dumps({"model": "m", "messages": history}).encode(), {})
    (call,) = request.messages[1].tool_calls
    assert call.arguments == arguments or json.loads(call.arguments) == json.loads(arguments)


# --- the SDK itself, on the golden files


def client(status: int, content: bytes, kind: str) -> anthropic.Anthropic:
    answer = httpx2.MockTransport(
        lambda _: httpx2.Response(status, content=content, headers={"content-type": kind})
    )
    return anthropic.Anthropic(
        api_key="k", base_url="http://gateway", max_retries=0, http_client=httpx2.Client(transport=answer)
    )


ASKED: Any = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("folder", cases(MESSAGES), ids=lambda folder: folder.name)
def test_the_sdk_reads_the_same_of_both_forms(folder: Path) -> None:
    with client(200, (folder / "response.json").read_bytes(), "application/json") as sdk:
        whole = sdk.messages.create(**ASKED)
    with client(200, (folder / "response.sse").read_bytes(), "text/event-stream") as sdk:
        with sdk.messages.stream(**ASKED) as stream:
            streamed = stream.get_final_message()
        with sdk.beta.messages.stream(**ASKED) as beta:
            of_beta = beta.get_final_message()
    asked = Case(folder)
    assert whole.id == "msg_turn0"
    assert (whole.usage.output_tokens, whole.usage.cache_read_input_tokens) == (
        asked.usage.completion,
        asked.usage.cached,
    )
    for other in (streamed, of_beta):
        assert told(json.loads(other.to_json())) == told(json.loads(whole.to_json()))


RAISES: dict[str, tuple[errors.SandgateError, type[anthropic.APIStatusError], str]] = {
    "a bad field": (errors.InvalidBody("x", field="x"), anthropic.BadRequestError, "invalid_request_error"),
    "a prompt over the window": (
        errors.PromptTooLong(tokens=5000, limit=4096),
        anthropic.BadRequestError,
        "invalid_request_error",
    ),
    "a session's limit": (
        errors.LimitReached("turns", used=21, limit=20),
        anthropic.BadRequestError,
        "invalid_request_error",
    ),
    "no key": (errors.Unauthorized("x"), anthropic.AuthenticationError, "authentication_error"),
    "a foreign key": (errors.Forbidden("x"), anthropic.PermissionDeniedError, "permission_error"),
    "no such session": (errors.NotFound("x"), anthropic.NotFoundError, "not_found_error"),
    "an ended session": (errors.Gone("x"), anthropic.APIStatusError, "invalid_request_error"),
    "a huge body": (errors.TooLarge("x"), anthropic.RequestTooLargeError, "request_too_large"),
    "too many requests": (errors.Overloaded("x"), anthropic.RateLimitError, "rate_limit_error"),
    "a bad engine": (errors.EngineFailed("x"), anthropic.InternalServerError, "api_error"),
    "a pause": (errors.Paused("x"), anthropic.InternalServerError, "overloaded_error"),
}


@pytest.mark.parametrize(("error", "raised", "kind"), RAISES.values(), ids=RAISES)
def test_errors(error: errors.SandgateError, raised: type[anthropic.APIStatusError], kind: str) -> None:
    with (
        client(error.status, MESSAGES.error_body(error), "application/json") as sdk,
        pytest.raises(raised) as seen,
    ):
        sdk.messages.create(**ASKED)
    assert (seen.value.status_code, seen.value.type) == (error.status, kind)


def test_an_error_in_a_stream_is_raised() -> None:
    stream = MESSAGES.stream(CONTEXT)
    content = stream.start() + stream.delta(TextDelta("half")) + stream.delta(ReasoningDelta("x"))
    content += stream.error(errors.EngineFailed("the engine went away"))
    with (
        client(200, content, "text/event-stream") as sdk,
        sdk.messages.stream(**ASKED) as events,
        pytest.raises(anthropic.APIStatusError, match="the engine went away"),
    ):
        list(events)
