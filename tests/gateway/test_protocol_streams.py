"""Streams of Messages, Responses and token requests: silence, connections that break, engines that fail."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import httpx
import pytest

from sandgate.gateway.engine.scripted.engine import Reply
from sandgate.gateway.engine.scripted.script import Fault
from tests.support.gateway import BUY, Agent, call_text, eventually, gated, gateway, ids, within

TEXT = f"<think>\nkiwi\n</think>\n\nI buy. {call_text('buy', item='kiwi', n=7)}"
FUNCTION = BUY["function"]


class Dialect(NamedTuple):
    path: str
    body: dict[str, Any]
    silent: bytes
    """Of an event that says nothing."""
    failed: bytes
    """Of the event that says that the engine failed."""
    last: bytes


USER = {"role": "user", "content": "buy 7 kiwi"}
DIALECTS = {
    "messages": Dialect(
        "v1/messages",
        {
            "model": "shop",
            "max_tokens": 99,
            "messages": [USER],
            "tools": [{"name": "buy", "input_schema": FUNCTION["parameters"]}],
        },
        b"event: ping",
        b"event: error",
        b"event: message_stop",
    ),
    "responses": Dialect(
        "v1/responses",
        {"model": "shop", "input": [USER], "tools": [{"type": "function", **FUNCTION}]},
        b"event: response.in_progress",
        b"event: response.failed",
        b"event: response.completed",
    ),
    "token requests": Dialect(
        "inference/v1/generate",
        {"token_ids": ids("buy 7 kiwi"), "sampling_params": {"logprobs": 0}},
        b'"token_ids":[],"logprobs":null,"finish_reason":null',
        b'"error"',
        b"[DONE]",
    ),
}
ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def url(agent: Agent, dialect: Dialect) -> str:
    return f"{agent.handle['anthropic_base_url']}/{dialect.path}"


def stream(agent: Agent, dialect: Dialect, **headers: str) -> Any:
    body = {**dialect.body, "stream": True}
    return agent.http.stream("POST", url(agent, dialect), json=body, headers=headers)


@ALL
@pytest.mark.parametrize("at", [0, 2], ids=["before the first token", "in the middle"])
async def test_while_the_engine_is_silent_real_events_come(dialect: Dialect, at: int) -> None:
    reply, gate = gated(TEXT, at=at)
    async with gateway([reply], limits={"keepalive_s": 0.02}) as g:
        agent = await g.session()
        async with stream(agent, dialect) as answer, asyncio.timeout(20):
            seen = b""
            parts = answer.aiter_bytes()
            await within(gate.reached)
            while seen.count(dialect.silent) < 4:
                seen += await anext(parts)
            gate.open.set()
            seen += b"".join([part async for part in parts])
        assert dialect.last in seen
        assert len(await g.tree(agent)) == 1


@ALL
async def test_a_connection_that_breaks_at_any_event_loses_nothing(dialect: Dialect) -> None:
    """The retry gets what the first would have got, and nothing is sampled again."""
    async with gateway([TEXT] * 99) as g:
        agent = await g.session()
        whole = (await agent.http.post(url(agent, dialect), json={**dialect.body, "stream": True})).content
        count = whole.count(b"\n\n")
        assert count >= 10
        for cut in range(0, count, 3):
            agent = await g.session()
            seen = b""
            async with stream(agent, dialect) as answer:
                async for part in answer.aiter_bytes():
                    seen += part
                    if seen.count(b"\n\n") >= cut:
                        break
            async with stream(agent, dialect, **{"x-stainless-retry-count": "1"}) as answer:
                again = await answer.aread()
            assert again.startswith(seen)
            assert dialect.last in again
            assert len(await g.tree(agent)) == 1


@ALL
async def test_a_retry_that_does_not_stream_gets_the_same_answer(dialect: Dialect) -> None:
    async with gateway([TEXT] * 9) as g:
        agent = await g.session()
        streamed = (await agent.http.post(url(agent, dialect), json={**dialect.body, "stream": True})).text
        whole = await agent.http.post(
            url(agent, dialect), json=dialect.body, headers={"x-stainless-retry-count": "1"}
        )
        name = whole.json().get("id") or whole.json()["request_id"]
        assert name in streamed
        assert len(await g.tree(agent)) == 1


@ALL
async def test_an_engine_that_fails_in_the_middle_ends_the_stream_with_an_error(dialect: Dialect) -> None:
    async with gateway([Reply(TEXT, fault=Fault("sentinel", after=6))] * 9) as g:
        agent = await g.session()
        async with stream(agent, dialect) as answer:
            seen = await answer.aread()
        assert answer.status_code == 200
        assert dialect.failed in seen
        assert dialect.last not in seen or dialect.last == b"[DONE]"
        await eventually(lambda: g.core.turns.load.in_flight == 0, "the call has ended")


@ALL
async def test_an_ended_session_is_410_in_the_dialects_own_words(dialect: Dialect) -> None:
    async with gateway([TEXT]) as g:
        agent = await g.session()
        await g.finalize(agent)
        answer: httpx.Response = await agent.http.post(url(agent, dialect), json=dialect.body)
        assert answer.status_code == 410
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert answer.headers["x-sandgate-reason"]
