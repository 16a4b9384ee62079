"""Bodies of tool calls in tags that name the function, or its arguments: DeepSeek V3.2, MiniCPM5, Functionary. (pure)

Readers as in `tool_calls`: body and tools in, calls out, None where nothing of the body is a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.tokens.tool_calls import Found, each, json_call, typed_value, types_of

_NAME = r"([^\"<>\n]+)"
_DSML = "｜DSML｜"
_DSML_CALL = re.compile(rf'\s*<{_DSML}invoke name="{_NAME}">(?>(.*?)</{_DSML}invoke>)\s*', re.DOTALL)
_DSML_ARGUMENT = re.compile(
    rf'\s*<{_DSML}parameter name="{_NAME}" string="(true|false)">(?>(.*?)</{_DSML}parameter>)\s*', re.DOTALL
)


def dsml(body: str, tools: Sequence[Tool]) -> Found:
    """DeepSeek V3.2, V4: any number of `<｜DSML｜invoke name="f"><｜DSML｜parameter name="p" string="true">...`.

    A value under string="false" is JSON."""
    return each(_DSML_CALL, body, lambda match: _dsml_arguments(match[1], match[2]))


_PARAM = re.compile(rf'\s*<param name="{_NAME}">')
_CDATA, _CDATA_END, _PARAM_END = "<![CDATA[", "]]></param>", "</param>"


def minicpm(body: str, tools: Sequence[Tool]) -> Found:
    """MiniCPM5: `f"><param name="p">value</param>...`, behind `<function name="`; a value in CDATA is a text.

    In time linear in the body: a CDATA is looked for only where one ends behind it."""
    name, separator, text = body.partition('">')
    if not separator or not re.fullmatch(_NAME, name):
        return None
    types = types_of(name, tools)
    last_cdata = text.rfind(_CDATA_END)
    found: dict[str, Any] = {}
    at = 0
    while head := _PARAM.match(text, at):
        start = head.end()
        verbatim = start < last_cdata and text.startswith(_CDATA, start)
        start += len(_CDATA) if verbatim else 0
        closing = _CDATA_END if verbatim else _PARAM_END
        end = text.find(closing, start)
        if end < 0:
            return None
        value = text[start:end]
        found[head[1]] = value if verbatim else typed_value(value, types(head[1]))
        at = end + len(closing)
    return None if text[at:].strip() else [_call(name, found)]


def _dsml_arguments(name: str, text: str) -> ReplyCall | None:
    """The call, if the text is arguments back to back and nothing else."""
    found: dict[str, Any] = {}
    at = 0
    while match := _DSML_ARGUMENT.match(text, at):
        found[match[1]] = match[3] if match[2] == "true" else typed_value(match[3], frozenset())
        at = match.end()
    return None if text[at:].strip() else _call(name, found)


def _call(name: str, arguments: dict[str, Any]) -> ReplyCall:
    return ReplyCall(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))


def functionary(body: str, tools: Sequence[Tool]) -> Found:
    """Functionary v3.1: `f>{"p": "value"}`, behind `<function=`."""
    name, separator, arguments = body.partition(">")
    if not separator or not re.fullmatch(_NAME, name):
        return None
    return json_call(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}', tools)


def internlm(body: str, tools: Sequence[Tool]) -> Found:
    """InternLM 2: `<|plugin|>` and one object."""
    return json_call(body.strip().removeprefix("<|plugin|>"), tools)
