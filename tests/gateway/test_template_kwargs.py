"""`chat_template_kwargs` and `reasoning_effort`: in the prompt where the template reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unsupported
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.efforts import EFFORTS as KNOWN
from sandgate.gateway.tokens.efforts import effort_for
from sandgate.gateway.tokens.load import load_codec
from sandgate.gateway.tokens.variants import KEPT, Variants
from tests.gateway.tokens.test_load import specimen_model
from tests.gateway.tokens.zoo import zoo
from tests.support.gateway import MODEL, Running, gateway

PLAIN = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
SWITCHED = """{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- if mood -%}{{- mood -}}{%- endif -%}{%- endif -%}"""
CLOSED = "<think>\n\n</think>\n\n"
OFF: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shop's model, whose template has a switch, as Qwen3's does."""
    made = tmp_path_factory.mktemp("switched") / "model"
    shutil.copytree(MODEL, made)
    source = (made / "chat_template.jinja").read_text()
    assert PLAIN in source
    (made / "chat_template.jinja").write_text(source.replace(PLAIN, SWITCHED))
    return made


@pytest.fixture
async def g(folder: Path) -> AsyncIterator[Running]:
    answers = [f"answer {number}" for number in range(9)]
    async with gateway(answers, model=load_codec(folder, renderer="template")) as one:
        yield one


def prompts(g: Running) -> list[str]:
    return [g.core.turns.codec.decode(prompt.ids) for prompt in g.engine.prompts]


def said(number: int) -> list[dict[str, str]]:
    """The history after `number` answers."""
    out = [{"role": "user", "content": "q0"}]
    for one in range(number):
        out += [{"role": "assistant", "content": f"answer {one}"}, {"role": "user", "content": f"q{one + 1}"}]
    return out


async def test_a_variable_is_in_the_prompt_and_in_the_record(g: Running) -> None:
    agent = await g.session()
    await agent.ask(*said(0), **OFF)
    await agent.ask("another")
    first, second = prompts(g)
    assert first.endswith("assistant\n" + CLOSED)
    assert not second.endswith(CLOSED)
    told = [turn["sampling"].get("chat_template_kwargs") for turn in await g.tree(agent)]
    assert told == [{"enable_thinking": False}, None]


async def test_a_conversation_that_keeps_its_variables_is_bridged(g: Running) -> None:
    agent = await g.session()
    for number in range(3):
        await agent.ask(*said(number), **OFF)
    assert [turn["fork"] for turn in await g.tree(agent)] == [None, None, None]
    first, second, _ = prompts(g)
    assert second.startswith(first + "answer 0<|im_end|>")
    assert second.endswith(CLOSED)
    assert len(await g.finalize(agent)) == 1


async def test_other_variables_are_a_fork_that_says_so(g: Running) -> None:
    agent = await g.session()
    await agent.ask(*said(0), **OFF)
    await agent.ask(*said(1))
    assert [turn["fork"] for turn in await g.tree(agent)] == [None, "template_kwargs_changed"]
    assert CLOSED not in prompts(g)[1]


async def test_a_change_that_leaves_the_path_as_it_was_sampled_is_no_fork(g: Running) -> None:
    """Tokens decide: the switch stands in the generation prompt only, and what came before is the same."""
    agent = await g.session()
    await agent.ask(*said(0))
    await agent.ask(*said(1), **OFF)
    assert [turn["fork"] for turn in await g.tree(agent)] == [None, None]


@pytest.mark.parametrize("name", ["thinking", "messages", "tools", "add_generation_prompt", "eos_token"])
async def test_a_name_that_the_template_does_not_read_is_refused(g: Running, name: str) -> None:
    agent = await g.session()
    answer = await agent.post("hi", chat_template_kwargs={name: True})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, f"chat_template_kwargs.{name}")
    assert "it reads enable_thinking, mood" in error["message"]
    assert g.generations == 0


async def test_reasoning_effort_is_for_templates_that_read_it(g: Running) -> None:
    """SDKs send it to every model: elsewhere it is no error, and no fork."""
    agent = await g.session()
    await agent.ask(*said(0), reasoning_effort="low")
    await agent.ask(*said(1))
    turns = await g.tree(agent)
    assert [turn["fork"] for turn in turns] == [None, None]
    assert "chat_template_kwargs" not in turns[0]["sampling"]


async def test_gpt_oss_reads_reasoning_effort() -> None:
    specimen = zoo()["trl/gptoss"]
    codec = specimen.codec()
    takes = codec.template.takes()
    assert {"reasoning_effort", "model_identity"} <= takes
    assert not {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"} & takes


EFFORTS: dict[str, tuple[str, dict[str, str | None]]] = {
    "gpt-oss has three, and writes what it is told": (
        "trl/gptoss",
        {"none": None, "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high",
         "max": "high"},
    ),
    "Qwen3.8 has three others, and refuses the rest": (
        "trl/qwen3_8",
        {"none": None, "minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh",
         "max": "xhigh"},
    ),
    "DeepSeek V4 has high and more": (
        "llama.cpp/deepseek-ai-DeepSeek-V4-Flash-0731", {"low": "high", "high": "high", "xhigh": "max", "max": "max"},
    ),
    "one that looks for max alone gives all others the same": (
        "llama.cpp/deepseek-ai-DeepSeek-V4", {"low": "low", "high": "high", "max": "max"},
    ),
    "Solar has less than low": (
        "llama.cpp/upstage-Solar-Open-100B",
        {"minimal": "minimal", "low": "low", "medium": "high", "xhigh": "high", "max": "high"},
    ),
    "Command knows none": ("llama.cpp/Cohere2MoE", {"none": "none"}),
}  # fmt: skip


@pytest.mark.parametrize(("specimen", "wanted"), EFFORTS.values(), ids=EFFORTS)
def test_an_effort_is_one_that_the_template_knows(specimen: str, wanted: dict[str, str | None]) -> None:
    found = zoo()[specimen].codec()
    found.variants = Variants(found.template.takes(), lambda values: found, found.template.efforts())
    for asked, told in wanted.items():
        if told is None:
            with pytest.raises(Unsupported, match="reasoning_effort is none, which this model"):
                found.takes({"reasoning_effort": asked})
        else:
            assert found.takes({"reasoning_effort": asked}) == {"reasoning_effort": told}, asked


WORDS: dict[str, tuple[set[str], str]] = {
    "Mistral's, which refuses all but none and high": (
        {"none", "high"},
        "none high high high high high high",
    ),
    "the next above": ({"low", "high"}, "- low low high high high high"),
    "the most": ({"low", "medium"}, "- low low medium medium medium medium"),
    "none listed": (set(), "- low low medium high high high"),
    "a default, which is no list": ({"medium"}, "- low low medium high high high"),
}


@pytest.mark.parametrize(("words", "wanted"), WORDS.values(), ids=WORDS)
def test_an_effort_that_a_template_lacks_is_the_next_that_it_has(words: set[str], wanted: str) -> None:
    assert " ".join(effort_for(asked, words) or "-" for asked in KNOWN) == wanted


@pytest.mark.parametrize("word", ["default", ""])
async def test_a_word_that_leaves_the_effort_to_the_model_is_dropped_where_no_effort_is_read(
    g: Running, word: str, tmp_path: Path
) -> None:
    agent = await g.session()
    await agent.ask("hi", reasoning_effort=word)
    codec = load_codec(specimen_model(tmp_path / "m", "trl/gptoss"), renderer="template")
    async with gateway(["x"], model=codec) as reads:
        answer = await (await reads.session()).post("hi", reasoning_effort=word)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_effort")


SPELT: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("v1/chat/completions", {"messages": said(0), "reasoning_effort": "EFFORT"}),
    "responses": ("v1/responses", {"input": "q0", "reasoning": {"effort": "EFFORT"}}),
    "messages": (
        "v1/messages",
        {"max_tokens": 9, "messages": said(0), "output_config": {"effort": "EFFORT"}},
    ),
}


@pytest.mark.parametrize(("path", "body"), SPELT.values(), ids=SPELT)
async def test_all_protocols_show_the_same_effort(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    codec = load_codec(specimen_model(tmp_path / "m", "trl/gptoss"), renderer="template")
    async with gateway(["x"] * 9, model=codec) as g:
        for asked, told in {
            "low": "low",
            "medium": "medium",
            "high": "high",
            "xhigh": "high",
            "max": "high",
        }.items():
            sent = json.loads(json.dumps({"model": "shop", **body}).replace("EFFORT", asked))
            agent = await g.session()  # one alone waits for what all of them cost
            answer = await agent.http.post(path, json=sent)
            assert answer.status_code == 200, answer.text
            assert f"Reasoning: {told}\n" in prompts(g)[-1]


async def test_text_of_a_variable_spells_no_control_token(g: Running) -> None:
    agent = await g.session()
    answer = await agent.post("hi", chat_template_kwargs={"mood": "<|im_end|>"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs.mood")
    await agent.ask("hi", chat_template_kwargs={"mood": "calm"})
    assert prompts(g)[0].endswith("calm")


def test_no_more_variants_are_kept_than_that(folder: Path) -> None:
    codec = load_codec(folder, renderer="template")
    made: list[dict[str, Any]] = []

    def make(values: dict[str, Any]) -> Codec:
        made.append(values)
        return codec

    variants = Variants(frozenset({"mood"}), make)
    for number in [*range(2 * KEPT), 2 * KEPT - 1, 0]:
        assert variants.of({"mood": number}) is codec
    assert len(made) == 2 * KEPT + 1
    assert codec.variant({"mood": "x"}) is codec.variant({"mood": "x"})
    assert codec.variant({"mood": "x"}).stop_ids == codec.stop_ids
