"""Decodes `tools` and `tool_choice` of OpenAI's requests; their limits and cache. (pure)

An agent sends the same tools with every turn, often most of the body: they are read once per spelling.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import Tool, ToolChoice
from sandgate.gateway.protocols.wire import brief, limited, read, shallow

TOOLS_MAX = 512
"""Clients with every MCP server on have about 150; OpenAI takes 128. More would fill any window."""
NAME_CHARS_MAX = 256
"""OpenAI takes 64; MCP clients prefix server names."""
TOOLS_BYTES_MAX = 2 * 1024 * 1024
"""Of the list as JSON: four times the longest that would fit a window of 128,000 tokens."""
CACHED_BYTES_MAX, CACHED_LIST_BYTES_MAX = 2 << 20, 128 << 10
"""Of tool lists kept, as JSON, and of one; the sessions of a job share a few of 5 to 80 kB."""


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _Function | None = None


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: str
    function: _Named | None = None


_TOOLS: msgspec.json.Decoder[list[_Tool] | None] = msgspec.json.Decoder(list[_Tool] | None)
_CHOICE: msgspec.json.Decoder[str | _Choice | None] = msgspec.json.Decoder(str | _Choice | None)


def tools_of(raw: msgspec.Raw) -> tuple[Tool, ...]:
    """The tools; their schemas are shared between requests and must not be changed."""
    list_json = bytes(raw)
    if not list_json:
        return ()
    limited(len(list_json), TOOLS_BYTES_MAX, "bytes", "tools")
    if (tools := _CACHED.get(list_json)) is None:
        tools = _tools(list_json)
        _CACHED.put(list_json, tools, len(list_json))
    return tools


def _tools(raw: bytes) -> tuple[Tool, ...]:
    listed = read(_TOOLS, raw, "tools") or []
    limited(len(listed), TOOLS_MAX, "tools", "tools")
    return tuple([_tool(tool, f"tools[{index}]") for index, tool in enumerate(listed)])


_CACHED: ByteCache[bytes, tuple[Tool, ...]] = ByteCache(CACHED_BYTES_MAX, CACHED_LIST_BYTES_MAX)


def _tool(tool: _Tool, field: str) -> Tool:
    if tool.type != "function":
        raise Unsupported(
            f"{field}.type is {brief(tool.type)}; only function tools can be offered to the model",
            field=f"{field}.type",
        )
    function = tool.function
    if function is None:
        raise InvalidBody(f"{field}.function is missing", field=f"{field}.function")
    if not 1 <= len(function.name) <= NAME_CHARS_MAX:
        name = f"{field}.function.name"
        raise InvalidBody(f"{name} must have 1 to {NAME_CHARS_MAX} characters", field=name)
    if function.parameters is not None:
        shallow(function.parameters, f"{field}.function.parameters")
    return Tool(function.name, function.description, function.parameters, function.strict)


def choice_of(raw: msgspec.Raw, tools: tuple[Tool, ...]) -> ToolChoice:
    """auto, none, required, or one of `tools` by name."""
    choice = read(_CHOICE, raw, "tool_choice") if bytes(raw) else None
    match choice:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            if not tools:
                raise InvalidBody("tool_choice is required, but there are no tools", field="tool_choice")
            return ToolChoice("required")
        case str():
            raise InvalidBody(
                f"tool_choice is {brief(choice)}; it must be auto, none, required or a function",
                field="tool_choice",
            )
        case _Choice(type="function", function=_Named(name=name)):
            if not any(tool.name == name for tool in tools):
                field = "tool_choice.function.name"
                raise InvalidBody(f"{field} is {brief(name)}, which is none of the tools", field=field)
            return ToolChoice("named", name)
        case _Choice(type="function"):
            raise InvalidBody("tool_choice.function is missing", field="tool_choice.function")
    raise Unsupported(
        f"tool_choice.type is {brief(choice.type)}; only function can be forced here",
        field="tool_choice.type",
    )
