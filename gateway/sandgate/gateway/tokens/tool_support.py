"""Can a checkpoint be given tools? Probed at start: are they in the prompt, is a call read back as it was made. (pure)

A template that drops `tools` renders the same prompt with and without them, and one whose calls no grammar reads gives
every call as text: both answer 200, and train a policy that can never call. So `tools` are refused there.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sandgate.contract.errors import BadRequest, Unsupported
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, Tool, ToolCall, ToolChoice, TurnRequest
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.probe_conversations import assistant, user

PROBE_TOOL = Tool(
    name="zk_probe_tool",
    description="A probe.",
    schema={
        "type": "object",
        "properties": {
            "zk_text": {"type": "string", "description": "Words."},
            "zk_count": {"type": "integer", "description": "A number."},
        },
        "required": ["zk_text", "zk_count"],
    },
)
PROBE_TEXT = "zk two words"
PROBE_ARGUMENTS = {"zk_text": PROBE_TEXT, "zk_count": 3}
PROBE_CALL = ToolCall("call_0123456789abcdef01234567", PROBE_TOOL.name, json.dumps(PROBE_ARGUMENTS))
ASKED = user("q")

Conversation = Callable[[Sequence[Message], Sequence[Tool]], Ids]
"""Messages and tools -> the ids of a conversation that ends there, without a generation prompt."""


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a probe of a codec found."""

    shown: str = ""
    """Why declared tools do not reach the prompt; "" if they do."""
    read: str = ""
    """Why a call, as the template writes it, is not read back; "" if it is."""

    @property
    def why_not(self) -> str:
        """Why this model cannot be given tools; "" if it can."""
        return self.shown or self.read


def probe_tools(codec: Codec, conversation: Conversation) -> ToolSupport:
    """What the codec does with one tool and one call of it."""
    return ToolSupport(_shown(codec), _read(codec, conversation))


CHOICES: dict[str, dict[str, Any]] = {
    "required": {"tool_choice": ToolChoice("required")},
    "one call at most": {"parallel_tool_calls": False},
}


def not_forced(codec: Codec) -> list[str]:
    """What an engine cannot be held to, as this family's calls have no form that its grammar knows."""
    refused = []
    for name, asked in CHOICES.items():
        request = TurnRequest(**{"model": "", "messages": (), "tools": (PROBE_TOOL,), **asked})
        try:
            codec.constraint(array("i"), request)
        except Unsupported:
            refused.append(name)
    return refused


def _shown(codec: Codec) -> str:
    try:
        prompt = codec.decode(codec.render((ASKED,), (PROBE_TOOL,)))
    except BadRequest as error:
        return f"the chat template refuses tools: {error}"
    words = (PROBE_TOOL.name, *PROBE_ARGUMENTS)
    return (
        "" if all(word in prompt for word in words) else "the chat template does not show tools to the model"
    )


def _read(codec: Codec, conversation: Conversation) -> str:
    tools = (PROBE_TOOL,)
    try:
        prompt = codec.render((ASKED,), tools)
        whole = conversation((ASKED, assistant("", (PROBE_CALL,))), tools)
    except BadRequest as error:
        return f"the chat template refuses an assistant's tool call: {error}"
    if PROBE_TEXT not in codec.decode(whole):
        return "the chat template drops an assistant's tool calls"
    common = next(
        (place for place, (ours, theirs) in enumerate(zip(prompt, whole, strict=False)) if ours != theirs),
        min(len(prompt), len(whole)),
    )
    said = whole[common:]
    end = next((place for place, token in enumerate(said) if token in codec.stop_ids), len(said))
    parser = codec.parser(whole[:common], tools)
    parser.feed(said[:end])
    _, reply = parser.finish()
    calls = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
    if calls == [(PROBE_TOOL.name, PROBE_ARGUMENTS)]:
        return ""
    return "no grammar here reads the calls that its chat template writes"
