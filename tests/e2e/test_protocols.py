"""Each protocol on a real vLLM: turns of one branch, whose ids are what the engine was sent and sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from sandgate.gateway.engine.api import GenerationResult, Prompt
from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.tokens.load import load_codec
from tests.support.gateway import Agent, Running, gateway
from tests.support.vllm import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

TURNS = 3
SAYS = ("buy 7 kiwi", "and 2 plums", "thanks")


class Heard(VllmEngine):
    """Remembers what the engine was sent and what it sampled."""

    seen: list[tuple[list[int], list[int]]]

    async def generate(self, prompt: Prompt, on_delta: Any = None) -> GenerationResult:
        made = await super().generate(prompt, on_delta)
        self.seen.append((prompt.ids.tolist(), made.ids.tolist()))
        return made


@pytest.fixture
async def running(vllm: Vllm) -> AsyncIterator[Running]:
    engine = await Heard.connect([vllm.url], model=vllm.model, logprobs_mode="processed_logprobs")
    assert isinstance(engine, Heard)
    engine.seen = []
    async with gateway(engine, model=load_codec(vllm.folder, renderer="template")) as made:
        yield made


async def by_messages(agent: Agent, stream: bool) -> None:
    async with AsyncAnthropic(
        base_url=agent.handle["anthropic_base_url"], api_key=agent.handle["api_key"]
    ) as client:
        history: list[Any] = []
        for text in SAYS:
            history.append({"role": "user", "content": text})
            asked: dict[str, Any] = {"model": "shop", "max_tokens": 24, "messages": history}
            if stream:
                async with client.messages.stream(**asked) as events:
                    answer = await events.get_final_message()
            else:
                answer = await client.messages.create(**asked)
            history.append({"role": "assistant", "content": answer.content})


async def by_responses(agent: Agent, stream: bool) -> None:
    client = agent.openai()
    before: str | None = None
    for text in SAYS:
        asked: dict[str, Any] = {"model": "shop", "input": text, "previous_response_id": before}
        asked["max_output_tokens"] = 24
        if stream:
            async with client.responses.stream(**asked) as events:
                *_, last = [event async for event in events]
            before = last.response.id  # type: ignore[union-attr]
        else:
            before = (await client.responses.create(**asked)).id


async def by_ids(agent: Agent, stream: bool) -> None:
    url = agent.handle["anthropic_base_url"] + "/inference/v1/generate"
    ids = list(range(20, 30))
    for _ in range(TURNS):
        body = {"token_ids": ids, "sampling_params": {"logprobs": 1, "max_tokens": 12}}
        answer = await agent.http.post(url, json=body, timeout=60)
        (choice,) = answer.json()["choices"]
        assert [one["token_id"] for one in choice["logprobs"]["content"]] == choice["token_ids"]
        ids = ids + choice["token_ids"] + [30 + len(ids)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("talk", [by_messages, by_responses, by_ids], ids=["messages", "responses", "ids"])
async def test_the_row_is_what_the_engine_saw_and_sampled(running: Running, talk: Any, stream: bool) -> None:
    agent = await running.session()
    await talk(agent, stream)
    turns = await running.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * TURNS
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]
    (row,) = await running.finalize(agent)
    path = row["prompt_ids"] + row["response_ids"]
    engine = running.engine
    assert isinstance(engine, Heard)
    for prompt, sampled in engine.seen:
        assert path[: len(prompt) + len(sampled)] == prompt + sampled
    prompt, sampled = engine.seen[-1]
    assert path == prompt + sampled
