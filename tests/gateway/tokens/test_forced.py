"""tool_choice required and named: what the constraint lets through is a call that our parser reads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sandgate.gateway.conversation.messages import Tool, ToolChoice
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.tokens.forced import FORMS, structured_outputs
from sandgate.gateway.tokens.grammar import FORMATS, CallFormat, Grammar

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
OBJECT = f'{{"name": "buy", "arguments": {ARGUMENTS}}}'

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
    "llama3": OBJECT.replace("arguments", "parameters"),
    "cohere": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "buy", "parameters": {ARGUMENTS}}}]<|END_ACTION|>',
    "jamba": f"<tool_calls>[{OBJECT}]</tool_calls>",
}
CHANNELS = f"<|channel|>commentary to=functions.buy <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
LITERALS = {"gemma4", "lfm2"}
"""Arguments that are no JSON: there is no constraint for them."""


def tag(name: str, mode: str, *, reasoning: bool | None = None) -> str:
    """The constraint; with `reasoning`, of a family that thinks."""
    think = None if reasoning is None else ("<think>", "</think>")
    grammar = Grammar(harmony=True) if name == "harmony" else Grammar(FORM[name], think)
    choice = ToolChoice("named", "buy") if mode == "named" else ToolChoice("required")
    made = structured_outputs(grammar, TOOLS, choice, reasoning=bool(reasoning))
    assert made is not None
    assert list(made) == ["structural_tag"]
    text: str = made["structural_tag"]
    return text


def test_every_format_can_be_forced_or_is_known_not_to_be() -> None:
    assert FORMS.keys() - {"bare", "harmony"} == FORM.keys() - LITERALS == SAID.keys()


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


NONE = {
    "auto forces nothing": (Grammar(FORM["hermes"]), ToolChoice("auto")),
    "a tool that is not there cannot be named": (Grammar(FORM["hermes"]), ToolChoice("named", "rob")),
    "a family without a known form": (Grammar(), ToolChoice("required")),
}


@pytest.mark.parametrize("name", NONE)
def test_no_constraint(name: str) -> None:
    grammar, choice = NONE[name]
    assert structured_outputs(grammar, TOOLS, choice, reasoning=False) is None


def test_a_schema_binds_where_the_tool_is_strict() -> None:
    loose = tuple(Tool(tool.name, schema=tool.schema) for tool in TOOLS)
    made = structured_outputs(Grammar(FORM["hermes"]), loose, ToolChoice("required"), reasoning=False)
    assert made is not None
    assert '"kiwi"' not in made["structural_tag"]
    assert "properties" not in made["structural_tag"]
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


@pytest.mark.vllm
def test_the_engines_grammar_lets_calls_through_and_nothing_else(engine_python: Path) -> None:
    wanted: list[tuple[str, str, str, bool]] = []
    for name, said in SAID.items():
        for mode in ("required", "named"):
            wanted += [
                (name, tag(name, mode), said, True),
                (name, tag(name, mode), "I had rather talk.", False),
            ]
            wanted += [
                (name, tag(name, mode), "", False),
                (name, tag(name, mode), said.replace("buy", "rob"), False),
            ]
            wanted.append((name, tag(name, mode), said + " Done.", False))
        if name != "llama3":
            wanted.append(
                (name, tag(name, "required", reasoning=False), f"<think>\nHm.\n</think>\n\n{said}", True)
            )
        wanted.append((name, tag(name, "required", reasoning=True), f"Hm.\n</think>\n\n{said}", True))
        wanted.append((name, tag(name, "required", reasoning=True), said, False))
    for mode in ("required", "named"):
        forced = tag("harmony", mode)
        thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        wanted += [("harmony", forced, text, True) for text in (CHANNELS, thought + CHANNELS)]
        wrong_ones = ("I had rather talk.", "", CHANNELS.replace("buy", "rob"), CHANNELS + "Done.", thought)
        wanted += [("harmony", forced, text, False) for text in wrong_ones]
    cases = json.dumps([(grammar, text) for _, grammar, text, _ in wanted])
    done = subprocess.run(
        [engine_python, "-c", CHECK], input=cases, capture_output=True, text=True, check=True, timeout=110
    )
    wrong = [
        (name, text, ok)
        for (name, _, text, ok), found in zip(wanted, json.loads(done.stdout), strict=True)
        if ok != found
    ]
    assert not wrong
