"""The order of a reply's parts, as it was said."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.tokens.reply import ReplyBuilder

SAID = st.lists(st.tuples(st.sampled_from(["reasoning", "text", "call"]), st.sampled_from(["", "a", "bc"])))


@given(said=SAID)
@example(said=[("text", "a"), ("reasoning", "bc"), ("text", "a"), ("text", "bc")])
@example(said=[("call", "a"), ("call", "a"), ("text", "bc"), ("call", "a")])
@example(said=[("reasoning", "a"), ("text", ""), ("reasoning", "a"), ("text", "a")])
def test_the_order_is_what_was_said_or_none_where_it_is_the_common_one(said: list[tuple[str, str]]) -> None:
    builder = ReplyBuilder()
    for part, text in said:
        match part:
            case "reasoning":
                builder.reasoning(text)
            case "text":
                builder.text(text)
            case _:
                builder.call(ReplyCall("f", text))
    heard = [(part, 1 if part == "call" else len(text)) for part, text in said if text or part == "call"]
    runs = [
        (part, sum(size for _, size in run)) for part, run in itertools.groupby(heard, key=lambda one: one[0])
    ]
    common = [part for part in ("reasoning", "text", "call") if part in dict(runs)]
    reply = builder.reply()
    assert reply.order == (() if [part for part, _ in runs] == common else tuple(runs))
    assert (reply.reasoning, reply.text) == tuple(
        "".join(text for part, text in said if part == wanted) for wanted in ("reasoning", "text")
    )
