"""Decodes `tools` and `tool_choice` of Anthropic's requests; their limits and cache. (pure)"""

from __future__ import annotations

from typing import Any

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


class _Tool(msgspec.Struct):
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_TOOLS: msgspec.json.Decoder[list[_Tool] | None] = msgspec.json.Decoder(list[_Tool] | None)
_CHOICE: msgspec.json.Decoder[_Choice | None] = msgspec.json.Decoder(_Choice | None)
_CACHED: ByteCache[bytes, tuple[Tool, ...]] = ByteCache(CACHED_BYTES_MAX, CACHED_LIST_BYTES_MAX)


def tools_of(raw: msgspec.Raw) -> tuple[Tool, ...]:
    """The tools; their schemas are shared between requests and must not be changed."""
    list_json = bytes(raw)
    if not list_json:
        return ()
    limited(len(list_json), TOOLS_BYTES_MAX, "bytes", "tools")
    if (tools := _CACHED.get(list_json)) is None:
        listed = read(_TOOLS, list_json, "tools") or []
        limited(len(listed), TOOLS_MAX, "tools", "tools")
        tools = tuple([_tool(tool, f"tools[{index}]") for index, tool in enumerate(listed)])
        _CACHED.put(list_json, tools, len(list_json))
    return tools


def _tool(tool: _Tool, field: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise Unsupported(
            f"{field}.type is {brief(tool.type)}: nothing here runs a server's tools; "
            "tools of your own, with an input_schema, can be offered to the model",
            field=f"{field}.type",
        )
    if not 1 <= len(tool.name) <= NAME_CHARS_MAX:
        raise InvalidBody(f"{field}.name must have 1 to {NAME_CHARS_MAX} characters", field=f"{field}.name")
    if tool.input_schema is None:
        raise InvalidBody(f"{field}.input_schema is missing", field=f"{field}.input_schema")
    shallow(tool.input_schema, f"{field}.input_schema")
    return Tool(tool.name, tool.description, tool.input_schema, tool.strict or None)


def choice_of(raw: msgspec.Raw, tools: tuple[Tool, ...]) -> tuple[ToolChoice, bool]:
    """Which tool must be called, and whether several may be called at once."""
    given = read(_CHOICE, raw, "tool_choice") if bytes(raw) else None
    if given is None:
        return ToolChoice(), True
    return _choice(given, tools), not given.disable_parallel_tool_use


def _choice(given: _Choice, tools: tuple[Tool, ...]) -> ToolChoice:
    match given.type:
        case "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "any":
            if not tools:
                raise InvalidBody("tool_choice is any, but there are no tools", field="tool_choice")
            return ToolChoice("required")
        case "tool":
            if not any(tool.name == given.name for tool in tools):
                raise InvalidBody(
                    f"tool_choice.name is {brief(given.name)}, which is none of the tools",
                    field="tool_choice.name",
                )
            return ToolChoice("named", given.name)
    raise InvalidBody(
        f"tool_choice.type is {brief(given.type)}; it must be auto, any, tool or none",
        field="tool_choice.type",
    )
