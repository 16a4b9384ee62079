"""Prompts that agents make themselves, on a real vLLM: encoded as it encodes them, and its own ids where they go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.load import load_codec
from tests.support.gateway import Agent, Running, gateway
from tests.support.vllm import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

TEXTS = (
    "Buy",
    " buy 7 kiwi",
    "a\n\n  b\t",
    "naïve café, 你好 🙂",
    "Question: how much?\nThought:",
    "<b>no</b> {}",
)
CHATML = "<|im_start|>user\nBuy 7 kiwi<|im_end|>\n<|im_start|>assistant\n"
STEPS = 4


@pytest.fixture(params=["text", "control"])
async def running(vllm: Vllm, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    engine = await VllmEngine.connect([vllm.url], model=vllm.model, logprobs_mode="processed_logprobs")
    codec = load_codec(vllm.folder, renderer="template", special_text=request.param)
    async with gateway(engine, model=codec) as made:
        yield made


async def complete(http: httpx.AsyncClient, url: str, model: str, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "return_token_ids": True, **more}
    answer = await http.post(url, json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def ours(agent: Agent, prompt: Any, **more: Any) -> dict[str, Any]:
    return await complete(agent.http, "v1/completions", "shop", prompt, **more)


async def test_text_is_encoded_as_vllm_encodes_it(running: Running, vllm: Vllm) -> None:
    agent = await running.session()
    codec = running.core.turns.codec
    assert isinstance(codec, TemplateCodec)
    texts = TEXTS if codec.words.are_text else (*TEXTS, CHATML)
    async with httpx.AsyncClient(timeout=60) as http:
        for text in texts:
            theirs = await complete(http, f"{vllm.url}/v1/completions", vllm.model, text, max_tokens=1)
            told = await ours(agent, text, max_tokens=1)
            assert told["prompt_token_ids"] == theirs["prompt_token_ids"], text


@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_was_sampled_stays_as_it_was_sampled(running: Running, as_ids: bool, stream: bool) -> None:
    """Steps of a few hot tokens, which are cut as no tokenizer cuts, one after the other: one branch."""
    agent = await running.session()
    codec = running.core.turns.codec
    prompt: Any = codec.encode_text(TEXTS[0]).tolist() if as_ids else TEXTS[0]
    path = codec.encode_text(TEXTS[0]).tolist()
    told, ended, more = 0, False, list[int]()
    sdk = agent.openai()
    for step in range(STEPS):
        asked: dict[str, Any] = {"max_tokens": 6, "temperature": 1.5, "seed": step}
        if stream:
            chunks = await sdk.completions.create(
                model="shop", prompt=prompt, stream=True, extra_body={"return_token_ids": True}, **asked
            )
            text, ids = "", list[int]()
            async for chunk in chunks:
                for choice in chunk.choices:
                    text += choice.text
                    ids += getattr(choice, "token_ids", None) or []
        else:
            answer = await ours(agent, prompt, **asked)
            text, ids = answer["text"], answer["token_ids"]
        more = codec.encode_text(f" step {step}", behind=True).tolist()
        path += [*ids, *more]
        told += 1
        if ids[-1] in codec.stop_ids or "\ufffd" in text:
            ended = True  # what a text cannot retell
            if not as_ids:
                break
        prompt = path if as_ids else prompt + text + f" step {step}"
    turns = await running.tree(agent)
    assert [turn["fork"] for turn in turns] == [None] * told
    (row,) = await running.finalize(agent)
    assert row["prompt_ids"] + row["response_ids"] == path[: -len(more)]
    assert told == STEPS or ended
