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
from sandgate.gateway.tokens.tool_calls import Found, each, json_call, properties, typed_value

_NAME = r"([^\"<>\n]+)"
_DSML = "｜DSML｜"
_DSML_CALL = re.compile(rf'\s*<{_DSML}invoke name="{_NAME}">(?>(.*?)</{_DSML}invoke>)\s*', re.DOTALL)
_DSML_ARGUMENT = re.compile(
    rf'\s*<{_DSML}parameter name="{_NAME}" string="(true|false)">(?>(.*?)</{_DSML}parameter>)\s*', re.DOTALL
)


def dsml(body: str, tools: Sequence[Tool]) -> Found:
    """DeepSeek V3.2, V4: any number of `<｜DSML｜invoke name="f"><｜DSML｜parameter name="p" string="true">...`.

    A value under string="false" is JSON."""
    return each(_DSML_CALL, body, lambda match: _arguments(match[1], _DSML_ARGUMENT, match[2], {}))


_PARAM = re.compile(
    rf'\s*<param name="{_NAME}">(?:()<!\[CDATA\[(?>(.*?)\]\]>)</param>|(?>(.*?)</param>))\s*', re.DOTALL
)


def minicpm(body: str, tools: Sequence[Tool]) -> Found:
    """MiniCPM5: `f"><param name="p">value</param>...`, behind `<function name="`; a value in CDATA is a text."""
    name, separator, rest = body.partition('">')
    declared = properties(name, tools)
    call = _arguments(name, _PARAM, rest, declared) if separator and re.fullmatch(_NAME, name) else None
    return None if call is None else [call]


def _arguments(name: str, pattern: re.Pattern[str], text: str, declared: dict[str, Any]) -> ReplyCall | None:
    """The call, if the text is matches back to back and nothing else."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            if text[at:].strip():
                return None
            break
        found[match[1]] = _value(match, declared)
        at = match.end()
    return ReplyCall(name, json.dumps(found, ensure_ascii=False, separators=(",", ":")))


def _value(match: re.Match[str], declared: dict[str, Any]) -> Any:
    if match.re is _DSML_ARGUMENT:
        return match[3] if match[2] == "true" else typed_value(match[3], None)
    return match[3] if match[2] is not None else typed_value(match[4], declared.get(match[1]))


def functionary(body: str, tools: Sequence[Tool]) -> Found:
    """Functionary v3.1: `f>{"p": "value"}`, behind `<function=`."""
    name, separator, arguments = body.partition(">")
    if not separator or not re.fullmatch(_NAME, name):
        return None
    return json_call(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}', tools)


def internlm(body: str, tools: Sequence[Tool]) -> Found:
    """InternLM 2: `<|plugin|>` and one object."""
    return json_call(body.strip().removeprefix("<|plugin|>"), tools)
