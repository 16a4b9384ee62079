"""A client whose connection broke gets the very answer that was sampled for it, and the engine samples once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandgate.contract.keys import Scope
from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import Latch, Wire, call_text, eventually, gated, gateway, said, within

RETRY = {"x-stainless-retry-count": "1"}
TEXT = "ordered seven kiwis"


def stripped(raw: bytes) -> bytes:
    """The body of a chunked answer read over a bare socket."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    body = b""
    while rest and not rest.startswith(b"0\r\n"):
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("headers", [{}, RETRY], ids=["the same body again", "x-stainless-retry-count"])
async def test_cut_in_flight_the_retry_joins_the_generation(stream: bool, headers: dict[str, str]) -> None:
    reply, gate = gated(TEXT, at=1)
    async with gateway([reply]) as g:
        agent = await g.session()
        body = agent.body("hi", stream=stream)
        wire = await Wire.chat(agent, body)
        await within(gate.reached)
        await wire.cut()
        await eventually(lambda: g.call().listeners == 0, "the gateway notices the cut")
        again = await Wire.chat(agent, body, **headers)
        await eventually(lambda: g.call().listeners == 1, "the retry joined")
        gate.open.set()
        raw = await again.until(b"[DONE]" if stream else TEXT.encode())
        await again.cut()
        assert g.generations == 1
        assert [turn["finish"] for turn in await g.tree(agent)] == ["stop"]
        assert (said(raw) == TEXT) if stream else True


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("headers", [{}, RETRY], ids=["the same body again", "x-stainless-retry-count"])
async def test_cut_after_commit_before_delivery_the_retry_gets_the_committed_answer(
    stream: bool, headers: dict[str, str]
) -> None:
    latch = Latch()
    async with gateway([TEXT, "something else"], store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        body = agent.body("hi", stream=stream)
        latch.shut()
        wire = await Wire.chat(agent, body)
        await within(latch.reached)
        await wire.cut()
        await eventually(lambda: g.call().listeners == 0, "the gateway notices the cut")
        latch.open()
        await eventually(lambda: not g.core.turns.registry.calls, "the turn is durable")
        answer = await agent.http.post("v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200
        text = said(answer.content) if stream else answer.json()["choices"][0]["message"]["content"]
        assert text == TEXT
        assert g.generations == 1
        assert [turn["delivered"] for turn in await g.tree(agent)] == [True]


SCRIPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (TEXT, {}),
    "a tool call": (
        "on it " + call_text("buy", item="kiwi", n=7),
        {"tools": [{"type": "function", "function": {"name": "buy"}}]},
    ),
    "characters of several tokens": ("naïve 🙂 你好", {}),
    "a stop string": ("one two three STOP four", {"stop": ["STOP"]}),
    "logprobs": (TEXT, {"logprobs": True, "top_logprobs": 2}),
    "usage": (TEXT, {"stream_options": {"include_usage": True}}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("case", SCRIPTS)
async def test_a_replay_is_byte_for_byte_what_was_told(case: str, stream: bool) -> None:
    """Told whole, told again to a retry, and told again by another life of the process."""
    text, more = SCRIPTS[case]
    disk = MemoryDisk()
    async with gateway([text], store=MemoryStore(disk)) as g:
        agent = await g.session()
        first = await agent.post("hi", stream=stream, **more)
        second = await agent.post("hi", stream=stream, headers=RETRY, **more)
        assert g.generations == 1
        assert isinstance(g.store, MemoryStore)
        g.store.crash()
    async with gateway(["never asked"], store=MemoryStore(disk), now=lambda: 4e9) as g:
        again = g.agent(agent.handle)
        again.http.headers["authorization"] = f"Bearer {g.core.gate.session_key(*_who(agent.id))}"
        third = await again.post("hi", stream=stream, headers=RETRY, **more)
        assert g.generations == 0
    assert first.status_code == 200
    assert first.content == second.content == third.content
    assert first.headers["x-sandgate-turn"] == third.headers["x-sandgate-turn"]


def _who(session: str) -> tuple[Any, str, str, float]:
    return Scope.AGENT, "shop-job", session, 0.0


async def test_a_stalled_stream_is_retried_as_json() -> None:
    """Claude Code and others do: the digest does not hold how the answer is to travel."""
    reply, gate = gated(TEXT, at=2)
    async with gateway([reply]) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(gate.reached)
        await wire.cut()
        await eventually(lambda: g.call().listeners == 0, "the gateway notices the cut")
        gate.open.set()
        assert (await agent.ask("hi"))["content"] == TEXT
        assert g.generations == 1


async def test_a_joined_stream_starts_from_the_first_token() -> None:
    reply, gate = gated(TEXT, at=2)
    async with gateway([reply]) as g:
        agent = await g.session()
        body = agent.body("hi", stream=True)
        wire = await Wire.chat(agent, body)
        await within(gate.reached)
        first = await wire.until(b"ordered"[:2])
        await wire.cut()
        again = await Wire.chat(agent, body, **RETRY)
        seen = await again.until(first.rpartition(b"data: ")[2].strip())
        gate.open.set()
        whole = stripped(await again.until(b"[DONE]\n\n\r\n0\r\n"))
        await again.cut()
        assert stripped(first + b"0\r\n") in whole
        assert said(whole) == TEXT
        assert seen


async def test_the_sdk_retries_by_itself_and_gets_the_one_answer() -> None:
    """A middle box cuts the first connection; the SDK says x-stainless-retry-count: 1 on its own."""
    reply, gate = gated(TEXT)
    async with gateway([reply, "another"]) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi"))
        await within(gate.reached)
        client = agent.openai()
        waiting = client.with_options(max_retries=0).chat.completions.create(
            model="shop", messages=[{"role": "user", "content": "hi"}], extra_headers=RETRY
        )
        task = asyncio.ensure_future(waiting)
        await eventually(lambda: g.call().listeners == 2, "the retry joined though the first still hangs")
        await wire.cut()
        gate.open.set()
        answer = await task
        assert answer.choices[0].message.content == TEXT
        assert g.generations == 1


async def test_identical_requests_on_live_connections_are_two_samples() -> None:
    one, gate = gated("kiwi")
    async with gateway([one, "lime"]) as g:
        agent = await g.session()
        first = asyncio.ensure_future(agent.ask("hi"))
        await within(gate.reached)
        second = await agent.ask("hi")
        gate.open.set()
        assert [second["content"], (await first)["content"]] == ["lime", "kiwi"]
        assert g.generations == 2
        turns = await g.tree(agent)
        assert [turn["parent"] for turn in turns] == [None, None]
        assert [turn["fork"] for turn in turns] == [None, "retry_resampled"]


async def test_the_same_request_after_its_answer_was_delivered_is_a_new_sample() -> None:
    async with gateway(["kiwi", "lime"]) as g:
        agent = await g.session()
        texts = [(await agent.ask("hi"))["content"], (await agent.ask("hi"))["content"]]
        assert texts == ["kiwi", "lime"]
        assert [turn["fork"] for turn in await g.tree(agent)] == [None, "retry_resampled"]


async def test_two_retries_at_once_share_one_generation() -> None:
    reply, gate = gated(TEXT)
    async with gateway([reply]) as g:
        agent = await g.session()
        asked = [asyncio.ensure_future(agent.post("hi", headers=RETRY)) for _ in range(3)]
        await within(gate.reached)
        await eventually(lambda: g.call().listeners == 3, "all joined")
        gate.open.set()
        answers = [(await one).content for one in asked]
        assert len(set(answers)) == 1
        assert g.generations == 1
        assert not g.core.turns.registry.calls


async def test_an_answer_that_is_being_told_is_not_replayed_to_somebody_else() -> None:
    """Committed but still on its way to a slow reader: the same body on another connection is another sample."""
    long = "kiwi " * 700
    async with gateway([long, "lime"]) as g:
        agent = await g.session()
        body = agent.body("hi", stream=True, logprobs=True, top_logprobs=5)
        wire = await Wire.chat(agent, body)  # reads nothing: the socket's buffers fill up
        await eventually(
            lambda: any(one.done.done() for calls in g.core.turns.registry.calls.values() for one in calls),
            "the turn is durable",
        )
        call = g.call()
        if call.listeners:  # else the buffers took all of it, and it is delivered
            other = await agent.post("hi", stream=True, logprobs=True, top_logprobs=5)
            assert said(other.content) == "lime"
        await wire.cut()


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_retry_of_a_new_request_does_not_get_an_older_answer(*, stream: bool) -> None:
    """An agent asks the same again on purpose; the engine is full, and the SDK retries: it is the new request's."""
    full = Reply("", fault=Fault("status", 0, 429, "queue full"))
    async with gateway(["first", full, "second"]) as g:
        agent = await g.session()
        assert (await agent.ask("hi"))["content"] == "first"
        assert (await agent.post("hi", stream=stream)).status_code == 429
        again = await agent.post("hi", headers=RETRY, stream=stream)
        assert (
            said(again.content) if stream else again.json()["choices"][0]["message"]["content"]
        ) == "second"
        once_more = await agent.post("hi", headers=RETRY, stream=stream)
        assert "second" in once_more.text or said(once_more.content) == "second"
        assert [turn["fork"] for turn in await g.tree(agent)] == [None, "retry_resampled"]


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
async def test_of_two_equal_requests_at_once_each_retry_gets_the_answer_that_was_lost(
    *, restarted: bool
) -> None:
    """Best of two: the first worker's connection breaks, the second's answer arrives; the retry is the first's."""
    (one, first), (two, second) = gated("kiwi"), gated("lime")
    disk = MemoryDisk()
    async with gateway([one, two, "never asked"], store=MemoryStore(disk)) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi"))
        await within(first.reached)
        other = asyncio.ensure_future(agent.ask("hi"))
        await within(second.reached)
        (calls,) = g.core.turns.registry.calls.values()
        lost = calls[0]
        await wire.cut()
        await eventually(lambda: lost.listeners == 0, "the gateway notices the cut")
        first.open.set()
        await eventually(lambda: lost not in calls, "the lost answer is durable")
        second.open.set()
        assert (await other)["content"] == "lime"
        if not restarted:
            assert [(await agent.ask("hi", headers=RETRY))["content"] for _ in range(2)] == ["kiwi", "lime"]
            assert [turn["delivered"] for turn in await g.tree(agent)] == [True, True]
            assert len(await g.finalize(agent)) == 2
            return
        assert isinstance(g.store, MemoryStore)
        g.store.crash()
    async with gateway(["never asked"], store=MemoryStore(disk)) as g:
        again = g.agent(agent.handle)
        again.http.headers["authorization"] = f"Bearer {g.core.gate.session_key(*_who(agent.id))}"
        assert (await again.ask("hi", headers=RETRY))["content"] == "kiwi"
        assert g.generations == 0
