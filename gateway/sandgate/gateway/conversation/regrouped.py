"""Calls of one turn that come back with their answers between them: they stand together again (rule N4). (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sandgate.gateway.conversation.ids import mark_of
from sandgate.gateway.conversation.messages import Message

Calls = Mapping[str, tuple[str, int]]
"""Mark of a call -> its turn, and its number there; of turns that made several."""


def regrouped(messages: Sequence[Message], calls: Calls) -> tuple[Message, ...]:
    """The messages, in which call, answer, call, answer of one turn is calls, answers. What was not sampled here, or
    says something between them, stays as it is."""
    out: list[Message] = []
    at, turn = -1, None
    for message in messages:
        own = _turn_of(message, calls)
        again = own is not None and own == turn and out[-1].role == "tool" and not message.parts
        if again and (joined := _joined(out[at], message, calls)):
            out[at] = joined
            continue
        out.append(message)
        if message.role != "tool":
            at, turn = len(out) - 1, own
    return tuple(out)


def _turn_of(message: Message, calls: Calls) -> str | None:
    """The turn that made all calls of a message."""
    turns = {calls.get(mark_of(call.id), ("", 0))[0] for call in message.tool_calls}
    return next(iter(turns)) or None if len(turns) == 1 else None


def _joined(first: Message, other: Message, calls: Calls) -> Message | None:
    """Both as one, the calls in the order in which they were sampled; None if one of them is there twice."""
    both = {calls[mark_of(call.id)][1]: call for call in (*first.tool_calls, *other.tool_calls)}
    if len(both) < len(first.tool_calls) + len(other.tool_calls):
        return None
    thought = (first.reasoning or "") + (other.reasoning or "")
    return replace(
        first, reasoning=thought or None, tool_calls=tuple([both[number] for number in sorted(both)])
    )
