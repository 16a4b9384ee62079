"""History policy `template`: checks that the template renders the past, and this tail, as it was sampled. (pure)

The codec sees ids, not the messages of the path. So the answer is "no" unless two things are shown: what earlier
turns thought is still there, or still gone, when such a tail comes (on a known conversation), and the last turn, parsed
and rendered again, gives its own ids. A "no" is safe: the core then renders in full and compares ids itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, Tool, ToolCall
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.probe_conversations import assistant, user

History = Literal["sampled", "template"]
"""What stays in context: what was sampled, or what the template keeps of it."""

MARKS = ("zkfirst", "zkthird")
"""Thoughts of the known conversation; nothing else says these words."""


def rewritten(
    codec: Codec, prompt: Ids, response: Ids, tail: Sequence[Message], tools: Sequence[Tool], ids: Ids
) -> bool:
    """True unless it is shown that the template, asked for everything, would give `prompt + response + ids`."""
    try:
        return not (
            keeps_thoughts(codec, tail, tools) and _renders_back(codec, prompt, response, tail, tools, ids)
        )
    except BadRequest:
        return True


def keeps_thoughts(codec: Codec, tail: Sequence[Message], tools: Sequence[Tool]) -> bool:
    calls = _calls([("zkname", "{}")], tail) if tail[0].role == "tool" else []
    past = (
        user("q1"),
        assistant("a1", reasoning=MARKS[0]),
        user("q2"),
        assistant("" if calls else "a2", calls, reasoning=MARKS[1]),
    )
    before, after = (codec.decode(codec.render(messages, tools)) for messages in (past, (*past, *tail)))
    return all((mark in before) == (mark in after) for mark in MARKS)


def _renders_back(
    codec: Codec, prompt: Ids, response: Ids, tail: Sequence[Message], tools: Sequence[Tool], ids: Ids
) -> bool:
    parser = codec.parser(prompt, tools)
    parser.feed(response)
    _, reply = parser.finish()
    if reply.malformed:
        return False
    calls = _calls([(call.name, call.arguments) for call in reply.tool_calls], tail)
    asked = user("zkq")
    said = assistant(reply.text, calls, reply.reasoning or None)
    return codec.render((asked, said, *tail), tools) == codec.render((asked,), tools) + response + ids


def _calls(named: Sequence[tuple[str, str]], tail: Sequence[Message]) -> list[ToolCall]:
    """Calls under the ids that the tail answers, in order; made-up ids for those it does not answer."""
    answered = [message.tool_call_id or "" for message in tail if message.role == "tool"]
    spare = (f"call_{n:024}" for n in range(len(named)))
    ids = [*answered, *spare]
    return [
        ToolCall(call_id, name, arguments) for call_id, (name, arguments) in zip(ids, named, strict=False)
    ]
