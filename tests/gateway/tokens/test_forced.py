"""tool_choice, parallel_tool_calls, response_format: what the constraint lets through is what our parser reads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unsupported
from sandgate.gateway.conversation.messages import ResponseFormat, Tool, ToolChoice, TurnRequest
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.tokens.family_formats import FORMATS, CallFormat, Grammar
from sandgate.gateway.tokens.forced import FORMS
from sandgate.gateway.tokens.turn_form import constraint_of

ROOT = Path(__file__).resolve().parents[3]
TOLD = os.environ.get("SANDGATE_ENGINE_VENV", "")
"""Read before tests/conftest.py hides it from tests."""
FORM: dict[str, CallFormat] = {form.name: form for _, form in FORMATS}
SCHEMA = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["item", "n"],
}
TOOLS = (Tool("buy", schema=SCHEMA, strict=True), Tool("sell"))
ARGUMENTS = '{"item": "kiwi", "n": 7}'
JSON = ResponseFormat("json_object")
OBJECT = f'{{"name": "buy", "arguments": {ARGUMENTS}}}'

INVOKE = (
    '<｜DSML｜invoke name="buy">\n<｜DSML｜parameter name="item" string="true">kiwi</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
)
SAID = {
    "hermes": f"<tool_call>\n{OBJECT}\n</tool_call>",
    "qwen3-xml": "<tool_call>\n<function=buy>\n<parameter=item>\nkiwi\n</parameter>\n<parameter=n>\n7\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm": "<tool_call>buy\n<arg_key>item</arg_key>\n<arg_value>kiwi</arg_value>\n<arg_key>n</arg_key>\n"
    "<arg_value>7</arg_value>\n</tool_call>",
    "minimax-m2": '<minimax:tool_call>\n<invoke name="buy">\n<parameter name="item">kiwi</parameter>\n'
    '<parameter name="n">7</parameter>\n</invoke>\n</minimax:tool_call>',
    "kimi-k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>"
    f"{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>buy\n```json\n"
    f"{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-v3.1": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>buy<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "mistral": f"[TOOL_CALLS][{OBJECT}]",
    "mistral-v11": f"[TOOL_CALLS]buy[ARGS]{ARGUMENTS}",
    "phi4": f"<|tool_call|>[{OBJECT}]<|/tool_call|>",
    "granite": f"<|tool_call|>[{OBJECT}]",
    "llama3": "<|python_tag|>" + OBJECT.replace("arguments", "parameters"),
    "cohere": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "buy", "parameters": {ARGUMENTS}}}]<|END_ACTION|>',
    "jamba": f"<tool_calls>[{OBJECT}]</tool_calls>",
    "seed-oss": "<seed:tool_call>\n<function=buy>\n<parameter=item>kiwi</parameter>\n<parameter=n>7</parameter>\n"
    "</function>\n</seed:tool_call>",
    "nemotron-v2": f"<TOOLCALL>[{OBJECT}]</TOOLCALL>",
    "apertus": f'<|tools_prefix|>[{{"buy": {ARGUMENTS}}}]<|tools_suffix|>',
    "deepseek-v3.2": f"<｜DSML｜function_calls>\n{INVOKE}</｜DSML｜function_calls>",
    "deepseek-v4": f"<｜DSML｜tool_calls>\n{INVOKE}</｜DSML｜tool_calls>",
    "internlm2": f"<|action_start|><|plugin|>\n{OBJECT}<|action_end|>",
    "gigachat3": f"<|function_call|>{OBJECT}",
    "granite-20b-fc": f"<function_call> {OBJECT}",
    "functionary-v3.1": f"<function=buy>{ARGUMENTS}</function>",
}
CHANNELS = f"<|channel|>commentary to=functions.buy <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
BARE = OBJECT.replace("arguments", "parameters")
BARES = {"bare {": BARE, "bare [": f"[{OBJECT}]"}
"""Without a marker."""
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
GEMMA = '<|tool_call>call:buy{item:<|"|>kiwi<|"|>,n:7}<tool_call|>'
LFM2 = '<|tool_call_start|>[buy(item="kiwi", n=7)]<|tool_call_end|>'
MINICPM = '<function name="buy"><param name="item">kiwi</param><param name="n">7</param></function>'
LITERALS = {"gemma4", "lfm2", "minicpm5"}
"""Arguments that are no JSON: there is no constraint for them."""


THINK = ("<think>", "</think>")


def grammar_of(name: str, *, thinks: bool = False) -> Grammar:
    """The family's, which may think before it answers."""
    if name == "harmony":
        return Grammar(harmony=True)
    think = THINK if thinks else None
    if name in BARES:
        return Grammar(FORM["llama3"] if name == "bare {" else None, think, bare=name[-1])
    return Grammar(FORM[name], think)


def made(grammar: Grammar, *, reasoning: bool = False, **asked: Any) -> dict[str, Any] | None:
    """The constraint of a request with TOOLS."""
    request = TurnRequest(**{"model": "m", "messages": (), "tools": TOOLS, **asked})
    return constraint_of(grammar, request, lambda: reasoning)


def tag(name: str, mode: str, *, reasoning: bool | None = None, **asked: Any) -> str:
    """The constraint; with `reasoning`, of a family that thinks."""
    choice = ToolChoice("named", "buy") if mode == "named" else ToolChoice(mode)  # type: ignore[arg-type]
    grammar = grammar_of(name, thinks=reasoning is not None)
    one = made(grammar, tool_choice=choice, reasoning=bool(reasoning), **asked)
    assert one is not None
    assert list(one) == ["structural_tag"]
    text: str = one["structural_tag"]
    return text


def test_every_format_can_be_forced_or_is_known_not_to_be() -> None:
    assert FORMS.keys() - {*BARES, "harmony"} == FORM.keys() - LITERALS == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_our_parser_reads_what_the_constraint_is_for(name: str) -> None:
    form, body = FORM[name], SAID[name]
    body = body.removeprefix(form.open)
    found = form.read(body.removesuffix(form.close) if form.close else body, TOOLS)
    assert found is not None
    (call,) = found
    assert isinstance(call, ReplyCall)
    assert call.name == "buy"
    assert json.loads(call.arguments) == json.loads(ARGUMENTS)


REFUSED: dict[str, tuple[Grammar, dict[str, Any], str]] = {
    "a tool that is not there cannot be named": (
        Grammar(FORM["hermes"]), {"tool_choice": ToolChoice("named", "rob")}, "tool_choice"),
    "a family without a known form cannot be made to call": (
        Grammar(), {"tool_choice": ToolChoice("required")}, "tool_choice"),
    "Gemma's notation is no JSON: nothing makes it call": (
        Grammar(FORM["gemma4"]), {"tool_choice": ToolChoice("required")}, "tool_choice"),
    "a block of LFM2 holds any number of calls": (
        Grammar(FORM["lfm2"]), {"parallel_tool_calls": False}, "parallel_tool_calls"),
    "JSON or calls, of a family whose calls nobody knows": (Grammar(), {"response_format": JSON}, "response_format"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_enforced_is_refused(case: str) -> None:
    grammar, asked, field = REFUSED[case]
    with pytest.raises(Unsupported) as refused:
        made(grammar, **asked)
    assert refused.value.field == field


PLAIN: dict[str, tuple[Grammar, dict[str, Any], dict[str, Any] | None]] = {
    "auto forces nothing": (Grammar(FORM["hermes"]), {}, None),
    "a family that thinks is left free, too": (Grammar(FORM["hermes"], THINK), {}, None),
    "none without tools": (Grammar(FORM["hermes"]), {"tools": (), "tool_choice": ToolChoice("none")}, None),
    "one call at most, without tools": (Grammar(FORM["hermes"]), {"tools": (), "parallel_tool_calls": False}, None),
    "a call of gpt-oss ends its turn: there is only ever one": (
        Grammar(harmony=True), {"parallel_tool_calls": False}, None),
    "JSON of a model that does not think is vLLM's own kind": (
        Grammar(FORM["hermes"]), {"tools": (), "response_format": JSON}, {"json_object": True}),
    "a schema, too": (
        Grammar(), {"tools": (), "response_format": ResponseFormat("json_schema", SCHEMA)}, {"json": SCHEMA}),
    "tools that must not be called are no reason for more": (
        Grammar(FORM["hermes"]), {"tool_choice": ToolChoice("none"), "response_format": JSON}, {"json_object": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAIN)
def test_no_more_is_forced_than_was_asked_for(case: str) -> None:
    grammar, asked, constraint = PLAIN[case]
    assert made(grammar, **asked) == constraint


def test_a_schema_binds_where_the_tool_is_strict() -> None:
    loose = tuple(Tool(tool.name, schema=tool.schema) for tool in TOOLS)
    assert "properties" not in tag("hermes", "required", tools=loose)
    assert "properties" in tag("hermes", "required")


CHECK = """
import json, sys, xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts
cases = json.load(sys.stdin)
print(json.dumps([accepts(xgrammar.Grammar.from_structural_tag(tag), text) for tag, text in cases]))
"""


@pytest.fixture(scope="module")
def engine_python() -> Path:
    """The engine's interpreter: it has the grammar library that vLLM uses."""
    venv = (
        TOLD
        or subprocess.run(
            [ROOT / "scripts" / "engine-env.sh"], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    return Path(venv) / "bin" / "python"


Case = tuple[str, str, str, bool]
"""Family, constraint, text, whether the constraint lets it through."""


def _wrong(engine_python: Path, wanted: list[Case]) -> list[tuple[str, str, bool]]:
    """The cases in which the engine's grammar disagrees."""
    cases = json.dumps([(grammar, text) for _, grammar, text, _ in wanted])
    done = subprocess.run(
        [engine_python, "-c", CHECK], input=cases, capture_output=True, text=True, check=True, timeout=300
    )
    found = json.loads(done.stdout)
    return [(name, text, ok) for (name, _, text, ok), was in zip(wanted, found, strict=True) if ok != was]


@pytest.mark.vllm
def test_the_engines_grammar_lets_calls_through_and_nothing_else(engine_python: Path) -> None:
    wanted: list[Case] = []
    for name, said in {**SAID, **BARES}.items():
        for mode in ("required", "named"):
            wanted += [
                (name, tag(name, mode), said, True),
                (name, tag(name, mode), "I had rather talk.", False),
                (name, tag(name, mode), "", False),
                (name, tag(name, mode), said.replace("buy", "rob"), False),
                (name, tag(name, mode), said + " Done.", False),
            ]
        if name not in BARES:
            thought = f"<think>\nHm.\n</think>\n\n{said}"
            wanted.append((name, tag(name, "required", reasoning=False), thought, True))
        wanted.append((name, tag(name, "required", reasoning=True), f"Hm.\n</think>\n\n{said}", True))
        wanted.append((name, tag(name, "required", reasoning=True), said, False))
    for mode in ("required", "named"):
        forced = tag("harmony", mode)
        wanted += [("harmony", forced, text, True) for text in (CHANNELS, ANALYSIS + CHANNELS)]
        others = ("I had rather talk.", "", CHANNELS.replace("buy", "rob"), CHANNELS + "Done.", ANALYSIS)
        wanted += [("harmony", forced, text, False) for text in others]
    assert not _wrong(engine_python, wanted)


OF_ALL = {**SAID, "gemma4": GEMMA, "lfm2": LFM2, "minicpm5": MINICPM, **BARES}
TWO = {
    "hermes": "\n".join([SAID["hermes"]] * 2),
    "qwen3-xml": "\n".join([SAID["qwen3-xml"]] * 2),
    "glm": "\n".join([SAID["glm"]] * 2),
    "kimi-k2": SAID["kimi-k2"].replace("<|tool_calls_section_end|>", "")
    + SAID["kimi-k2"].replace("<|tool_calls_section_begin|>", "").replace(":0", ":1"),
    "mistral": f"[TOOL_CALLS][{OBJECT}, {OBJECT}]",
    "mistral-v11": SAID["mistral-v11"] * 2,
    "phi4": f"<|tool_call|>[{OBJECT}, {OBJECT}]<|/tool_call|>",
    "granite": f"<|tool_call|>[{OBJECT}, {OBJECT}]",
    "jamba": f"<tool_calls>[{OBJECT}, {OBJECT}]</tool_calls>",
    "seed-oss": "\n".join([SAID["seed-oss"]] * 2),
    "nemotron-v2": f"<TOOLCALL>[{OBJECT}, {OBJECT}]</TOOLCALL>",
    "apertus": f'<|tools_prefix|>[{{"buy": {ARGUMENTS}}}, {{"buy": {ARGUMENTS}}}]<|tools_suffix|>',
    "llama3": "; ".join([SAID["llama3"]] * 2),
    "bare {": f"{BARE}; {BARE}",
    "bare [": f"[{OBJECT}, {OBJECT}]",
    "deepseek-v3.2": SAID["deepseek-v3.2"].replace(INVOKE, INVOKE * 2),
    "internlm2": SAID["internlm2"] * 2,
    "granite-20b-fc": SAID["granite-20b-fc"] * 2,
    "functionary-v3.1": SAID["functionary-v3.1"] * 2,
    "minicpm5": MINICPM * 2,
    "gemma4": GEMMA * 2,
}
"""Two calls in one turn."""


@pytest.mark.vllm
@pytest.mark.parametrize("thinks", [False, True], ids=["does not think", "thinks"])
def test_none_forbids_calls_and_parallel_false_a_second_one(engine_python: Path, *, thinks: bool) -> None:
    """Text is free as ever: before a call, and without one."""
    wanted: list[Case] = []
    before = "Hm.\n</think>\n\n" if thinks else ""
    for name, said in OF_ALL.items():
        opened = True if thinks else None
        none = tag(name, "none", reasoning=opened)
        wanted += [(name, none, before + text, True) for text in ("", "I had rather talk. {1}", '{"a": 1}')]
        wanted += [(name, none, before + text, False) for text in (said, "So:\n" + said)]
        if name == "lfm2":
            continue
        one = tag(name, "auto", reasoning=opened, parallel_tool_calls=False)
        wanted += [(name, one, before + text, True) for text in ("", "I had rather talk. {1}", said)]
        wanted.append((name, one, before + "So:\n" + said, name not in BARES))
        if name in TWO:
            wanted.append((name, one, before + TWO[name], False))
        if thinks:
            wanted += [(name, none, "Hm.", False), (name, one, "Hm.", False)]
    final = "<|channel|>final<|message|>"
    none = tag("harmony", "none")
    wanted += [("harmony", none, text, True) for text in (final + "Hi.", ANALYSIS + final + "Hi.")]
    wanted += [("harmony", none, text, False) for text in (CHANNELS, ANALYSIS + CHANNELS, "Hi.")]
    assert not _wrong(engine_python, wanted)


@pytest.mark.vllm
def test_json_stands_behind_the_thought_and_beside_tools_calls_remain(engine_python: Path) -> None:
    wanted: list[Case] = []
    schema = ResponseFormat("json_schema", SCHEMA)
    for name, said in OF_ALL.items():
        for form in (JSON, schema):
            beside = tag(name, "auto", response_format=form)
            alone = tag(name, "none", reasoning=True, response_format=form)
            wanted += [
                (name, beside, ARGUMENTS, True),
                (name, beside, said, True),
                (name, beside, "I had rather talk.", False),
                (name, alone, f"Hm.\n</think>\n\n{ARGUMENTS}", True),
                (name, alone, ARGUMENTS, False),
                (name, alone, "Hm.\n</think>\n\nI had rather talk.", False),
                (name, alone, f"Hm.\n</think>\n\n{ARGUMENTS} Done.", False),
            ]
        other = '{"other": 1}'
        wanted.append((name, tag(name, "auto", response_format=schema), other, False))
        if name not in BARES:
            maybe = tag(name, "auto", reasoning=False, response_format=schema)
            wanted += [
                (name, maybe, text, True) for text in (ARGUMENTS, said, f"<think>Hm.</think>{ARGUMENTS}")
            ]
    final = "<|channel|>final<|message|>"
    both = tag("harmony", "auto", response_format=schema)
    wanted += [
        ("harmony", both, text, True) for text in (final + ARGUMENTS, ANALYSIS + final + ARGUMENTS, CHANNELS)
    ]
    wanted += [("harmony", both, text, False) for text in (ARGUMENTS, final + "Hi.")]
    assert not _wrong(engine_python, wanted)
