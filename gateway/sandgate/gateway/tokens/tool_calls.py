"""Parsers of tool calls for each family: the text between its markers becomes calls. (pure)

Each reader gets the whole body and gives, in order, a ReplyCall or, for a call that does not parse, its raw text;
None says that nothing of the body is a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.tokens.jsonslice import ends, members, sayable, skip_space
from sandgate.gateway.tokens.schema_types import STRING, declared_types, fits

Found = list[ReplyCall | str] | None
Reader = Callable[[str, Sequence[Tool]], Found]

_ARGUMENT_KEYS = ("arguments", "parameters")
"""Hermes, Mistral and Kimi say `arguments`, Llama says `parameters`; models mix them up."""


_ID = re.compile(r"[\w.:-]{1,64}")
"""A sampled call id that is kept. Another is no id, and stands for nothing."""


def id_of(text: Any) -> str:
    """A call's id as sampled; "" if it is none."""
    return text if isinstance(text, str) and _ID.fullmatch(text) else ""


def one_json_call(text: str, at: int = 0, key_of_name: str = "name") -> tuple[ReplyCall, int]:
    """The call object at `at`; its arguments are the raw slice of the text. Raises ValueError."""
    entries, end = members(text, at)
    name, _ = entries.get(key_of_name, (None, ""))
    if not isinstance(name, str) or not name or not sayable(name):
        raise ValueError("no name")
    for key in _ARGUMENT_KEYS:
        if key in entries:
            value, raw = entries[key]
            if not isinstance(value, dict):
                raise ValueError(f"{key} is not an object")
            said, _ = entries.get("id", (None, ""))
            return ReplyCall(name, raw, id_of(said)), end
    raise ValueError("no arguments")


def json_call(body: str, tools: Sequence[Tool]) -> Found:
    """Hermes, Qwen: one object, nothing else."""
    try:
        call, end = one_json_call(body)
    except ValueError:
        return None
    return [call] if ends(body, end) else None


def json_calls(body: str, tools: Sequence[Tool], key_of_name: str = "name") -> Found:
    """Mistral up to v3, Granite, Phi, Llama, Jamba: an array of objects, or objects in a row (`;` or `,` between)."""
    index = skip_space(body, 0)
    in_array = body[index : index + 1] == "["
    index = skip_space(body, index + 1) if in_array else index
    calls: list[ReplyCall | str] = []
    while index < len(body) and body[index] != "]":
        try:
            call, index = one_json_call(body, index, key_of_name)
        except ValueError:
            return None
        calls.append(call)
        index = skip_space(body, index)
        if body[index : index + 1] in {",", ";"}:
            index = skip_space(body, index + 1)
    if in_array:
        index += 1
    return calls if calls and ends(body, index) and (not in_array or body[index - 1] == "]") else None


def cohere(body: str, tools: Sequence[Tool]) -> Found:
    """Command R7B, Command A: `[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]`."""
    return json_calls(body, tools, "tool_name")


def named_objects(body: str, tools: Sequence[Tool]) -> Found:
    """Apertus: `[{"name of a function": {its arguments}}, ...]`."""
    calls: list[ReplyCall | str] = []
    index = skip_space(body, 0)
    if body[index : index + 1] != "[":
        return None
    index = skip_space(body, index + 1)
    while body[index : index + 1] == "{":
        try:
            entries, index = members(body, index)
        except ValueError:
            return None
        for name, (value, raw) in entries.items():
            if not isinstance(value, dict) or not name or not sayable(name):
                return None
            calls.append(ReplyCall(name, raw))
        index = skip_space(body, index)
        if body[index : index + 1] == ",":
            index = skip_space(body, index + 1)
    return calls if calls and body[index : index + 1] == "]" and ends(body, index + 1) else None


def bare_calls(body: str, tools: Sequence[Tool]) -> Found:
    """Llama 3 without its tag: JSON calls of declared tools; any other JSON is an answer."""
    calls = json_calls(body, tools)
    names = {tool.name for tool in tools}
    return calls if calls and all(isinstance(c, ReplyCall) and c.name in names for c in calls) else None


def mistral(body: str, tools: Sequence[Tool]) -> Found:
    """`[{...}]` (v3), or `name[ARGS]{...}` / `name{...}` (v11 on)."""
    if skip_space(body, 0) < len(body) and body[skip_space(body, 0)] in "[{":
        return json_calls(body, tools)
    head, brace, _ = body.partition("{")
    if not brace:
        return None
    index = len(head)
    name, _, said = head.split("[ARGS]")[0].partition("[CALL_ID]")
    name = name.strip()
    try:
        _, end = members(body, index)
    except ValueError:
        return None
    return [ReplyCall(name, body[index:end], id_of(said.strip()))] if name and ends(body, end) else None


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def xml_function(body: str, tools: Sequence[Tool]) -> Found:
    """Qwen3-Coder, Qwen3.5: `<function=f><parameter=p>value</parameter></function>`."""
    return each(_FUNCTION, body, lambda match: _tagged(match[1], _PARAMETER, match[2], tools))


_INVOKE = re.compile(r'\s*<invoke name="?([^">\n]+)"?>(.*?)</invoke>\s*', re.DOTALL)
_INVOKE_PARAMETER = re.compile(r'\s*<parameter name="?([^">\n]+)"?>\n?(.*?)\n?</parameter>\s*', re.DOTALL)


def minimax(body: str, tools: Sequence[Tool]) -> Found:
    """MiniMax M2: `<invoke name="f"><parameter name="p">value</parameter></invoke>`, any number."""
    return each(_INVOKE, body, lambda match: _tagged(match[1], _INVOKE_PARAMETER, match[2], tools))


_GLM_PAIR = re.compile(r"\s*<arg_key>(?>(.*?)</arg_key>)\s*<arg_value>(?>(.*?)</arg_value>)\s*", re.DOTALL)
"""Each ends at its first closer, for good: with nothing to take back, no text is read twice."""


def glm(body: str, tools: Sequence[Tool]) -> Found:
    """GLM-4.5 on: `name` then `<arg_key>k</arg_key><arg_value>v</arg_value>` pairs."""
    name, separator, rest = body.partition("<arg_key>")
    call = _tagged(name, _GLM_PAIR, separator + rest, tools)
    return None if call is None else [call]


_DEEPSEEK = re.compile(r"\s*<｜tool▁call▁begin｜>(.*?)<｜tool▁call▁end｜>\s*", re.DOTALL)


def deepseek(body: str, tools: Sequence[Tool]) -> Found:
    """V3, R1: `function<sep>name\\n```json\\n{...}\\n```; V3.1: `name<sep>{...}`."""
    return each(_DEEPSEEK, body, lambda match: _deepseek_call(match[1]))


def _deepseek_call(text: str) -> ReplyCall | None:
    kind, sep, rest = text.partition("<｜tool▁sep｜>")
    if not sep:
        return None
    if kind.strip() == "function" and "```" in rest:
        name, _, fenced = rest.partition("\n")
        rest = fenced.strip().removeprefix("```json").removesuffix("```")
    else:
        name = kind
    return _named(name, rest)


_KIMI = re.compile(r"\s*<\|tool_call_begin\|>(.*?)<\|tool_call_end\|>\s*", re.DOTALL)


def kimi(body: str, tools: Sequence[Tool]) -> Found:
    """Kimi K2: `functions.name:0<|tool_call_argument_begin|>{...}` per call."""

    def call(match: re.Match[str]) -> ReplyCall | None:
        head, sep, arguments = match[1].partition("<|tool_call_argument_begin|>")
        name = head.strip().removeprefix("functions.").rpartition(":")[0]
        return _named(name or head.strip(), arguments, id_of(head.strip()) if name else "") if sep else None

    return each(_KIMI, body, call)


def _named(name: str, arguments: str, call_id: str = "") -> ReplyCall | None:
    raw = arguments.strip()
    try:
        _, end = members(raw)
    except ValueError:
        return None
    return ReplyCall(name.strip(), raw, call_id) if name.strip() and end == len(raw) else None


def each(pattern: re.Pattern[str], body: str, make: Callable[[re.Match[str]], ReplyCall | None]) -> Found:
    """Every match, back to back over the whole body; a match that is no call stays as its text."""
    found: list[ReplyCall | str] = []
    at = 0
    while at < len(body):
        match = pattern.match(body, at)
        if match is None:
            if body[at:].strip():
                return None
            break
        call = make(match)
        found.append(match[0].strip() if call is None else call)
        at = match.end()
    return found if any(isinstance(item, ReplyCall) for item in found) else None


_NAME = re.compile(r"[^\s<>{}\"]+")
"""What may be a function's name where nothing but tags delimits it."""


def _tagged(name: str, pattern: re.Pattern[str], text: str, tools: Sequence[Tool]) -> ReplyCall | None:
    """A call of verbatim values: as compact JSON, each value of the type that the tool's schema declares."""
    name = name.strip()
    if not _NAME.fullmatch(name):
        return None
    types = types_of(name, tools)
    arguments: dict[str, Any] = {}
    index = 0
    while index < len(text):
        match = pattern.match(text, index)
        if match is None:
            if text[index:].strip():
                return None
            break
        key = match[1].strip()
        arguments[key] = typed_value(match[2], types(key) or STRING)
        index = match.end()
    return ReplyCall(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))


def schema_of(name: str, tools: Sequence[Tool]) -> dict[str, Any]:
    """The schema of a tool's arguments; empty if there is none."""
    return next((tool.schema for tool in tools if tool.name == name and isinstance(tool.schema, dict)), {})


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of each argument."""
    own = schema.get("properties")
    return own if isinstance(own, dict) else {}


def types_of(name: str, tools: Sequence[Tool]) -> Callable[[str], frozenset[str]]:
    """Tells the types that each argument of a tool may have; none for one of which nothing is declared."""
    schema = schema_of(name, tools)
    declared = properties(schema)
    return cache(lambda key: declared_types(declared.get(key), schema))


_PYTHON: dict[str, tuple[str, Any]] = {
    "True": ("boolean", True),
    "False": ("boolean", False),
    "None": ("null", None),
}
"""What templates of Qwen3.5 and Nemotron 3 print for a boolean and for null, and so what their models say: with the
type in the schema under which it is one."""


def typed_value(text: str, types: frozenset[str]) -> Any:
    """A verbatim value as JSON. Where it may be a text, it is one unless it is of another of the types; else, and
    without types, it is whatever JSON it is, if that can be said again."""
    if types == STRING:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        kind, value = _PYTHON.get(text.strip(), ("", text))
        return value if kind in types and "string" not in types else text
    if "string" in types and not fits(value, types - STRING):
        return text
    return value if sayable(value) else text
