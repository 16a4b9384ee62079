"""The id of a request: in headers that SDKs read, in Anthropic's errors, in logs; its turn's where there is one."""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from sandgate.gateway.engine.scripted.engine import Reply
from sandgate.gateway.engine.scripted.script import Fault
from tests.support.gateway import Agent, Running, gateway, ids

USER: Any = {"role": "user", "content": "hi"}
LOG = "sandgate.gateway"


class Dialect(NamedTuple):
    path: str
    body: dict[str, Any]
    wrong: dict[str, Any]
    """What makes a 400 of it."""


MESSAGES = Dialect("v1/messages", {"model": "shop", "max_tokens": 9, "messages": [USER]}, {"messages": 3})
DIALECTS = {
    "messages": MESSAGES,
    "chat": Dialect("v1/chat/completions", {"model": "shop", "messages": [USER]}, {"messages": 3}),
    "responses": Dialect("v1/responses", {"model": "shop", "input": "hi"}, {"input": 3}),
    "completions": Dialect("v1/completions", {"model": "shop", "prompt": "hi"}, {"prompt": {}}),
    "token requests": Dialect(
        "inference/v1/generate", {"token_ids": ids("hi"), "sampling_params": {}}, {"token_ids": "x"}
    ),
}
ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def post(agent: Agent, dialect: Dialect, **more: Any) -> httpx.Response:
    base = agent.handle["anthropic_base_url"]
    answer: httpx.Response = await agent.http.post(f"{base}/{dialect.path}", json={**dialect.body, **more})
    return answer


def request_of(answer: httpx.Response) -> str:
    """The id that both headers say."""
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    return answer.headers["request-id"]


def broken(**more: Any) -> Any:
    return gateway([Reply("some words to say", fault=Fault("sentinel", **more))] * 9)


@ALL
@STREAMED
async def test_an_answers_id_is_its_turns(dialect: Dialect, stream: bool) -> None:
    async with gateway(["yes"]) as g:
        agent = await g.session()
        answer = await post(agent, dialect, stream=stream)
        assert (answer.status_code, request_of(answer)) == (200, f"req_{answer.headers['x-sandgate-turn']}")
        assert [turn["turn"] for turn in await g.tree(agent)] == [request_of(answer).removeprefix("req_")]


@ALL
async def test_each_refusal_has_an_id_of_its_own(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOG)
    async with gateway(["yes"]) as g:
        agent = await g.session()
        answers = [await post(agent, dialect, **dialect.wrong) for _ in range(2)]
    told = [request_of(answer) for answer in answers]
    assert {answer.status_code for answer in answers} == {400}
    assert len(set(told)) == 2
    assert all(any(line.startswith(f"{name}: 4") for line in caplog.messages) for name in told)
    assert {line.levelno for line in caplog.records if "req_" in line.getMessage()} == {logging.DEBUG}


async def test_an_error_of_messages_says_its_id_in_its_body() -> None:
    async with gateway([]) as g:
        agent = await g.session()
        answer = await post(agent, MESSAGES, messages=3)
        assert answer.json()["request_id"] == request_of(answer)


async def test_what_the_client_calls_its_request_is_not_repeated() -> None:
    """An agent writes no lines into logs."""
    async with gateway(["yes"]) as g:
        agent = await g.session()
        agent.http.headers.update({"x-request-id": "mine", "request-id": "mine"})
        each: list[dict[str, Any]] = [{}, MESSAGES.wrong]
        for more in each:
            assert "mine" not in request_of(await post(agent, MESSAGES, **more))


async def test_an_engines_failure_is_found_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with broken() as g:
        answer = await post(await g.session(), MESSAGES)
    assert (answer.status_code, answer.json()["request_id"]) == (502, request_of(answer))
    assert f"{request_of(answer)}: 502 {answer.headers['x-sandgate-reason']}" in caplog.messages


async def test_a_stream_that_fails_says_its_id_again(caplog: pytest.LogCaptureFixture) -> None:
    async with broken(after=2) as g:
        answer = await post(await g.session(), MESSAGES, stream=True)
    event = answer.text.rpartition("event: error\ndata: ")[2]
    assert json.loads(event)["request_id"] == request_of(answer)
    assert any(line.startswith(f"{request_of(answer)}: 502") for line in caplog.messages)


async def test_a_bug_is_found_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: Any) -> Any:
        raise ZeroDivisionError

    async with gateway([]) as g:
        agent = await g.session()
        monkeypatch.setattr("sandgate.gateway.web.server.caller_of", bug)
        answer = await post(agent, MESSAGES)
    assert answer.status_code == 500
    assert f"POST {request_of(answer)} failed" in caplog.messages


async def small(g: Running, agent: Agent) -> list[httpx.Response]:
    base = agent.handle["anthropic_base_url"]
    count = {"model": "shop", "messages": [USER]}
    return [
        await agent.http.get(f"{base}/v1/models"),
        await agent.http.get(f"{base}/v1/nothing"),
        await agent.http.post(f"{base}/v1/messages/count_tokens", json=count),
    ]


async def test_small_endpoints_have_ids() -> None:
    async with gateway([]) as g:
        answers = await small(g, await g.session())
    assert [answer.status_code for answer in answers] == [200, 404, 200]
    assert len({request_of(answer) for answer in answers}) == 3


async def test_the_sdks_read_it() -> None:
    async with gateway(["yes", "no"]) as g:
        agent = await g.session()
        key, base = agent.handle["api_key"], agent.handle["anthropic_base_url"]
        async with AsyncAnthropic(api_key=key, base_url=base, max_retries=0) as theirs:
            message = await theirs.messages.create(**MESSAGES.body)
            with pytest.raises(anthropic.NotFoundError) as refused:
                await theirs.messages.create(**{**MESSAGES.body, "model": "other"})
        async with AsyncOpenAI(api_key=key, base_url=f"{base}/v1", max_retries=0) as sdk:
            chat = await sdk.chat.completions.create(
                model="shop", messages=[{"role": "user", "content": "?"}]
            )
            with pytest.raises(openai.NotFoundError) as missing:
                await sdk.chat.completions.create(model="other", messages=[{"role": "user", "content": "?"}])
        turns = {f"req_{turn['turn']}" for turn in await g.tree(agent)}
    assert {message._request_id, chat._request_id} == turns
    assert refused.value.request_id
    assert missing.value.request_id
    assert refused.value.body["request_id"] == refused.value.request_id  # type: ignore[index]
