"""Tool calls in each family's own form, as parts of vLLM's structural tags. (pure)

The forms are xgrammar's (vLLM 0.32, `vllm/tool_parsers/structural_tag_registry.py`). Arguments are held to the tool's
schema where the tool says `strict`, or where the family writes them as tags and so needs their names; otherwise to any
JSON object, as the engine does for its own clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.tokens.family_formats import Grammar

Format = dict[str, Any]
Builder = Callable[[Sequence[Tool], bool], Format]
"""Tools, and whether only one call may be made -> the calls."""


def calls_form(grammar: Grammar, tools: Sequence[Tool], *, one: bool) -> Format | None:
    """One or more calls of `tools` and nothing else (`one`: at most one); None if the family has no such form."""
    if grammar.harmony or grammar.bare:
        build: Builder | None = FORMS["harmony" if grammar.harmony else f"bare {grammar.bare}"]
    else:
        build = FORMS.get(grammar.calls.name) if grammar.calls is not None else None
    return build(tools, one) if build is not None else None


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _some(tags: list[Format], *, one: bool, separator: str = "") -> Format:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": one,
    }


def _json(tool: Tool) -> Format:
    schema = tool.schema if tool.strict and tool.schema else {"type": "object"}
    return {"type": "json_schema", "json_schema": schema}


def _tags_of(tool: Tool, style: str) -> Format:
    return {"type": "json_schema", "json_schema": tool.schema or {"type": "object"}, "style": style}


def _object(tool: Tool, key: str = "arguments") -> tuple[str, Format, str]:
    return f'{{"name": {json.dumps(tool.name)}, "{key}": ', _json(tool), "}"


def _hermes(tools: Sequence[Tool], one: bool) -> Format:
    tags = []
    for tool in tools:
        begin, content, end = _object(tool)
        tags.append(_tag("<tool_call>\n" + begin, content, end + "\n</tool_call>"))
    return _some(tags, one=one, separator="\n")


def _xml(name: str) -> Builder:
    def build(tools: Sequence[Tool], one: bool) -> Format:
        tags = [
            _tag(
                f"<{name}>\n<function={tool.name}>\n",
                _tags_of(tool, "qwen_xml"),
                f"\n</function>\n</{name}>",
            )
            for tool in tools
        ]
        return _some(tags, one=one, separator="\n")

    return build


def _glm(tools: Sequence[Tool], one: bool) -> Format:
    tags = [_tag(f"<tool_call>{tool.name}\n", _tags_of(tool, "glm_xml"), "</tool_call>") for tool in tools]
    return _some(tags, one=one, separator="\n")


def _minimax(tools: Sequence[Tool], one: bool) -> Format:
    tags = [
        _tag(f'<invoke name="{tool.name}">\n', _tags_of(tool, "minimax_xml"), "</invoke>\n") for tool in tools
    ]
    return _tag("<minimax:tool_call>\n", _some(tags, one=one), "</minimax:tool_call>")


def _dsml(name: str) -> Builder:
    def build(tools: Sequence[Tool], one: bool) -> Format:
        tags = [
            _tag(
                f'<｜DSML｜invoke name="{tool.name}">\n',
                _tags_of(tool, "deepseek_xml"),
                "</｜DSML｜invoke>\n",
            )
            for tool in tools
        ]
        return _tag(f"<｜DSML｜{name}>\n", _some(tags, one=one), f"</｜DSML｜{name}>")

    return build


def _objects(begin: str, end: str = "") -> Builder:
    """One object a tag."""

    def build(tools: Sequence[Tool], one: bool) -> Format:
        tags = []
        for tool in tools:
            head, content, tail = _object(tool)
            tags.append(_tag(begin + head, content, tail + end))
        return _some(tags, one=one)

    return build


def _functionary(tools: Sequence[Tool], one: bool) -> Format:
    return _some([_tag(f"<function={tool.name}>", _json(tool), "</function>") for tool in tools], one=one)


def _kimi(tools: Sequence[Tool], one: bool) -> Format:
    number = {"type": "regex", "pattern": r"\d+"}
    tags = [
        _tag(
            f"<|tool_call_begin|>functions.{tool.name}:",
            _sequence(number, _text("<|tool_call_argument_begin|>"), _json(tool)),
            "<|tool_call_end|>",
        )
        for tool in tools
    ]
    return _tag("<|tool_calls_section_begin|>", _some(tags, one=one), "<|tool_calls_section_end|>")


def _deepseek(tools: Sequence[Tool], one: bool) -> Format:
    tags = [
        _tag(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{tool.name}\n```json\n",
            _json(tool),
            "\n```<｜tool▁call▁end｜>",
        )
        for tool in tools
    ]
    return _tag("<｜tool▁calls▁begin｜>", _some(tags, one=one, separator="\n"), "<｜tool▁calls▁end｜>")


def _deepseek_v31(tools: Sequence[Tool], one: bool) -> Format:
    tags = [
        _tag(f"<｜tool▁call▁begin｜>{tool.name}<｜tool▁sep｜>", _json(tool), "<｜tool▁call▁end｜>")
        for tool in tools
    ]
    return _tag("<｜tool▁calls▁begin｜>", _some(tags, one=one), "<｜tool▁calls▁end｜>")


def _array(begin: str, end: str = "") -> Builder:
    def build(tools: Sequence[Tool], one: bool) -> Format:
        tags = [_tag(*_object(tool)) for tool in tools]
        return _tag(begin + "[", _some(tags, one=one, separator=", "), "]" + end)

    return build


def _apertus(tools: Sequence[Tool], one: bool) -> Format:
    tags = [_tag(f"{{{json.dumps(tool.name)}: ", _json(tool), "}") for tool in tools]
    return _tag("<|tools_prefix|>[", _some(tags, one=one, separator=", "), "]<|tools_suffix|>")


def _cohere(tools: Sequence[Tool], one: bool) -> Format:
    tags = []
    for tool in tools:
        number = {"type": "regex", "pattern": r"\d+"}
        named = f'", "tool_name": {json.dumps(tool.name)}, "parameters": '
        tags.append(_tag('{"tool_call_id": "', _sequence(number, _text(named), _json(tool)), "}"))
    return _tag("<|START_ACTION|>[", _some(tags, one=one, separator=", "), "]<|END_ACTION|>")


def _mistral_v11(tools: Sequence[Tool], one: bool) -> Format:
    tags = [_tag(f"[TOOL_CALLS]{tool.name}[ARGS]", _json(tool), "") for tool in tools]
    return _some(tags, one=one)


def _harmony(tools: Sequence[Tool], one: bool) -> Format:
    # One call, which ends the turn: `<|call|>` is a stop token.
    tags = [
        _tag(
            f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>",
            _json(tool),
            "<|call|>",
        )
        for tool in tools
    ]
    return _some(tags, one=True)


def _llama(begin: str) -> Builder:
    def build(tools: Sequence[Tool], one: bool) -> Format:
        # One call: Llama 3 writes one object, and its templates refuse more.
        calls = _some([_tag(*_object(tool, "parameters")) for tool in tools], one=True)
        return _sequence(_text(begin), calls) if begin else calls

    return build


FORMS: dict[str, Builder] = {
    "hermes": _hermes,
    "qwen3-xml": _xml("tool_call"),
    "seed-oss": _xml("seed:tool_call"),
    "nemotron-v2": _array("<TOOLCALL>", "</TOOLCALL>"),
    "apertus": _apertus,
    "glm": _glm,
    "minimax-m2": _minimax,
    "kimi-k2": _kimi,
    "deepseek": _deepseek,
    "deepseek-v3.1": _deepseek_v31,
    "mistral": _array("[TOOL_CALLS]"),
    "mistral-v11": _mistral_v11,
    "phi4": _array("<|tool_call|>", "<|/tool_call|>"),
    "granite": _array("<|tool_call|>"),
    "deepseek-v3.2": _dsml("function_calls"),
    "deepseek-v4": _dsml("tool_calls"),
    "internlm2": _objects("<|action_start|><|plugin|>\n", "<|action_end|>"),
    "gigachat3": _objects("<|function_call|>"),
    "granite-20b-fc": _objects("<function_call> "),
    "functionary-v3.1": _functionary,
    "cohere": _cohere,
    "jamba": _array("<tool_calls>", "</tool_calls>"),
    "llama3": _llama("<|python_tag|>"),
    "bare {": _llama(""),
    "bare [": _array(""),
    "harmony": _harmony,
}
"""By the name of the family's `CallFormat`. Gemma's notation, Python's calls and MiniCPM's tags are no JSON, and
xgrammar has no style for them: `required` and a named function are refused there."""
