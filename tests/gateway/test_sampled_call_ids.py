"""Call ids that a family prints: clients get ours, the model is shown its own again."""

from __future__ import annotations

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
