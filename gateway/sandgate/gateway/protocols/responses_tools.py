"""Decodes `tools` and `tool_choice` of POST /v1/responses: functions, custom tools, namespaces; their limits. (pure)

The model is shown functions only. A custom tool, whose input is free text, is shown as a function of one text; a tool
in a namespace under both names. `ToolForm` says what its calls look like to the client.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import Tool, ToolChoice
from sandgate.gateway.protocols.openai_tools import (
    CACHED_BYTES_MAX,
    CACHED_LIST_BYTES_MAX,
    NAME_CHARS_MAX,
    TOOLS_BYTES_MAX,
    TOOLS_MAX,
)
from sandgate.gateway.protocols.wire import brief, limited, read, shallow

NOT_OFFERED = ("web_search", "image_generation", "tool_search")
"""A type that begins so is one of OpenAI's own tools that agents offer by default (Codex): the model is not told of it.
Other tools of OpenAI's are refused: who names a vector store means it."""
FREE_TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of a custom tool as the model is shown them."""


class _Grammar(msgspec.Struct):
    type: str
    syntax: str | None = None
    definition: str | None = None


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: _Grammar | None = None
    tools: list[_Tool] | None = None


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    namespace: str | None = None


class ToolForm(NamedTuple):
    """What a tool that the model knows by another name, or as another thing, is to its client."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None


class Offered(NamedTuple):
    """What a list of tools means."""

    tools: tuple[Tool, ...]
    """As the model is shown them."""
    forms: dict[str, ToolForm]
    """Shown name -> what the client calls it, for those that are no plain functions."""
    bare: dict[str, str]
    """Name without its namespace -> shown name, where no other tool has it: clients may leave the namespace out."""

    def shown(self, name: str, namespace: str | None) -> str:
        """The name under which the model knows a tool that a client names."""
        return shown_name(name, namespace) if namespace else self.bare.get(name, name)


_TOOLS: msgspec.json.Decoder[list[_Tool] | None] = msgspec.json.Decoder(list[_Tool] | None)
_CHOICE: msgspec.json.Decoder[str | _Choice | None] = msgspec.json.Decoder(str | _Choice | None)
_CACHED: ByteCache[bytes, Offered] = ByteCache(CACHED_BYTES_MAX, CACHED_LIST_BYTES_MAX)


def shown_name(name: str, namespace: str | None) -> str:
    """The name under which the model knows a tool."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("_") else f"{namespace}__{name}"


def tools_of(raw: msgspec.Raw) -> Offered:
    """The tools; their schemas are shared between requests and must not be changed."""
    list_json = bytes(raw)
    if not list_json:
        return Offered((), {}, {})
    limited(len(list_json), TOOLS_BYTES_MAX, "bytes", "tools")
    if (offered := _CACHED.get(list_json)) is None:
        listed = read(_TOOLS, list_json, "tools")
        offered = _offered(listed or [])
        _CACHED.put(list_json, offered, len(list_json))
    return offered


def _offered(listed: list[_Tool]) -> Offered:
    limited(len(listed), TOOLS_MAX, "tools", "tools")
    tools: list[Tool] = []
    forms: dict[str, ToolForm] = {}
    for index, tool in enumerate(listed):
        field = f"tools[{index}]"
        if tool.type == "namespace":
            name = _name(tool.name, f"{field}.name")
            inner = tool.tools or []
            limited(len(tools) + len(inner), TOOLS_MAX, "tools", "tools")
            for i, one in enumerate(inner):
                _add(one, name, f"{field}.tools[{i}]", tools, forms)
        elif not tool.type.startswith(NOT_OFFERED):
            _add(tool, None, field, tools, forms)
    names = Counter(form.name for form in forms.values() if form.namespace)
    plain = {tool.name for tool in tools}
    bare = {
        form.name: shown
        for shown, form in forms.items()
        if form.namespace and names[form.name] == 1 and form.name not in plain
    }
    return Offered(tuple(tools), forms, bare)


def _add(
    tool: _Tool, namespace: str | None, field: str, tools: list[Tool], forms: dict[str, ToolForm]
) -> None:
    kind: Literal["function", "custom"]
    name = tool.name or ""
    match tool.type:
        case "function":
            kind, schema = "function", tool.parameters
            if schema is not None:
                shallow(schema, f"{field}.parameters")
        case "custom":
            kind, schema = "custom", FREE_TEXT
        case _:
            raise Unsupported(
                f"{field}.type is {brief(tool.type)}; function, custom and namespace tools can be offered to the "
                "model",
                field=f"{field}.type",
            )
    shown = shown_name(_name(name, f"{field}.name"), namespace)
    if shown in forms or ((kind == "custom" or namespace) and any(tool.name == shown for tool in tools)):
        raise InvalidBody(
            f"{field}.name: another tool is shown to the model as {brief(shown)}, too; rename one of them",
            field=f"{field}.name",
        )
    tools.append(Tool(shown, _description(tool), schema, tool.strict or None))
    if kind == "custom" or namespace:
        forms[shown] = ToolForm(kind, name, namespace)


def _name(name: str | None, field: str) -> str:
    if not name or len(name) > NAME_CHARS_MAX:
        raise InvalidBody(f"{field} must have 1 to {NAME_CHARS_MAX} characters", field=field)
    return name


def _description(tool: _Tool) -> str | None:
    """A grammar of the input is told in words: nothing holds the model to it."""
    grammar = tool.format
    if tool.type != "custom" or grammar is None or not grammar.definition:
        return tool.description
    told = f"The input must follow this {grammar.syntax or 'lark'} grammar:\n{grammar.definition}"
    return f"{tool.description}\n\n{told}" if tool.description else told


def choice_of(raw: msgspec.Raw, offered: Offered) -> ToolChoice:
    """auto, none, required, or one of the tools by name."""
    given = read(_CHOICE, raw, "tool_choice") if bytes(raw) else None
    match given:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            if not offered.tools:
                raise InvalidBody("tool_choice is required, but there are no tools", field="tool_choice")
            return ToolChoice("required")
        case str():
            raise InvalidBody(
                f"tool_choice is {brief(given)}; it must be auto, none, required or a function",
                field="tool_choice",
            )
        case _Choice(type="function" | "custom", name=str() as name, namespace=namespace):
            shown = offered.shown(name, namespace)
            if not any(tool.name == shown for tool in offered.tools):
                raise InvalidBody(
                    f"tool_choice.name is {brief(name)}, which is none of the tools", field="tool_choice.name"
                )
            return ToolChoice("named", shown)
        case _Choice(type="function" | "custom"):
            raise InvalidBody("tool_choice.name is missing", field="tool_choice.name")
    raise Unsupported(
        f"tool_choice.type is {brief(given.type)}; only function and custom can be forced here",
        field="tool_choice.type",
    )
