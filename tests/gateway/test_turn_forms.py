"""A model that thinks, on real engines with and without a reasoning parser: every form an SDK can ask for holds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pydantic
import pytest

from sandgate.gateway.engine.vllm import VllmEngine
from sandgate.gateway.engine.wire import NEUTRAL
from sandgate.gateway.tokens.load import load_codec
from tests.support.chain_model import chain_model
from tests.support.environments import ROOT, python_of
from tests.support.gateway import Agent, Running, gateway
from tests.support.vllm import FLAGS, Vllm, another

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

DEFAULTS = {"top_k": 20, "repetition_penalty": 1.05, "top_p": 0.8, "min_p": 0.01, "temperature": 0.6}
"""What a checkpoint's generation_config.json may say, as Qwen's do."""
ENGINES = {
    "generate, with a reasoning parser": [*FLAGS, "--reasoning-parser", "qwen3"],
    "completions, without": [flag for flag in FLAGS if flag != "--enable-scale-out"],
}


@pytest.fixture(scope="module", params=ENGINES)
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """An engine that serves a model that thinks."""
    folder = chain_model(tmp_path_factory.mktemp("chain") / "model")
    own = ["--enable-log-requests", "--override-generation-config", json.dumps(DEFAULTS)]
    with another([*ENGINES[request.param], *own], model=folder) as vllm:
        yield vllm


@asynccontextmanager
async def served(vllm: Vllm, **more: Any) -> AsyncIterator[tuple[Running, Agent]]:
    engine = await VllmEngine.connect([vllm.url], model=vllm.model, logprobs_mode="processed_logprobs")
    async with gateway(engine, model=load_codec(vllm.folder, renderer="template"), **more) as running:
        yield running, await running.session()


@pytest.fixture
async def agent(thinker: Vllm) -> AsyncIterator[Agent]:
    async with served(thinker) as (_, one):
        yield one


class Order(pydantic.BaseModel):
    """What the model is to answer with."""

    item: Literal["kiwi", "plum"]
    n: Literal[1, 7]


BUY: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "buy",
        "strict": True,
        "parameters": {**Order.model_json_schema(), "additionalProperties": False},
    },
}
SELL: dict[str, Any] = {"type": "function", "function": {"name": "sell", "parameters": {"type": "object"}}}
ASK: dict[str, Any] = {"model": "shop", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
GREEDY: dict[str, Any] = {**ASK, "temperature": 0.0}
"""So that this model spells no marker in letters."""
NAMED = {"type": "function", "function": {"name": "sell"}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "order", "strict": True, "schema": Order.model_json_schema()},
}


async def said(agent: Agent, *, stream: bool, **more: Any) -> tuple[str, str, list[tuple[str, str]], str]:
    """(reasoning, text, calls, finish reason), as the SDK has them."""
    create = agent.openai().chat.completions.create
    if not stream:
        (choice,) = (await create(**GREEDY, **more)).choices
        message, finish = choice.message, choice.finish_reason
    else:
        state = openai.lib.streaming.chat.ChatCompletionStreamState()
        async for chunk in await create(stream=True, **GREEDY, **more):
            state.handle_chunk(chunk)
        (whole,) = state.get_final_completion().choices
        message, finish = whole.message, whole.finish_reason
    calls = [(one.function.name, one.function.arguments) for one in message.tool_calls or ()]
    return getattr(message, "reasoning_content", "") or "", message.content or "", calls, finish


FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "a request that names no form": ({}, "K"),
    "json_object": ({"response_format": {"type": "json_object"}}, dict),
    "json_schema": ({"response_format": SCHEMA}, Order),
    "json_schema beside tools": ({"response_format": SCHEMA, "tools": [BUY, SELL]}, Order),
    "required": ({"tools": [BUY, SELL], "tool_choice": "required"}, ["buy", "sell"]),
    "required, one at most": (
        {"tools": [BUY, SELL], "tool_choice": "required", "parallel_tool_calls": False}, ["buy", "sell"]),
    "named": ({"tools": [BUY, SELL], "tool_choice": NAMED}, ["sell"]),
    "none": ({"tools": [BUY], "tool_choice": "none"}, "K"),
    "one call at most": ({"tools": [BUY], "parallel_tool_calls": False}, "K"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", FORMS)
async def test_the_form_holds_behind_the_thought(agent: Agent, case: str, *, stream: bool) -> None:
    asked, wanted = FORMS[case]
    reasoning, text, calls, finish = await said(agent, stream=stream, **asked)
    assert reasoning.strip() == "Hm"
    assert finish == ("tool_calls" if isinstance(wanted, list) else "stop")
    if isinstance(wanted, list):
        assert text.strip() == ""
        (call,) = calls
        name, arguments = call
        assert name in wanted
        if name == "buy":
            Order.model_validate_json(arguments)
        else:
            json.loads(arguments)
    else:
        assert calls == []
        if isinstance(wanted, str):
            assert text == wanted
        else:
            assert isinstance(
                wanted.model_validate_json(text) if wanted is Order else json.loads(text), wanted
            )


async def test_the_sdks_own_parsing_passes(agent: Agent) -> None:
    parsed = await agent.openai().chat.completions.parse(**GREEDY, response_format=Order)
    assert isinstance(parsed.choices[0].message.parsed, Order)
    tool = openai.pydantic_function_tool(Order)
    called = await agent.openai().chat.completions.parse(**GREEDY, tools=[tool], tool_choice="required")
    calls = called.choices[0].message.tool_calls or []
    assert len(calls) == 1
    assert isinstance(calls[0].function.parsed_arguments, Order)
    async with agent.openai().chat.completions.stream(**GREEDY, response_format=Order) as stream:
        final = await stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Order)


async def test_instructors_modes_pass(agent: Agent) -> None:
    """Its own package: calls, JSON, a schema, and JSON that is only asked for in words."""
    python = python_of("agent-env.sh", "tests/support/instructor")
    script = ROOT / "tests" / "support" / "instructor" / "ask.py"
    asked = await asyncio.create_subprocess_exec(
        python, script, agent.handle["base_url"], agent.handle["api_key"], stdout=asyncio.subprocess.PIPE
    )
    told, _ = await asked.communicate()
    assert asked.returncode == 0
    orders = json.loads(told)
    assert list(orders) == ["TOOLS", "JSON", "JSON_SCHEMA", "MD_JSON"]
    for order in orders.values():
        Order.model_validate(order)


async def test_stop_strings_and_choices_with_a_seed(agent: Agent) -> None:
    create = agent.openai().chat.completions.create
    choice = (await create(**GREEDY, stop=["K"])).choices[0]
    assert (choice.message.content or "", choice.finish_reason) == ("", "stop")
    made = await create(**ASK, n=4, seed=7, response_format={"type": "json_object"})
    assert [isinstance(json.loads(one.message.content or ""), dict) for one in made.choices] == [True] * 4


SAMPLING: dict[str, dict[str, Any]] = {
    "a request without sampling parameters": {},
    "as agents do": {"temperature": 0.0, "max_tokens": 9},
    "a temperature that it raises": {"temperature": 0.001, "max_tokens": 9},
    "everything": {
        "temperature": 0.9, "top_p": 0.7, "presence_penalty": 0.1, "frequency_penalty": 0.2, "seed": 5,
        "max_tokens": 11,
        "extra_body": {"top_k": 7, "min_p": 0.02, "repetition_penalty": 1.2},
    },
}  # fmt: skip


@pytest.mark.parametrize("case", SAMPLING)
async def test_what_the_engine_samples_with_is_what_the_record_says(thinker: Vllm, case: str) -> None:
    """Its own words, of the request it logs; none of the checkpoint's defaults."""
    assert thinker.log is not None
    async with served(thinker) as (running, agent):
        ready = thinker.log.stat().st_size  # behind the gateway's own questions
        await agent.openai().chat.completions.create(**{**ASK, **SAMPLING[case]})
        (turn,) = await running.tree(agent)
    with thinker.log.open() as log:
        log.seek(ready)
        (line,) = [line for line in log if "Received request" in line]
    effective = dict(re.findall(r"(\w+)=([^,()]*)", line[line.index("SamplingParams(") :]))
    recorded = {**NEUTRAL, **turn["sampling"]}
    for name in (*NEUTRAL, "max_tokens"):
        told = float(effective[name])
        wanted = float(recorded[name])
        assert (max(told, 0.0) if name == "top_k" else told) == pytest.approx(max(wanted, 0.0)), name
    assert effective["seed"] == str(turn["sampling"].get("seed"))
