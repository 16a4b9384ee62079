"""Which models can be given tools: shown in the prompt, and called in a form that is read back equal."""

from __future__ import annotations

import pytest

from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.template import ChatTemplate
from tests.gateway.tokens import lab
from tests.gateway.tokens.zoo import zoo
from tests.support.gateway import codec, gateway

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "OPEN{{ c.function | tojson }}CLOSE{% endfor %}<|im_end|>\n{% endfor %}"
)
HERMES = CALLS.replace("OPEN", "<tool_call>").replace("CLOSE", "</tool_call>")
OTHER = CALLS.replace("OPEN", "<do>").replace("CLOSE", "</do>")

CASES = {
    "tools are shown and calls are read": (TOOLS + HERMES + ASKS, ""),
    "a template without tools": (CHATML + ASKS, "does not show tools"),
    "only the names of tools are shown": (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + HERMES + ASKS,
        "does not show tools",
    ),
    "calls are dropped": (TOOLS + CHATML + ASKS, "drops an assistant's tool calls"),
    "calls in a markup of their own": (TOOLS + OTHER + ASKS, "no grammar here reads"),
    "calls are refused": (
        TOOLS
        + "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}{% endfor %}"
        + CHATML
        + ASKS,
        "refuses an assistant's tool call",
    ),
    "tools are refused": (
        "{% if tools %}{{ raise_exception('none') }}{% endif %}" + HERMES + ASKS,
        "refuses tools",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_template_is_probed_for_tools(name: str) -> None:
    source, why = CASES[name]
    template = ChatTemplate(source, tokens={"eos_token": "<|im_end|>"})
    made = TemplateCodec(template, lab.qwen(), eos_ids=[lab.qwen().ids["<|im_end|>"]])
    assert why in made.no_tools
    assert bool(why) == bool(made.no_tools)


def test_a_real_template_can_be_given_tools_or_says_why_not() -> None:
    able = {name for name, specimen in zoo().items() if not specimen.codec().no_tools}
    assert {"trl/qwen3", "trl/gemma4", "trl/lfm2_2_5", "axolotl/jamba", "axolotl/command_a_tool_use"} <= able
    assert not {"trl/llama3", "trl/qwen2_5_vl", "axolotl/gemma3", "trl/lfm2", "axolotl/falcon_h1"} & able


async def test_tools_are_refused_by_name_where_the_model_would_never_see_them() -> None:
    shop = codec()
    toolless = TemplateCodec(ChatTemplate(CHATML + ASKS), shop.vocab, eos_ids=shop.stop_ids)
    buy = {"type": "function", "function": {"name": "buy", "parameters": {"type": "object"}}}
    async with gateway(model=toolless) as g:
        agent = await g.session()
        refused = await agent.post("hi", tools=[buy])
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("tools_not_supported", "tools")
        assert "does not show tools" in error["message"]
        assert (await agent.ask("hi"))["content"] == "done"
        assert g.generations == 1
