"""A stream says what is sampled as it is sampled, its end only when the turn is durable, and never falls silent."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import uvloop

from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.gateway.journal.memory import MemoryStore
from sandgate.gateway.service import call
from sandgate.gateway.service.call import ModelCall
from sandgate.gateway.tokens.api import TextDelta
from tests.support.gateway import (
    BUY,
    Latch,
    Wire,
    call_text,
    events,
    eventually,
    gated,
    gateway,
    replies,
    said,
    within,
)

TEXT = "ordered seven kiwis"


async def test_the_first_token_is_told_before_the_engine_has_finished() -> None:
    reply, gate = gated(TEXT, at=2)
    async with gateway([reply]) as g:
        agent = await g.session()
        stream = await agent.openai().chat.completions.create(
            model="shop", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text:
                break
        assert TEXT.startswith(text)
        assert not gate.open.is_set(), "told while the engine was held"
        assert await g.tree(agent) == []
        gate.open.set()
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert text == TEXT


async def test_the_terminal_event_leaves_only_after_the_commit() -> None:
    latch = Latch()
    async with gateway([TEXT], store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        latch.shut()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(latch.reached, "the journal is asked")
        seen = await wire.until_said(TEXT)
        assert b'finish_reason":"stop"' not in seen
        assert b"[DONE]" not in seen
        assert await g.tree(agent) == []
        latch.open()
        assert said((await wire.until(b"[DONE]")).partition(b"\r\n\r\n")[2]) == TEXT
        assert len(await g.tree(agent)) == 1
        await wire.cut()


async def test_a_json_body_leaves_only_after_the_commit() -> None:
    latch = Latch()
    async with gateway([TEXT], store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        latch.shut()
        asked = asyncio.ensure_future(agent.post("hi"))
        await within(latch.reached, "the journal is asked")
        assert (await g.admin.get("/healthz")).status_code == 200, "others are answered meanwhile"
        assert not asked.done()
        latch.open()
        assert (await asked).status_code == 200


async def test_headers_wait_for_the_first_token_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "HEADERS_HOLD_S", 0.05)
    reply, gate = gated(TEXT)
    async with gateway([reply]) as g:
        agent = await g.session()
        async with agent.http.stream(
            "POST", "v1/chat/completions", json=agent.body("hi", stream=True)
        ) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert len(answer.headers["x-sandgate-turn"]) == 24
            assert not gate.open.is_set()
            gate.open.set()
            assert said(await answer.aread()) == TEXT


REFUSALS = {
    "the engine is full": (Fault("status", 0, 429, "queue full", "7"), 429, "7"),
    "the engine is starting": (Fault("status", 0, 503, "loading"), 503, None),
    "the engine cannot take it": (Fault("status", 0, 400, "bad regex"), 400, None),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_what_the_engine_refuses_before_the_first_token_is_a_status_for_a_stream_too(case: str) -> None:
    """SDKs retry a status and obey its Retry-After; an error within a stream is final for them."""
    fault, status, after = REFUSALS[case]
    async with gateway([Reply("", fault=fault)] * 9) as g:
        agent = await g.session()
        answer = await agent.post("hi", stream=True)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert fault.message in answer.json()["error"]["message"]
        if after is not None:
            assert answer.headers["retry-after"] == after


async def test_a_client_that_leaves_before_the_first_token_is_noticed() -> None:
    reply, gate = gated(TEXT)
    async with gateway([reply, TEXT], limits={"linger_s": 0.0}) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(gate.reached)
        assert wire.seen == b""
        await wire.cut()
        await eventually(lambda: g.core.turns.load.in_flight == 0, "the call is aborted")


@pytest.mark.parametrize("at", [0, 2], ids=["before the first token", "in the middle"])
async def test_while_the_engine_is_silent_real_events_come_every_keepalive_s(at: int) -> None:
    reply, gate = gated(TEXT, at=at)
    async with gateway([reply], limits={"keepalive_s": 0.02}) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(gate.reached)
        async with asyncio.timeout(20):
            while wire.seen.count(b'"delta":{},') < 3:
                wire.seen += await wire.reader.read(65536)
        gate.open.set()
        body = (await wire.until(b"[DONE]")).partition(b"\r\n\r\n")[2]
        assert said(body) == TEXT
        silent = [event for event in events(body) if event["choices"][0]["delta"] == {}]
        assert all(event["object"] == "chat.completion.chunk" for event in silent)
        await wire.cut()


def test_a_stream_that_falls_silent_after_a_token_is_kept_alive_on_the_loop_that_gateways_run_on() -> None:
    """uvloop says of one timer in seven that it is due later than the clock which fired it."""

    async def one(at: int) -> None:
        loop = asyncio.get_running_loop()
        done, gone = loop.create_future(), loop.create_future()
        made = ModelCall(cast(Any, None), cast(Any, None), ("t",), 0.0, done, loop.create_future())
        loop.call_later(at / 1000, lambda: made.say(0, [TextDelta("so ")]))
        heard = made.follow(0.02, gone)
        assert await anext(heard), "the token"
        async with asyncio.timeout(10):
            assert await anext(heard) == [], "a sign of life"
        gone.set_result(None)
        assert [steps async for steps in heard] == []

    async def all_of_them() -> None:
        for _ in range(40):
            await asyncio.gather(*map(one, range(10)))

    uvloop.run(all_of_them())


async def test_while_the_journal_is_slow_a_stream_does_not_fall_silent() -> None:
    latch = Latch()
    async with gateway([TEXT], store=MemoryStore(gate=latch), limits={"keepalive_s": 0.02}) as g:
        agent = await g.session()
        latch.shut()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(latch.reached)
        await wire.until(b'"delta":{},')
        latch.open()
        assert said((await wire.until(b"[DONE]")).partition(b"\r\n\r\n")[2]) == TEXT
        await wire.cut()


async def test_two_connections_of_one_call_both_hear_everything() -> None:
    reply, gate = gated(TEXT, at=1)
    async with gateway([reply]) as g:
        agent = await g.session()
        body = agent.body("hi", stream=True)
        first = await Wire.chat(agent, body)
        await within(gate.reached)
        second = await Wire.chat(agent, body, x_stainless_retry_count="1")
        await eventually(lambda: g.call().listeners == 2, "both listen")
        gate.open.set()
        heard = [said((await wire.until(b"[DONE]")).partition(b"\r\n\r\n")[2]) for wire in (first, second)]
        assert heard == [TEXT, TEXT]
        for wire in (first, second):
            await wire.cut()


async def test_the_sdk_reads_a_streamed_tool_call_with_its_usage() -> None:
    async with gateway(replies("on it " + call_text("buy", item="kiwi", n=7))) as g:
        agent = await g.session()
        stream = await agent.openai().chat.completions.create(
            model="shop",
            messages=[{"role": "user", "content": "buy 7 kiwi"}],
            tools=[BUY],
            stream=True,
            stream_options={"include_usage": True},
        )
        name = arguments = ""
        usage, finish = None, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                for part in choice.delta.tool_calls or ():
                    assert part.function is not None
                    name += part.function.name or ""
                    arguments += part.function.arguments or ""
        (turn,) = await g.tree(agent)
        assert (name, arguments, finish) == ("buy", '{"item": "kiwi", "n": 7}', "tool_calls")
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (
            turn["prompt_tokens"],
            turn["sampled_tokens"],
        )


async def test_n_choices_are_streamed_side_by_side() -> None:
    async with gateway(["kiwi", "lime", "plum"]) as g:
        agent = await g.session()
        answer = await agent.post("hi", stream=True, n=3)
        assert sorted(said(answer.content, index) for index in range(3)) == ["kiwi", "lime", "plum"]
        assert answer.content.count(b'"finish_reason":"stop"') == 3
        assert len(await g.tree(agent)) == 3
