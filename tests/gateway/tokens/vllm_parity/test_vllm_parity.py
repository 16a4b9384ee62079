"""Our parse of sampled ids is vLLM's own, or the difference is one that docs/reference/vllm-parsers.md explains."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.tokens.vllm_parity import corpus
from tests.gateway.tokens.vllm_parity.differences import DIFFERENCES, Compared, Parsed
from tests.gateway.tokens.zoo import Specimen, zoo
from tests.support.vllm import engine_python

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "vllm-parsers.md"

PARSERS: dict[str, tuple[str, str | None]] = {
    "trl/qwen2_5": ("hermes", None),
    "trl/qwen3": ("hermes", "qwen3"),
    "axolotl/exaone4": ("qwen3_json", "deepseek_v3"),
    "trl/qwen3_5_think": ("qwen3_coder", "qwen3"),
    "trl/nemotron_3_nano": ("qwen3_xml", "nemotron_v3"),
    "trl/glm4moe": ("glm45", "glm45"),
    "trl/gemma4": ("gemma4", "gemma4"),
    "axolotl/jamba": ("jamba", None),
    "axolotl/mistral_v3_tekken": ("mistral", None),
    "trl/lfm2_v2": ("lfm2", None),
    "trl/llama3_1": ("llama3_json", None),
    "axolotl/llama4": ("llama4_json", None),
    "llama.cpp/Apertus-8B-Instruct": ("apertus", None),
    "llama.cpp/ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "llama.cpp/MiniMax-M2": ("minimax_m2", "minimax_m2"),
    "llama.cpp/StepFun3.5-Flash": ("step3p5", "step3p5"),
    "llama.cpp/GigaChat3.1-10B-A1.8B": ("gigachat3", None),
    "llama.cpp/deepseek-ai-DeepSeek-V4": ("deepseek_v4", None),
    "llama.cpp/ibm-granite-granite-4.0": ("granite4", None),
    "llama.cpp/inclusionai-ling-3.0-flash": ("ling3", "ling3"),
    "llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "llama.cpp/moonshotai-Kimi-K2": ("kimi_k2", None),
    "llama.cpp/poolside-Laguna-S-2.1": ("poolside_v1", "poolside_v1"),
    "vllm/tool_chat_template_deepseekr1": ("deepseek_v3", None),
    "vllm/tool_chat_template_granite": ("granite", None),
    "vllm/tool_chat_template_xlam_qwen": ("xlam", None),
    "vllm/tool_chat_template_hunyuan_a13b": ("hunyuan_a13b", "hunyuan_a13b"),
}
"""Template -> vLLM's tool parser and reasoning parser for its models."""

KWARGS: dict[str, dict[str, Any]] = {"llama.cpp/poolside-Laguna-S-2.1": {"enable_thinking": True}}
"""What a template takes for set and vLLM's parser wants to be told."""

NOT_COMPARED: dict[str, str] = {
    "openai openai_gptoss": "tests/gateway/tokens/test_harmony.py compares with the library that it uses",
    "cohere_command3 cohere_command4": "they need a package that the engine environment lacks",
    "glm47": "the class of glm45",
    "hf": "it reads a template of its own from the checkpoint",
    "deepseek_v41 dots ernie45 functiongemma hy_v3 hy_v4 inkling k2_horizon kimi_k3 llama4_pythonic longcat mimo "
    "minicpmv minimax_m3 muse_glimmer olmo3 phi4_mini_json plamo3 pythonic": "no template of the pinned packages "
    "writes such calls in a form that is read here",
    "internlm": "vLLM's parser fails at a second call",
    "minicpm5": "vLLM has no reasoning parser that takes its turns both with and without a thought",
    "deepseek_v4": "its thoughts: its template leaves out the thoughts of a history",
    "granite granite_thinking_parser holo2 step3": "thoughts: no template of the pinned packages marks them so",
    "kimi_k2": "its thoughts: the template that has them changes a list, which Jinja's sandbox refuses",
    "deepseek_v31 deepseek_v32 granite-20b-fc": "its template writes no answer behind its own generation prompt",
    "minimax_m2_append_think": "it leaves thoughts in the text",
    "deepseek_r1": "its template leaves out the thoughts of a history",
}
"""Parsers, by the reason; of a name that is compared in part, the other part."""

NEWER = frozenset({"beam", "muse", "musespark1x", "step5"})
"""Parsers of 0.33, which the engine environment's 0.32 lacks: no template of the pinned packages writes such calls."""


MORE: dict[str, tuple[str, ...]] = {
    "trl/llama3_1": ("<|python_tag|>",),
    "axolotl/llama4": ("<|python_tag|>",),
    "llama.cpp/poolside-Laguna-S-2.1": ("<assistant>",),
}
"""Tokens that the parser wants and the template does not name, or not whole."""


def _specimen(name: str) -> Specimen:
    one = zoo()[name]
    more = (token for token in MORE.get(name, ()) if token not in (*one.special, *one.plain))
    plain = [token for token in one.special if "｜tool" in token]  # as in DeepSeek's checkpoints
    special = [token for token in (*one.special, *more) if token not in plain]
    return dataclasses.replace(one, special=tuple(special), plain=(*one.plain, *plain))


def _answers(one: Specimen) -> list[corpus.Answer]:
    """All that the template can write, and the richest of them cut at every token."""
    made = list(corpus.answers(one.codec()))
    rich = [answer for name in (corpus.MIXED, corpus.ONE) for answer in made if answer.name == name]
    return [*made, *corpus.cuts(rich[0] if rich else made[-1])]


@pytest.fixture(scope="module")
def vllm_parsers(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[Compared]]:
    """The names of vLLM's parsers, and every answer as both read it. One process of the engine environment."""
    folder = tmp_path_factory.mktemp("tokenizers")
    jobs: list[dict[str, Any]] = []
    asked: list[tuple[str, corpus.Answer, Parsed]] = []
    for number, (name, (tool, reasoning)) in enumerate(PARSERS.items()):
        one = _specimen(name)
        file = folder / f"{number}.json"
        file.write_bytes(one.tokenizer)
        answers = _answers(one)
        asked += [(name, answer, ours) for answer, ours in zip(answers, _ours(one, answers), strict=True)]
        ids = [list(answer.ids) for answer in answers]
        jobs.append(
            {
                "tokenizer": str(file),
                "tool_parser": tool,
                "reasoning_parser": reasoning,
                "kwargs": KWARGS.get(name, {}),
                "answers": ids,
            }
        )
    said = _extract(jobs)
    pairs = zip(asked, said["parsed"], strict=True)
    return said["registered"], [
        Compared(name, answer, ours, _theirs(*theirs)) for (name, answer, ours), theirs in pairs
    ]


def _extract(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
        }
        for tool in corpus.TOOLS
    ]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PYTHON"))}
    done = subprocess.run(
        [engine_python(), HERE / "extract.py"],
        input=json.dumps({"tools": tools, "jobs": jobs}),
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**clean, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def _ours(one: Specimen, answers: list[corpus.Answer]) -> Iterator[Parsed]:
    codec = one.codec()
    for answer in answers:
        parser = codec.parser(answer.prompt, corpus.TOOLS)
        parser.feed(answer.ids)
        _, reply = parser.finish()
        calls = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
        yield Parsed(reply.text, reply.reasoning, calls, reply.malformed)


def _theirs(text: str, reasoning: str, calls: list[list[str]]) -> Parsed:
    return Parsed(text, reasoning, [(name, _value(arguments)) for name, arguments in calls])


def _value(arguments: str) -> Any:
    """JSON, or the text that it would have become."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@functools.cache
def _page() -> str:
    return PAGE.read_text("utf-8")


def _kind(it: Compared) -> str:
    """The kind of the difference; "" for none. Raises AssertionError for a new one."""
    if dataclasses.replace(it.ours, malformed=()) == it.theirs:
        return ""
    kind = next((kind for kind, holds in DIFFERENCES.items() if holds(it)), None)
    assert kind is not None, f"{it.template}: {it.answer.name}\nours: {it.ours}\nvLLM: {it.theirs}"
    return kind


def test_our_parse_is_vllms_or_the_difference_is_one_that_the_page_explains(
    vllm_parsers: tuple[list[str], list[Compared]],
) -> None:
    kinds = {template: Counter[str]() for template in PARSERS}
    for it in vllm_parsers[1]:
        kinds[it.template][_kind(it)] += 1
    assert not set(DIFFERENCES) - set().union(*kinds.values()), "a difference that is none any more"
    assert {template for template, found in kinds.items() if found.total() < 60} == set(), "too few answers"


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_the_page_has_a_row_for_each_kind_of_difference(kind: str) -> None:
    assert f"\n| {kind} |" in _page()


def test_every_parser_of_vllm_is_compared_or_there_is_a_reason_why_not(
    vllm_parsers: tuple[list[str], list[Compared]],
) -> None:
    compared = {f"{calls} (calls)" for calls, _ in PARSERS.values()}
    compared |= {f"{thoughts} (thoughts)" for _, thoughts in PARSERS.values() if thoughts}
    left = {name for name in vllm_parsers[0] if name not in compared}
    reasons = {name for names in NOT_COMPARED for name in names.split()}
    assert compared <= set(vllm_parsers[0])
    assert {name.split()[0] for name in left} - NEWER == reasons
