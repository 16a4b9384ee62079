"""Parity check: whether a family renderer gives the same ids as the checkpoint's own template. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from sandgate.contract.errors import BadRequest
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall
from sandgate.gateway.tokens.marks import is_marked, unmark
from sandgate.gateway.tokens.probe_conversations import assistant, system, user
from sandgate.gateway.tokens.renderers_codec import FamilyCodec
from sandgate.gateway.tokens.template import ChatTemplate
from sandgate.gateway.tokens.vocab import Vocab

CALL = ToolCall(f"call_{1:024}", "weather", '{"city": "Köln", "days": 3, "units": {"temp": "C"}}')
OTHER_CALL = ToolCall(f"call_{2:024}", "weather", '{"city": "Rome"}')
ANSWER = Message(role="tool", parts=(TextPart('{"sky": "clear"}'),), tool_call_id=CALL.id, name=CALL.name)
OTHER_ANSWER = Message(role="tool", parts=(TextPart("rain"),), tool_call_id=OTHER_CALL.id)
DEVELOPER = Message(role="developer", parts=(TextPart("No tables."),))
TOOLS = (
    Tool(
        "weather",
        "Weather of a city.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": "object"},
            },
            "required": ["city"],
        },
    ),
)

CONVERSATIONS: dict[str, tuple[tuple[Message, ...], tuple[Tool, ...]]] = {
    "a user": ((user("Hello, who are you?"),), ()),
    "a system message": ((system("Be brief."), user("Hello.")), ()),
    "two rounds": ((system("Be brief."), user("One?"), assistant("Two."), user("Three?")), ()),
    "tools": ((user("Weather in Köln?"),), TOOLS),
    "tools and a system message": ((system("Be brief."), user("Weather in Köln?")), TOOLS),
    "a tool round": ((user("Weather?"), assistant("", (CALL,)), ANSWER), TOOLS),
    "a tool round with words, then a user": (
        (user("Weather?"), assistant("I look.", (CALL,)), ANSWER, assistant("Clear."), user("Thanks.")),
        TOOLS,
    ),
    "a thought": ((user("One?"), assistant("Two.", reasoning="I think."), user("Three?")), ()),
    "a thought before a call": ((user("Weather?"), assistant("", (CALL,), "I look."), ANSWER), TOOLS),
    "words and two calls, answered in the other order": (
        (user("Weather?"), assistant("I look.", (CALL, OTHER_CALL)), OTHER_ANSWER, ANSWER),
        TOOLS,
    ),
    "a system message behind the user (Claude Code)": ((user("Hello."), system("Be brief.")), ()),
    "a system message, a developer's, a user (Codex)": ((system("Be brief."), DEVELOPER, user("Hello.")), ()),
    "a late system message": ((user("One?"), assistant("Two."), system("Be brief."), user("Three?")), ()),
    "a late developer message": ((user("One?"), assistant("Two."), DEVELOPER, user("Three?")), ()),
    "a user who quotes a tool's answer": ((user("<tool_response>\nrain\n</tool_response>"),), ()),
}
"""Conversations that are compared at start-up."""


def difference(codec: FamilyCodec, template: ChatTemplate, vocab: Vocab) -> str:
    """Where the two differ first, for people; "" if nowhere. Conversations that the template refuses do not count,
    but at least one must be rendered."""
    compared = 0
    marking = template.marking(codec.words)  # a token that a user spells is text for both
    for name, (messages, tools) in CONVERSATIONS.items():
        try:
            text = marking.render(messages, tools)
        except BadRequest:
            continue
        compared += 1
        try:
            ids = codec.render(messages, tools)
        except BadRequest as error:
            return f"{name}: {error}"
        if ids != (codec.words.encode(text) if is_marked(text) else vocab.encode_whole(text)):
            return f"{name}: {_first_difference(codec.decode(ids), unmark(text))}"
    return "" if compared else "the checkpoint's template renders none of the probe conversations"


def _first_difference(ours: str, theirs: Sequence[str]) -> str:
    index = next(
        (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    around = slice(max(0, index - 20), index + 20)
    if index == len(ours) == len(theirs):
        return "equal text, other ids"
    return f"it gives {ours[around]!r} where the template gives {theirs[around]!r}"
