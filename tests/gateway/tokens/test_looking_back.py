"""Templates that look back: what they write for new messages depends on earlier ones, and so must the bridge."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from sandgate.contract.errors import BadRequest
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall
from sandgate.gateway.engine.scripted.engine import ScriptedEngine
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.probe_conversations import assistant, system, user
from sandgate.gateway.tokens.template import ChatTemplate
from tests.gateway.tokens import lab
from tests.gateway.tokens.zoo import FAMILY, Specimen, zoo
from tests.support.gateway import gateway

BUY = Tool("buy", "get it", {"type": "object", "properties": {"k": {"type": "string"}}})


def calls(*numbers: int, text: str = "", thought: str | None = None) -> Message:
    made = [ToolCall(f"call_{n:024x}", "buy", json.dumps({"k": f"v{n}"})) for n in numbers]
    return assistant(text, made, thought)


def answer(number: int) -> Message:
    return Message(role="tool", parts=(TextPart(f"r{number}"),), tool_call_id=f"call_{number:024x}")


HI, NEXT = user("hi"), user("next")
LOOP = (calls(1), answer(1))
SAID: dict[str, tuple[Message, ...]] = {
    "a system message that switches thinking off": (system("/no_think"), HI, assistant("hello"), NEXT),
    "a longer one": (system("You are brief. /no_think"), HI, assistant("hello"), NEXT),
    "one that switches it on": (system("/think"), HI, assistant("hello"), NEXT),
    "another word for off": (system("detailed thinking off"), HI, assistant("hello"), NEXT),
    "a user who switched it off": (user("hi /no_think"), assistant("hello"), NEXT),
    "it is off, and a tool answers": (system("/no_think"), HI, calls(7), answer(7)),
    "a user switched it off, and a tool answers": (user("hi /no_think"), calls(7), answer(7)),
    "a second loop": (HI, *LOOP, calls(2), answer(2)),
    "a second loop under a system message": (system("Be kind."), HI, *LOOP, calls(2), answer(2)),
    "a loop behind two calls": (HI, calls(1, 2), answer(1), answer(2), calls(3), answer(3)),
    "a loop behind an answer": (HI, *LOOP, assistant("done"), NEXT, calls(3), answer(3)),
    "two calls behind one": (HI, *LOOP, calls(2, 3), answer(2), answer(3)),
    "words behind a loop": (HI, *LOOP, assistant("done"), NEXT),
    "answers in another order": (HI, calls(2, 3), answer(3), answer(2)),
    "only the second call answered": (HI, calls(2, 3), answer(3)),
    "only the first call answered": (HI, calls(2, 3), answer(2)),
    "a call that is never answered": (HI, calls(2), user("stop")),
    "words beside a call": (HI, calls(3, text="I buy."), answer(3)),
    "a thought beside a call": (HI, calls(3, thought="hm"), answer(3)),
    "thoughts that went before": (
        (HI, calls(1, thought="ha"), answer(1), assistant("done", reasoning="hm"), NEXT)
    ),
    "a tool and then a user": (HI, calls(2), answer(2), NEXT),
    "a second system message": (system("One."), HI, assistant("hello"), system("Two."), NEXT),
}
LOOKS_BACK = {
    *("axolotl/command_a_rag", "axolotl/command_a_tool_use", "llama.cpp/Cohere2MoE"),
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    *("axolotl/gemma4", "axolotl/gemma4_unified", "llama.cpp/google-gemma-4-31B-it", "trl/diffusion_gemma"),
    *("trl/gemma4", "trl/gemma4_v3", "trl/gemma4_v4", "trl/gemma4_v5", "vllm/tool_chat_template_gemma4"),
    *("llama.cpp/Bielik-11B-v3.0-Instruct", "llama.cpp/Kimi-K3"),
    *("llama.cpp/HuggingFaceTB-SmolLM3-3B", "llama.cpp/NVIDIA-Nemotron-Nano-v2"),
    *("llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "llama.cpp/deepseek-ai-DeepSeek-V3.2"),
    *("llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "trl/deepseek_r1_distill", "trl/deepseekv3"),
}
"""Each for a reason in its source: a mode, calls that are numbered on, a list of outputs that is opened once."""


@pytest.fixture(params=sorted(zoo()))
def specimen(request: pytest.FixtureRequest) -> Specimen:
    return zoo()[request.param]


def bridged(codec: TemplateCodec) -> Iterator[tuple[str, str, str]]:
    """Of each conversation that is bridged: its name, what the bridge adds, and the template's own render."""
    for name, messages in SAID.items():
        at = max(n for n, message in enumerate(messages) if message.role == "assistant") + 1
        earlier, tail = messages[:at], messages[at:]
        tools = (BUY,) if any(message.tool_calls for message in messages) else ()
        try:
            prompt = codec.render(earlier[:-1], tools)
            whole = codec.template.render(messages, tools)
        except BadRequest:
            continue
        found = added(codec, prompt, earlier, tail, tools)
        if isinstance(found, ForkReason):
            assert found == ForkReason.TEMPLATE_NOT_ADDITIVE, name
        else:
            yield name, codec.decode(found), whole


def added(
    codec: TemplateCodec,
    prompt: Ids,
    earlier: Sequence[Message],
    tail: Sequence[Message],
    tools: Sequence[Tool],
) -> Ids | ForkReason:
    names = {call.id: call.name for call in earlier[-1].tool_calls}
    ended = array("i", codec.stop_ids[:1])
    return codec.bridge(prompt, ended, tail, tools, closed=True, names=names, earlier=earlier)


def test_a_bridge_is_the_end_of_the_templates_own_render(specimen: Specimen) -> None:
    assert not [(name, text) for name, text, whole in bridged(specimen.codec()) if not whole.endswith(text)]


def test_those_that_look_back_are_known(specimen: Specimen) -> None:
    assert specimen.codec().looks_back == (specimen.name in LOOKS_BACK)


def test_under_history_template_the_whole_is_compared_anyway() -> None:
    assert not zoo()["llama.cpp/Kimi-K3"].codec("template").looks_back


BRIDGED = {
    "llama.cpp/HuggingFaceTB-SmolLM3-3B": "a system message that switches thinking off",
    "llama.cpp/NVIDIA-Nemotron-Nano-v2": "a user who switched it off",
    "axolotl/command_a_tool_use": "a second loop",
    "llama.cpp/Cohere2MoE": "answers in another order",
    "llama.cpp/Kimi-K3": "answers in another order",
}


@pytest.mark.parametrize("name", BRIDGED)
def test_a_template_that_looks_back_is_bridged_as_it_does(name: str) -> None:
    """And not only refused: a fork for each call of a tool would be a row for each."""
    assert BRIDGED[name] in [said for said, _, _ in bridged(zoo()[name].codec())]


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SOURCES = {
    "nothing": (CHATML, False),
    "a word of its own in an earlier message": (
        CHATML.replace(
            "assistant\n",
            "assistant\n{% for m in messages if m.role == 'user' and 'zu schnell' in m.content %}!{% endfor %}",
        ),
        True,
    ),
    "a word that is set before it is asked for": (
        "{% set off = '/off' %}"
        + CHATML.replace("assistant\n", "assistant\n{% if off in messages[0].content %}!{% endif %}"),
        True,
    ),
    "how many tools answered": (
        CHATML.replace(
            "assistant\n", "assistant\n{{ messages | selectattr('role', 'equalto', 'tool') | list | length }}"
        ),
        True,
    ),
}


@pytest.mark.parametrize("what", SOURCES)
def test_a_template_looks_back_at(what: str) -> None:
    source, back = SOURCES[what]
    template = ChatTemplate(source, tokens={"eos_token": "<|im_end|>"})
    assert TemplateCodec(template, lab.qwen(), eos_ids=[lab.qwen().ids["<|im_end|>"]]).looks_back is back


@pytest.mark.parametrize("text", ["zkaone", "zkbtwo", "zkaone0"])
def test_who_says_our_marks_gets_what_the_template_writes_or_a_fork(text: str) -> None:
    codec = zoo()["axolotl/command_a_tool_use"].codec()
    earlier = (user(text), *LOOP, calls(2, text=text))
    tail = (Message(role="tool", parts=(TextPart(text),), tool_call_id=f"call_{2:024x}"),)
    found = added(codec, codec.render(earlier[:-1], (BUY,)), earlier, tail, (BUY,))
    assert isinstance(found, ForkReason) or codec.template.render((*earlier, *tail), (BUY,)).endswith(
        codec.decode(found)
    )


def test_a_conversation_that_the_template_refuses_is_bridged_as_proved() -> None:
    """A call that was spelt wrong must not end its session."""
    source = "{% if messages[0].content == '/off' %}{{ raise_exception('no') }}{% endif %}" + CHATML.replace(
        "assistant\n", "assistant\n{% if '/no' in messages[0].content %}!{% endif %}"
    )
    template = ChatTemplate(source, tokens={"eos_token": "<|im_end|>"})
    codec = TemplateCodec(template, lab.qwen(), eos_ids=[lab.qwen().ids["<|im_end|>"]])
    assert codec.looks_back
    found = added(codec, array("i"), (user("/off"), assistant("a")), (NEXT,), ())
    assert isinstance(found, array)
    assert codec.decode(found) == "\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"


def test_templates_that_do_not_look_back_never_render_what_came_before() -> None:
    for name in ("trl/qwen3", "trl/glm4moe", "trl/gptoss", "trl/llama3_1"):
        codec = zoo()[name].codec()
        with patch.object(codec.prover, "_whole", side_effect=AssertionError):
            added(codec, array("i"), (HI, assistant("a")), (NEXT,), ())


SMOL = "llama.cpp/HuggingFaceTB-SmolLM3-3B"
WINDOW = 16_384
"""The small vocabularies spell Cohere's system message in 5,000 tokens."""
COHERE = "axolotl/command_a_tool_use"


async def prompts_of(name: str, script: list[str], first: list[dict[str, str]], **more: Any) -> list[str]:
    """The prompts that an engine gets, each as text, from an agent that answers what is called, last call first."""
    codec, vocab = zoo()[name].codec(), zoo()[name].vocab
    engine = ScriptedEngine(
        script,
        encode=lambda text: list(vocab.encode_whole(text)),
        decode=vocab.decode,
        eos_ids=codec.stop_ids,
        max_model_len=WINDOW,
    )
    history: list[dict[str, Any]] = [*first]
    async with gateway(engine, model=codec, max_model_len=WINDOW) as g:
        agent = await g.session()
        for _ in script:
            told = await agent.post(*history, **more)
            assert "x-sandgate-fork" not in told.headers
            message = told.json()["choices"][0]["message"]
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
                for call in reversed(message.get("tool_calls") or [])
            ]
            history += [message, *(results or [{"role": "user", "content": "and now?"}])]
    return [codec.decode(prompt.ids) for prompt in engine.prompts]


async def test_a_session_that_does_not_think_goes_on_so() -> None:
    first = [{"role": "system", "content": "/no_think"}, {"role": "user", "content": "hi"}]
    for prompt in await prompts_of(SMOL, ["hello", "fine"], first):
        assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n")


async def test_a_result_has_the_number_of_its_call() -> None:
    def acts(*numbers: int) -> str:
        made = [
            {"tool_call_id": str(n), "tool_name": "buy", "parameters": {"item": f"i{n}"}} for n in numbers
        ]
        return f"<|START_ACTION|>{json.dumps(made)}<|END_ACTION|>"

    schema = {"type": "object", "properties": {"item": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "buy", "description": "b", "parameters": schema}}]
    first = [{"role": "user", "content": "hi"}]
    *_, prompt = await prompts_of(COHERE, [acts(0), acts(1, 2), "done"], first, tools=tools)
    told = prompt.rpartition("<|START_TOOL_RESULT|>")[2].partition("<|END_TOOL_RESULT|>")[0]
    assert [(one["tool_call_id"], one["results"]["0"]) for one in json.loads(told)] == [
        ("2", '{"item": "i2"}'),
        ("1", '{"item": "i1"}'),
    ]


def test_the_list_has_templates_that_a_family_serves_only_where_that_is_so() -> None:
    assert {*FAMILY} & LOOKS_BACK <= {"trl/gemma4_v5", "trl/deepseekv3"}
