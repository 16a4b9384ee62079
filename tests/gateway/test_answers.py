"""What an agent may ask of an answer: choices, logprobs, stops, forced tools, formats; and whose sampling wins."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from sandgate.gateway.engine.scripted.engine import Fault, Reply
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.service.sampling import choice_seed
from tests.support.gateway import BUY, Running, call_text, codec, events, gateway, ids

HI: Any = [{"role": "user", "content": "hi"}]
SELL: Any = {
    "type": "function",
    "function": {"name": "sell", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
async def g() -> Any:
    async with gateway(lambda prompt, number: ["kiwi", "lime", "plum"][number % 3]) as running:
        yield running


async def test_n_choices_are_n_siblings(g: Running) -> None:
    agent = await g.session()
    answer = await agent.openai().chat.completions.create(model="shop", messages=HI, n=3)
    assert [choice.message.content for choice in answer.choices] == ["kiwi", "lime", "plum"]
    turns = await g.tree(agent)
    assert [turn["parent"] for turn in turns] == [None] * 3
    assert [turn["fork"] for turn in turns] == [None, "retry_resampled", "retry_resampled"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(turn["sampled_tokens"] for turn in turns)
    assert len(await g.finalize(agent)) == 3


async def test_one_choice_that_fails_fails_them_all_and_commits_none() -> None:
    broken = Reply("x", fault=Fault("status", status=400))
    async with gateway(["kiwi", broken, "plum"]) as g:
        agent = await g.session()
        assert (await agent.post("hi", n=3)).status_code >= 400
        assert await g.tree(agent) == []
        assert g.engine.player.running == 0
        assert g.core.turns.load.in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_logprobs_and_their_alternatives_are_the_engines(g: Running, stream: bool) -> None:
    agent = await g.session()
    answer = await agent.post("hi", logprobs=True, top_logprobs=3, stream=stream)
    (turn,) = await g.tree(agent)
    if stream:
        parts = [event["choices"][0]["logprobs"] for event in events(answer.content) if event["choices"]]
        content = [entry for part in parts if part for entry in part["content"]]
    else:
        content = answer.json()["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == pytest.approx(turn["logprobs"])
    sampled = turn["spans"][1]["ids"]
    assert "".join(entry["token"] for entry in content) == codec().decode(_ids(sampled))
    for entry, token in zip(content, sampled, strict=True):
        assert len(entry["top_logprobs"]) == 3
        own = [other for other in entry["top_logprobs"] if other["token"] == codec().decode(_ids([token]))]
        assert any(math.isclose(other["logprob"], entry["logprob"], rel_tol=1e-6) for other in own)


def _ids(values: list[int]) -> Any:
    return array("i", values)


async def test_a_stop_string_ends_the_text_and_is_not_in_it() -> None:
    async with gateway(["one two STOP three"]) as g:
        agent = await g.session()
        answer = await agent.openai().chat.completions.create(model="shop", messages=HI, stop=["STOP"])
        assert (answer.choices[0].message.content or "").rstrip() == "one two"
        assert answer.choices[0].finish_reason == "stop"
        (turn,) = await g.tree(agent)
        assert turn["stop_reason"] == "STOP"
        sampled = codec().decode(_ids(turn["spans"][1]["ids"]))
        assert "STOP" in sampled, "what was sampled is kept whole"
        assert turn["sampling"]["stop"] == ["STOP"]


CHOICES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "required": ({"tools": [BUY, SELL], "tool_choice": "required"}, {"buy", "sell"}),
    "named": (
        {"tools": [BUY, SELL], "tool_choice": {"type": "function", "function": {"name": "sell"}}},
        {"sell"},
    ),
}


@pytest.mark.parametrize("case", CHOICES)
async def test_a_forced_tool_choice_constrains_the_engine(case: str) -> None:
    body, names = CHOICES[case]
    async with gateway([call_text(min(names))]) as g:
        agent = await g.session()
        answer = await agent.openai().chat.completions.create(model="shop", messages=HI, **body)
        assert answer.choices[0].finish_reason == "tool_calls"
        (prompt,) = g.engine.prompts
        grammar = str(prompt.constraint).replace("\\", "")
        assert {name for name in ("buy", "sell") if f'"{name}"' in grammar} == names


@pytest.mark.parametrize("choice", ["auto", None])
async def test_an_unforced_tool_choice_leaves_the_engine_free(g: Running, choice: str | None) -> None:
    agent = await g.session()
    await agent.ask("hi", tools=[BUY], **({"tool_choice": choice} if choice else {}))
    assert [prompt.constraint for prompt in g.engine.prompts] == [None]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_with_tool_choice_none_nothing_is_a_call(*, stream: bool) -> None:
    """The engine is held to text; what it samples all the same, as this one does, is told as text."""
    async with gateway([call_text("buy")]) as g:
        agent = await g.session()
        body: dict[str, Any] = {"model": "shop", "messages": HI, "tools": [BUY], "tool_choice": "none"}
        if stream:
            chunks = [one async for one in await agent.openai().chat.completions.create(stream=True, **body)]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            calls = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.tool_calls]
            finish = chunks[-1].choices[0].finish_reason
        else:
            (choice,) = (await agent.openai().chat.completions.create(**body)).choices
            text, calls, finish = (
                choice.message.content or "",
                choice.message.tool_calls or [],
                choice.finish_reason,
            )
        assert (calls, finish) == ([], "stop")
        assert '"buy"' in text
        (prompt,) = g.engine.prompts
        assert "any_text" in str(prompt.constraint)


async def test_one_call_at_most_constrains_the_engine(g: Running) -> None:
    agent = await g.session()
    await agent.ask("hi", tools=[BUY], parallel_tool_calls=False)
    await agent.ask("hi", tools=[BUY], parallel_tool_calls=True)
    await agent.ask("hi", parallel_tool_calls=False)
    first, *others = (prompt.constraint for prompt in g.engine.prompts)
    assert first is not None
    assert '"stop_after_first": true' in first["structural_tag"]
    assert others == [None, None]


FORMATS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"type": "text"}, ""),
    "json_object": ({"type": "json_object"}, '"json_schema": {"type": "object"}'),
    "json_schema": (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
        '"json_schema": {"type": "array"}',
    ),
}


@pytest.mark.parametrize("case", FORMATS)
async def test_a_response_format_is_the_engines_grammar(g: Running, case: str) -> None:
    asked, schema = FORMATS[case]
    agent = await g.session()
    await agent.ask("hi", response_format=asked)
    (prompt,) = g.engine.prompts
    if prompt.constraint is None:
        assert not schema
    else:
        assert schema
        assert schema in prompt.constraint["structural_tag"]
        assert prompt.constraint["structural_tag"].index("</think>") < prompt.constraint[
            "structural_tag"
        ].index(schema)


async def test_an_answer_cut_at_max_tokens_says_length(g: Running) -> None:
    agent = await g.session()
    answer = await agent.openai().chat.completions.create(model="shop", messages=HI, max_tokens=1)
    assert answer.choices[0].finish_reason == "length"
    (turn,) = await g.tree(agent)
    assert turn["spans"][1]["ids"] == ids("kiwi")[:1]


SAMPLING: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nobody says anything": ({}, {}, {}, {"temperature": 1.0, "top_p": 1.0}),
    "the agent says": ({}, {}, {"temperature": 0.5}, {"temperature": 0.5, "top_p": 1.0}),
    "the job fills what the agent leaves open": (
        {"temperature": 0.7, "top_k": 20},
        {},
        {"temperature": 0.5},
        {"temperature": 0.5, "top_p": 1.0, "top_k": 20},
    ),
    "the session's own beats the job's": (
        {"temperature": 0.7},
        {"temperature": 0.9},
        {},
        {"temperature": 0.9, "top_p": 1.0},
    ),
    "override: the job's, and nothing of the agent's": (
        {"temperature": 0.7, "override": True},
        {},
        {"temperature": 0.0, "top_p": 0.1, "seed": 5},
        {"temperature": 0.7, "top_p": 1.0},
    ),
    "override by the session": (
        {},
        {"temperature": 1.0, "override": True},
        {"temperature": 0.0, "top_p": 0.1},
        {"temperature": 1.0, "top_p": 1.0},
    ),
    "override: the agent's length stays where the job has none": (
        {"override": True},
        {},
        {"max_tokens": 7, "temperature": 0.3},
        {"temperature": 1.0, "top_p": 1.0, "max_tokens": 7},
    ),
    "a temperature that vLLM would raise is raised here": (
        {},
        {},
        {"temperature": 1e-6},
        {"temperature": 0.01},
    ),
    "the job's, too": ({"temperature": 0.005}, {}, {}, {"temperature": 0.01}),
    "the least temperature stays": ({}, {}, {"temperature": 0.01}, {"temperature": 0.01}),
    "greedy stays": ({}, {}, {"temperature": 0.0}, {"temperature": 0.0}),
    "manifests say maxTokens": ({}, {"maxTokens": 9, "override": True}, {"max_tokens": 7}, {"max_tokens": 9}),
}


@pytest.mark.parametrize("case", SAMPLING)
async def test_whose_sampling_wins(case: str) -> None:
    job, session, agents, want = SAMPLING[case]
    async with gateway(lambda prompt, number: "x", sampling=job) as g:
        agent = await g.session(sampling=session)
        await agent.ask("hi", **agents)
        (prompt,) = g.engine.prompts
        (turn,) = await g.tree(agent)
        for name, value in want.items():
            told = prompt.max_tokens if name == "max_tokens" else getattr(prompt.sampling, name)
            assert told == value, name
            assert turn["sampling"][name] == value, f"{name} is recorded"
        unsaid = {"top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"} - want.keys()
        assert all(getattr(prompt.sampling, name) is None for name in unsaid)


async def test_the_sync_sdk_works_too() -> None:
    async with gateway(["kiwi"]) as g:
        agent = await g.session()

        def ask() -> str | None:
            with openai.OpenAI(
                base_url=agent.handle["base_url"],
                api_key=agent.handle["api_key"],
                http_client=openai.DefaultHttpxClient(verify=False),
            ) as sdk:
                return sdk.chat.completions.create(model="shop", messages=HI).choices[0].message.content

        assert await asyncio.to_thread(ask) == "kiwi"


async def _seeds(ask: Callable[[Running], Awaitable[None]], **job: Any) -> list[int | None]:
    """What the engine was given, in order; each turn's record says the same."""
    async with gateway(lambda prompt, number: f"{number}", sampling=job) as g:
        await ask(g)
        turns = [turn for agent in g.agents for turn in await g.tree(agent)]
        given = [prompt.sampling.seed for prompt in g.engine.prompts]
        assert sorted(turn["sampling"]["seed"] for turn in turns) == sorted(seed for seed in given if seed)
        return given


async def _choices(g: Running) -> None:
    await (await g.session()).post("hi", n=3, seed=7)


async def _siblings(g: Running) -> None:
    for index in range(3):
        await (await g.session(uid="q", sample_index=index, group_size=3)).post("hi")


async def _tasks(g: Running) -> None:
    for uid in ("q1", "q2", "q3"):
        await (await g.session(uid=uid)).post("hi")


async def _turns(g: Running) -> None:
    agent = await g.session()
    for text in ("hi", "ho"):
        await agent.post(text)


async def _together(g: Running) -> None:
    agent = await g.session()
    await asyncio.gather(*(agent.post("hi", n=number) for number in (1, 2, 1)))


SEEDS: dict[str, tuple[Callable[[Running], Awaitable[None]], dict[str, Any]]] = {
    "the choices of a turn draw apart": (_choices, {}),
    "the samples of a group draw apart": (_siblings, {"seed": 7}),
    "tasks of one prompt draw apart": (_tasks, {"seed": 7}),
    "the turns of a session draw apart": (_turns, {"seed": 7}),
    "requests of a session that are in flight together draw apart": (_together, {"seed": 7}),
}


@pytest.mark.parametrize("case", SEEDS)
async def test_one_seed_is_not_one_draw(case: str) -> None:
    ask, job = SEEDS[case]
    first, again = await _seeds(ask, **job), await _seeds(ask, **job)
    assert len({*first}) == len(first) > 1
    assert sorted(map(str, first)) == sorted(map(str, again)), "the same job draws the same"
    assert all(seed is not None and 0 <= seed < 2**31 for seed in first)


async def test_another_attempt_at_a_sample_draws_what_the_first_one_drew() -> None:
    async with gateway(lambda prompt, number: f"{number}", sampling={"seed": 7}) as g:
        for attempt in (0, 1):
            agent = await g.session(session_id=f"q-0-{attempt}", uid="q", attempt=attempt)
            assert (await agent.post("hi")).status_code == 200
            await g.finalize(agent, outcome={"failure_class": "infra", "failure_reason": "PodLost"})
        first, again = (prompt.sampling.seed for prompt in g.engine.prompts)
    assert first == again == choice_seed(7, task="q", sample=0, turn=0, choice=0)


async def test_a_turn_that_was_begun_before_a_restart_is_not_drawn_again() -> None:
    disk, broken = MemoryDisk(), Reply("x", fault=Fault("status", status=400))
    async with gateway(["kiwi", broken], store=MemoryStore(disk), sampling={"seed": 7}) as g:
        agent = await g.session()
        assert [(await agent.post(text)).status_code for text in ("hi", "ho")] == [200, 400]
        before = [prompt.sampling.seed for prompt in g.engine.prompts]
        await g.store.aclose()
    async with gateway(["lime"], store=MemoryStore(disk), sampling={"seed": 7}) as g:
        assert (await g.agent(agent.handle).post("ho")).status_code == 200
        after = [prompt.sampling.seed for prompt in g.engine.prompts]
    assert before == [choice_seed(7, task="", sample=0, turn=turn, choice=0) for turn in (0, 1)]
    assert after == [choice_seed(7, task="", sample=0, turn=2, choice=0)]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_call_in_a_thought_that_was_cut_is_no_call(stream: bool) -> None:
    thought = f"I could {call_text('buy', item='kiwi')} but that is"
    sampled = ids(f"<think>\n{thought}")
    async with gateway([Reply(sampled, finish="length")]) as g:
        answer = await (await g.session()).post("hi", tools=[BUY], max_tokens=len(sampled), stream=stream)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events(answer.content) if event["choices"]]
        assert not any(delta.get("content") or delta.get("tool_calls") for delta in deltas)
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == thought
        return
    message = answer.json()["choices"][0]["message"]
    assert (message["content"], message.get("tool_calls"), message["reasoning"]) == ("", None, thought)
