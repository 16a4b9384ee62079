"""POST /inference/v1/generate: token ids in, token ids, logprobs and versions out, in the session's tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Agent, Running, codec, events, gateway, ids

EOS = codec().stop_ids[0]


@pytest.fixture
async def g() -> AsyncIterator[Running]:
    async with gateway(lambda ids, number: f" answer {number}") as running:
        yield running


async def post(agent: Agent, token_ids: Any, *, stream: bool = False, **params: Any) -> httpx.Response:
    url = agent.handle["anthropic_base_url"] + "/inference/v1/generate"
    body = {"token_ids": token_ids, "sampling_params": {"logprobs": 0, **params}, "stream": stream}
    return await agent.http.post(url, json=body)


async def generate(agent: Agent, token_ids: list[int], stream: bool, **params: Any) -> dict[str, Any]:
    answer = await post(agent, token_ids, stream=stream, **params)
    assert answer.status_code == 200, answer.text
    if not stream:
        (choice,) = answer.json()["choices"]
        return dict(choice)
    told = [choice for event in events(answer.text) for choice in event["choices"]]
    content = [one for choice in told if choice["logprobs"] for one in choice["logprobs"]["content"]]
    whole = {
        "token_ids": [token for choice in told for token in choice["token_ids"]],
        "logprobs": {"content": content},
    }
    return {**told[-1], **whole}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_ids_that_go_on_are_one_branch_with_the_very_ids(g: Running, stream: bool) -> None:
    agent = await g.session()
    prompt = ids("one")
    whole: list[int] = []
    for more in ("two", "three", "four"):
        choice = await generate(agent, prompt, stream)
        assert choice["token_ids"][-1] == EOS
        assert choice["finish_reason"] == "stop"
        assert choice["weight_versions"] == [{"version": "0", "start": 0, "end": len(choice["token_ids"])}]
        whole = prompt + choice["token_ids"]
        prompt = whole + ids(more)
    turns = await g.tree(agent)
    assert [turn["parent"] for turn in turns] == [None, turns[0]["turn"], turns[1]["turn"]]
    assert [turn["fork"] for turn in turns] == [None] * 3
    (row,) = await g.finalize(agent)
    assert row["prompt_ids"] + row["response_ids"] == whole


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_each_token_has_its_id_and_logprob(g: Running, stream: bool) -> None:
    agent = await g.session()
    choice = await generate(agent, ids("one"), stream, logprobs=2)
    (turn,) = await g.tree(agent)
    content = choice["logprobs"]["content"]
    assert [one["token_id"] for one in content] == choice["token_ids"] == turn["spans"][1]["ids"]
    assert [one["logprob"] for one in content] == pytest.approx(turn["logprobs"])
    for one in content:
        assert one["top_logprobs"][0] == {"token_id": one["token_id"], "logprob": one["logprob"]}


async def test_without_logprobs_none_are_told(g: Running) -> None:
    agent = await g.session()
    choice = await generate(agent, ids("one"), False, logprobs=None)
    assert choice["logprobs"] is None
    assert choice["token_ids"]


async def test_the_request_keeps_its_name(g: Running) -> None:
    agent = await g.session()
    url = agent.handle["anthropic_base_url"] + "/inference/v1/generate"
    body = {"token_ids": ids("one"), "sampling_params": {}, "request_id": "mine", "return_token_ids": True}
    answer = (await agent.http.post(url, json=body)).json()
    assert (answer["request_id"], answer["prompt_token_ids"]) == ("mine", ids("one"))


async def test_ids_of_a_chat_go_on_in_its_tree(g: Running) -> None:
    agent = await g.session()
    await agent.ask("buy 7 kiwi")
    (chat,) = await g.tree(agent)
    path = chat["spans"][0]["ids"] + chat["spans"][1]["ids"]
    await generate(agent, path + ids("go on"), False)
    turns = await g.tree(agent)
    assert [turn["parent"] for turn in turns] == [None, chat["turn"]]


async def test_several_choices_are_siblings(g: Running) -> None:
    agent = await g.session()
    answer = (await post(agent, ids("one"), n=3)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [turn["fork"] for turn in await g.tree(agent)] == [None, "retry_resampled", "retry_resampled"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no ids": ({"token_ids": []}, "token_ids"),
    "an id below 0": ({"token_ids": [1, -1]}, "token_ids[1]"),
    "an id beyond 32 bits": ({"token_ids": [2**31]}, "token_ids[0]"),
    "an id that the vocabulary lacks": ({"token_ids": [2**31 - 1]}, "token_ids"),
    "text": ({"token_ids": "one"}, "token_ids"),
    "no parameters": ({"sampling_params": None}, "sampling_params"),
    "a stop token of its own": ({"sampling_params": {"stop_token_ids": [1]}}, "sampling_params.stop_token_ids"),
    "a grammar": ({"sampling_params": {"structured_outputs": {"regex": "a"}}}, "sampling_params.structured_outputs"),
    "pictures": ({"features": {"mm_hashes": {"image": ["a"]}}}, "features"),
    "text out": ({"output_mode": "text"}, "output_mode"),
    "too many logprobs": ({"sampling_params": {"logprobs": 21}}, "sampling_params.logprobs"),
}  # fmt: skip


@pytest.mark.parametrize(("more", "field"), REFUSED.values(), ids=REFUSED)
async def test_refused_by_name(g: Running, more: dict[str, Any], field: str) -> None:
    agent = await g.session()
    url = agent.handle["anthropic_base_url"] + "/inference/v1/generate"
    answer = await agent.http.post(url, json={"token_ids": ids("one"), "sampling_params": {}, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert await g.tree(agent) == []
