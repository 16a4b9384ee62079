"""Call ids that a family prints: clients get ours, the model is shown its own again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandgate.gateway.tokens.codec import TemplateCodec
from tests.gateway.tokens.zoo import zoo
from tests.support.gateway import BUY, gateway

OWN = "aB3dE6gH9"
CALL = f'[TOOL_CALLS][{{"name": "buy", "arguments": {{"item": "kiwi"}}, "id": "{OWN}"}}]'


@pytest.fixture(scope="module")
def mistral() -> TemplateCodec:
    return zoo()["axolotl/mistral_v3_tekken"].codec()


def spoken(model: TemplateCodec, *texts: str) -> list[Any]:
    return [[*model.vocab.encode(text), model.stop_ids[0]] for text in texts]


@pytest.mark.parametrize("forked", [False, True], ids=["bridged", "rendered again"])
async def test_the_model_sees_the_id_that_it_sampled(mistral: TemplateCodec, *, forked: bool) -> None:
    async with gateway(spoken(mistral, CALL, "done", "done"), model=mistral) as g:
        agent = await g.session()
        asked = {"role": "user", "content": "go"}
        said = await agent.ask(asked, tools=[BUY])
        (call,) = said["tool_calls"]
        assert call["id"].startswith("call_")
        first = {"role": "user", "content": "go, but otherwise"} if forked else asked
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sold"}
        await agent.ask(first, said, result, tools=[BUY])
        prompt = mistral.decode(g.engine.prompts[-1].ids)
        assert call["id"][-9:] not in prompt
        assert prompt.count(OWN) == 2, "in the call, and in its result"
        fork = (await g.tree(agent))[-1]["fork"]
        assert bool(fork) == forked


KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>"
    '{"item":"kiwi"}<|tool_call_end|><|tool_calls_section_end|>'
)
RENAMED = {
    "printed in the answer only": ("llama.cpp/moonshotai-Kimi-K2", KIMI, "functions.buy:0"),
    "printed in the call as well": ("axolotl/mistral_v3_tekken", CALL, OWN),
}


@pytest.mark.parametrize(("name", "sampled", "own"), RENAMED.values(), ids=RENAMED)
async def test_a_client_that_renames_a_call_and_its_answer_does_not_rename_it_for_the_model(
    name: str, sampled: str, own: str
) -> None:
    model = zoo()[name].codec()
    async with gateway(spoken(model, sampled, "done"), model=model) as g:
        agent = await g.session()
        asked = {"role": "user", "content": "go"}
        said = await agent.ask(asked, tools=[BUY])
        said["tool_calls"][0]["id"] = theirs = f"call_{0:036}"
        result = {"role": "tool", "tool_call_id": theirs, "content": "sold"}
        await agent.ask(asked, said, result, tools=[BUY])
        prompt = model.decode(g.engine.prompts[-1].ids)
        assert prompt.count(own) == 2, "in the call, and in its result"
        assert "0" * 9 not in prompt
        assert [turn["fork"] for turn in await g.tree(agent)] == [None, None]


async def test_an_id_that_a_client_uses_again_puts_no_earlier_answer_under_another_call() -> None:
    model = zoo()["llama.cpp/moonshotai-Kimi-K2"].codec()
    later = KIMI.replace("functions.buy:0", "functions.sell:1")
    tools = [BUY, {"type": "function", "function": {**BUY["function"], "name": "sell"}}]
    async with gateway(spoken(model, KIMI, later, "done"), model=model) as g:
        agent = await g.session()
        history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        for number in range(2):
            said = await agent.ask(*history, tools=tools)
            said["tool_calls"][0]["id"] = "call_x"
            history += [said, {"role": "tool", "tool_call_id": "call_x", "content": f"result {number}"}]
        noted = [{"role": "assistant", "content": "noted"}, {"role": "user", "content": "on"}]
        await agent.ask(*history, *noted, tools=tools)  # rendered as a whole
        prompt = model.decode(g.engine.prompts[-1].ids)
        returns = dict(re.findall(r"## Return of ([\w.:]+).*?(result \d)", prompt))
        assert returns == {"call_x": "result 0", "functions.sell:1": "result 1"}
