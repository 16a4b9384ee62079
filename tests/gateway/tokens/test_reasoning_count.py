"""How many of the sampled ids are an answer's reasoning, and what bytes an id is."""

from __future__ import annotations

from array import array

import pytest

from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.tokens.reasoning_count import reasoning_tokens
from tests.support.gateway import call_text, codec, events, gateway, ids

CALL = call_text("buy", item="kiwi", n=7)
SAID: dict[str, tuple[str, int]] = {
    "no reasoning": ("receipt 44", 0),
    "a thought": ("<think>\nkiwi it is\n</think>\n\nI buy.", len(ids("kiwi it is"))),
    "a thought before a call": (f"<think>\nkiwi it is\n</think>\n\n{CALL}", len(ids("kiwi it is"))),
    "a thought that was cut": ("<think>\nkiwi it is", len(ids("kiwi it is"))),
    "a thought that the answer says again": (
        "<think>\nkiwi it is\n</think>\n\nkiwi it is", len(ids("kiwi it is")),
    ),
    "a thought in several paragraphs": ("<think>\nkiwi\n\nit is\n</think>\n\nyes", len(ids("kiwi\n\nit is"))),
    "a thought with half a character": ("<think>\nkiwi 🥝\n</think>\n\nyes", len(ids("kiwi 🥝"))),
}  # fmt: skip


@pytest.mark.parametrize(("text", "tokens"), SAID.values(), ids=SAID)
def test_tokens_that_were_thought(text: str, tokens: int) -> None:
    sampled = array("i", ids(text))
    parser = codec().parser(array("i"), [])
    parser.feed(sampled)
    _, reply = parser.finish()
    assert reasoning_tokens(sampled, reply, codec().bytes_of) == tokens


PIECES = [
    b"<think>",
    b"ki",
    b"wi",
    b"</think>",
    b"yes",
    b"<think>",
    b"ok",
    b"\n\n",
    b"go",
    b"\xf0\x9f",
    b"</think>",
]
READ: dict[str, tuple[Reply, int]] = {
    "two thoughts with a text between them": (
        Reply(text="yes", reasoning="kiwiok", order=(("reasoning", 4), ("text", 3), ("reasoning", 2))), 3,
    ),
    "two thoughts that the parser joined as paragraphs": (Reply(text="yes", reasoning="kiwi\n\nok"), 3),
    "one thought of two paragraphs": (Reply(text="kiwiyes", reasoning="ok\n\ngo"), 3),
    "a thought that ends in half a character": (Reply(reasoning="ok\n\ngo\ufffd"), 3),
    "a thought that is not what was sampled": (Reply(reasoning="nothing of it"), 0),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "tokens"), READ.values(), ids=READ)
def test_tokens_that_were_thought_in_other_orders(reply: Reply, tokens: int) -> None:
    assert reasoning_tokens(array("i", range(len(PIECES))), reply, PIECES.__getitem__) == tokens


THOUGHT = "<think>\nkiwi it is\n</think>\n\nI buy."


async def test_usage_says_how_many_tokens_were_thought() -> None:
    body = {"model": "shop", "input": "buy 7 kiwi"}
    thought = len(ids("kiwi it is"))
    async with gateway([THOUGHT] * 4) as g:
        agent = await g.session()
        whole = (await agent.post("a")).json()["usage"]
        streamed = await agent.post("b", stream=True, stream_options={"include_usage": True})
        assert [whole, events(streamed.text)[-1]["usage"]] == [whole, whole]
        assert whole["completion_tokens_details"] == {"reasoning_tokens": thought}
        response = (await agent.http.post("v1/responses", json=body)).json()
        again = (await agent.http.get(f"v1/responses/{response['id']}")).json()
        stream = await agent.http.post("v1/responses", json=body | {"stream": True})
    told = [response["usage"], again["usage"], events(stream.text)[-1]["response"]["usage"]]
    assert [usage["output_tokens_details"] for usage in told] == [{"reasoning_tokens": thought}] * 3


async def test_logprobs_have_the_bytes_of_parts_of_characters() -> None:
    async with gateway(["hi 🥝 ok"]) as g:
        agent = await g.session()
        answer = await agent.post("say it", logprobs=True, top_logprobs=1)
    (choice,) = answer.json()["choices"]
    content = choice["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).startswith("hi 🥝 ok".encode())
    assert any("\ufffd" in token["token"] for token in content), "the model has no token for a kiwi"
