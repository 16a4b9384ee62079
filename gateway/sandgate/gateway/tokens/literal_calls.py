"""Bodies of tool calls whose arguments are literals, not JSON: Gemma 4's notation, and Python's. (pure)

Readers as in `tool_calls`: body and tools in, calls out, None where nothing of the body is a call. Arguments become
compact JSON, in the order in which they were sampled.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.reply import ReplyCall
from sandgate.gateway.tokens.jsonslice import ends, sayable, skip_space
from sandgate.gateway.tokens.schema_types import declared_types
from sandgate.gateway.tokens.tool_calls import Found, properties, schema_of, typed_value

DEPTH_MAX = 64
"""Arguments nested deeper are text: a tool's schema never is."""

# -- Gemma 4 ----------------------------------------------------------------------------------------------------------

QUOTE = '<|"|>'
"""The token on both sides of a string; it cannot stand inside one."""
_CALL = re.compile(r"\s*(?:call)?:([^\s{}<>:,]+)\{")
_BARE = re.compile(r"[^,{}\[\]<>:]+")


def gemma(body: str, tools: Sequence[Tool]) -> Found:
    """`call:name{key:<|"|>text<|"|>,count:3,tags:[<|"|>a<|"|>]}`; some checkpoints leave out `call`."""
    head = _CALL.match(body)
    if head is None:
        return None
    name = head[1]
    try:
        arguments, end = _mapping(body, head.end(), properties(schema_of(name, tools)), DEPTH_MAX)
    except ValueError:
        return None
    return _call(name, arguments) if ends(body, end) else None


def _mapping(text: str, at: int, declared: dict[str, Any], depth: int) -> tuple[dict[str, Any], int]:
    """What follows `{`, and the offset behind its `}`. Raises ValueError."""
    found: dict[str, Any] = {}
    at = skip_space(text, at)
    while text[at : at + 1] != "}":
        if found:
            at = _comma(text, at)
        key, at = _key(text, at)
        found[key], at = _value(text, at, declared.get(key), depth)
        at = skip_space(text, at)
    return found, at + 1


def _key(text: str, at: int) -> tuple[str, int]:
    if text.startswith(QUOTE, at):
        key, at = _quoted(text, at)
    else:
        bare = _BARE.match(text, at)
        if bare is None:
            raise ValueError("no key")
        key, at = bare[0].strip(), bare.end()
    at = skip_space(text, at)
    if text[at : at + 1] != ":":
        raise ValueError("no colon after a key")
    return key, skip_space(text, at + 1)


def _value(text: str, at: int, declared: Any, depth: int) -> tuple[Any, int]:
    if not depth:
        raise ValueError("nested too deeply")
    inner = declared if isinstance(declared, dict) else {}
    if text.startswith(QUOTE, at):
        return _quoted(text, at)
    if text[at : at + 1] == "{":
        return _mapping(text, at + 1, properties(inner), depth - 1)
    if text[at : at + 1] == "[":
        return _array(text, at + 1, inner.get("items"), depth - 1)
    bare = _BARE.match(text, at)
    if bare is None:
        raise ValueError("no value")
    return typed_value(bare[0].strip(), declared_types(declared, {})), bare.end()


def _array(text: str, at: int, declared: Any, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = skip_space(text, at)
    while text[at : at + 1] != "]":
        if found:
            at = _comma(text, at)
        value, at = _value(text, at, declared, depth)
        found.append(value)
        at = skip_space(text, at)
    return found, at + 1


def _quoted(text: str, at: int) -> tuple[str, int]:
    end = text.find(QUOTE, at + len(QUOTE))
    if end < 0:
        raise ValueError("a string does not end")
    return text[at + len(QUOTE) : end], end + len(QUOTE)


def _comma(text: str, at: int) -> int:
    if text[at : at + 1] != ",":
        raise ValueError("neither a comma nor the end after a value")
    return skip_space(text, at + 1)


# -- Python -----------------------------------------------------------------------------------------------------------

PYTHON_CHARS_MAX = 200_000
"""A longer body is text: Python's own parser reads it, which takes memory by the character."""
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES = frozenset("\\'\"abfnrtvxuUN01234567\n\r\t")
_DASH = "\u02bb"
"""Stands for a dash within a name, where Python would subtract: a letter that Python leaves as it is."""
_DASHED = re.compile(r"[\w.-]{1,64}\s{0,8}[(=]")
"""What follows a dash in the name of a tool, or of an argument."""
_NAMES = {"true": True, "false": False, "null": None}
"""What JSON inside a Python call says for True, False, None."""


def python_calls(body: str, tools: Sequence[Tool]) -> Found:
    """LFM2, Llama 4, OLMo 3: `[buy(item='kiwi', count=3), look()]`, or calls on lines of their own."""
    if len(body) > PYTHON_CHARS_MAX or "\0" in body:
        return None
    text = body.strip()
    if not text.startswith("["):
        text = f"[{','.join(line for line in text.splitlines() if line.strip())}]"
    try:
        tree = ast.parse(_one_line(text), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        calls: list[ReplyCall | str] = []
        for element in tree.elts:
            calls += _call(*_python_call(element)) or [ast.unparse(element).replace(_DASH, "-")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls if any(isinstance(call, ReplyCall) for call in calls) else None


def _one_line(text: str) -> str:
    """Models write control characters into string literals as they are, backslashes that escape nothing, and dashes
    in names: all as Python's parser takes them."""
    out: list[str] = []
    quote, escaped = "", False
    for place, char in enumerate(text):
        if not quote:
            quote = char if char in "'\"" else ""
            named = char == "-" and place and (text[place - 1].isalnum() or text[place - 1] == "_")
            dashed = named and _DASHED.match(text, place + 1)
            out.append(_DASH if dashed else char)
        elif escaped or char != "\\":
            out.append(_CONTROL.get(char, char))
            quote = "" if char == quote and not escaped else quote
            escaped = False
        else:
            escaped = text[place + 1 : place + 2] in _ESCAPES
            out.append(char if escaped else "\\\\")
    return "".join(out)


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """Raises ValueError for anything but a name called with literals by keyword."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with keywords only")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("no keyword")
        arguments[keyword.arg.replace(_DASH, "-")] = _literal(keyword.value, DEPTH_MAX)
    return ast.unparse(node.func).replace(_DASH, "-"), arguments


def _literal(node: ast.expr, depth: int) -> Any:
    if not depth:
        raise ValueError("nested too deeply")
    match node:
        case ast.Constant(value=str() | int() | float() | None as constant):
            return constant
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element, depth - 1) for element in elements]
        case ast.Dict(keys=keys, values=values):
            found: dict[str, Any] = {}
            for key, item in zip(keys, values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                    raise ValueError("a key is not a string")
                found[key.value] = _literal(item, depth - 1)
            return found
    raise ValueError("no literal")


def _call(name: str, arguments: dict[str, Any]) -> Found:
    """None if it cannot be said as JSON."""
    if not sayable(arguments) or not sayable(name):
        return None
    return [ReplyCall(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))]
