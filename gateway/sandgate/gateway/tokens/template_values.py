"""Messages and tools as chat templates see them, in the dialect that a template takes. (pure)"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandgate.contract.errors import Unsupported
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, Tool, ToolCall, VideoPart
from sandgate.gateway.tokens.jsonslice import sayable
from sandgate.gateway.tokens.template_environment import ToolDict


@dataclass(frozen=True, slots=True)
class Dialect:
    """How this template wants an assistant's calls: found out once per template by `ChatTemplate`."""

    arguments_as_text: bool = False
    """False: `arguments` is a mapping (what Hugging Face gives); True: its JSON text."""
    null_content: bool = False
    """True: a message that only calls tools has `content` null instead of ""."""
    parts: bool = False
    """True: content is a list of parts even where it is only text (vision templates)."""
    short_ids: bool = False
    """True: call ids are nine letters or digits (Mistral); the last nine of ours are."""
    described: bool = False
    """True: a tool without a description gets an empty one; the template fails without (gpt-oss)."""
    thinking: bool = False
    """True: reasoning is given as `thinking` as well (gpt-oss)."""
    images: bool = False
    """True: content with images is a list of parts in order, each image `{"type": "image"}`."""
    videos: bool = False
    """The same for videos."""
    joint: str = "\n"
    """What stands between two texts of a user or a tool: what the template writes there, if it takes a list of parts,
    else a new line, as vLLM joins them."""


PLAIN = Dialect()
"""What Hugging Face gives."""


def message_dict(message: Message, dialect: Dialect = PLAIN) -> dict[str, Any]:
    """A message as templates see it. Raises Unsupported for images, unless the template shows them."""
    text = shown_text(message, dialect)
    out: dict[str, Any] = {"role": message.role, "content": text}
    if any(isinstance(part, ImagePart | VideoPart) for part in message.parts):
        out["content"] = _parts(message, dialect)
    elif dialect.parts:
        out["content"] = [{"type": "text", "text": text}]
    if message.role == "assistant":
        if message.reasoning is not None:
            out["reasoning_content"] = out["reasoning"] = message.reasoning
            if dialect.thinking:
                out["thinking"] = message.reasoning
        if message.tool_calls:
            out["tool_calls"] = [_call(call, dialect) for call in message.tool_calls]
            if dialect.null_content and not text:
                out["content"] = None
    if message.tool_call_id is not None:
        out["tool_call_id"] = shown_call_id(message.tool_call_id, dialect)
    if message.name is not None:
        out["name"] = message.name
    return out


def shown_text(message: Message, dialect: Dialect) -> str:
    """The text of a message, as a template that takes no parts is given it."""
    if len(message.parts) < 2 or message.role not in ("user", "tool"):
        return message.text
    return dialect.joint.join(part.text for part in message.parts if isinstance(part, TextPart))


def _parts(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    if not dialect.images:
        raise Unsupported(
            "messages: this model's codec renders text only; images cannot be given", field="messages"
        )
    if not dialect.videos and any(isinstance(part, VideoPart) for part in message.parts):
        raise Unsupported(
            "messages: this model takes no videos here: its processor or its template has none; send frames as images",
            field="messages",
        )
    if message.role == "assistant":
        raise Unsupported(
            "an assistant message has an image, which no model here can have said", field="messages"
        )
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
        for part in message.parts
    ]


def _call(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    arguments = call.arguments if dialect.arguments_as_text else _mapping(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": shown_call_id(call.id, dialect), "type": "function", "function": function}


def shown_call_id(call_id: str, dialect: Dialect) -> str:
    """A call id in the form that the template takes."""
    if not dialect.short_ids:
        return call_id
    return "".join(filter(str.isalnum, call_id))[-9:].rjust(9, "0")


def _mapping(arguments: str) -> Any:
    """The JSON object of `arguments`, or the text itself if it is none, or none that can be said again."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and sayable(value) else arguments


def tools_json(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Tools as templates want them; None for no tools (what `{% if tools %}` and `is not none` both understand).

    The dicts of the same `Tool` objects are kept (requests share them), so nobody may change them.
    """
    return [_kept(tool)[1] for tool in tools] or None


KEPT_BYTES_MAX, KEPT_ENTRY_BYTES_MAX = 2 << 20, 128 << 10
"""Of tools in use, as text, and of one: the longest lists of 25 jobs. As Python's objects they may be twenty times
that. What is longer is made anew each time."""
_KEPT: ByteCache[int, tuple[Tool, dict[str, Any], str]] = ByteCache(KEPT_BYTES_MAX, KEPT_ENTRY_BYTES_MAX)


def _kept(tool: Tool) -> tuple[Tool, dict[str, Any], str]:
    """By identity: the entry holds the tool, so its id cannot become another's while it is kept."""
    kept = _KEPT.get(id(tool))
    if kept is None:
        key = repr((tool.name, tool.description, tool.schema, tool.strict))
        kept = (tool, tool_json(tool), key)
        _KEPT.put(id(tool), kept, len(key))
    return kept


_DESCRIBED: ByteCache[int, tuple[Tool, Tool]] = ByteCache(KEPT_BYTES_MAX, KEPT_ENTRY_BYTES_MAX)


def with_description(tool: Tool) -> Tool:
    """The tool with a description, if only an empty one; the same object for the same tool while it is cached."""
    if tool.description is not None:
        return tool
    cached = _DESCRIBED.get(id(tool))
    if cached is None:
        cached = (tool, Tool(tool.name, "", tool.schema, tool.strict))
        _DESCRIBED.put(id(tool), cached, len(_kept(tool)[2]))
    return cached[1]


def tools_key(tools: Sequence[Tool]) -> tuple[str, ...]:
    """Equal if the tools render the same: key order is part of it."""
    return tuple(_kept(tool)[2] for tool in tools)


def tool_json(tool: Tool) -> dict[str, Any]:
    """OpenAI's function form: name, description if any, parameters (an empty object schema if none was given), and
    `strict` if the client said it, as vLLM and Hugging Face show it to templates."""
    function = ToolDict(name=tool.name)
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.schema if tool.schema is not None else {"type": "object", "properties": {}}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return ToolDict(type="function", function=function)
