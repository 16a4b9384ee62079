"""What stands between an assistant's turn and a tail in a family's own render: what its bridge must add. (pure)

A family writes its bridge by hand, beside its render. They differ where the bridge knows less: whose answer an answer
is, which roles may come late, what ends a turn. So a tail is bridged only if, for short known messages of its shape,
the bridge gives what the render gives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, Role, TextPart, ToolCall
from sandgate.gateway.tokens.probe_conversations import assistant, user


@dataclass(frozen=True, slots=True)
class Shape:
    """What the seam of a tail may depend on."""

    calls: int
    """Calls of the assistant's turn before it."""
    messages: tuple[tuple[Role, int], ...]
    """Of the tail: roles, and which of the calls a tool's message answers (-1: none of them)."""


@dataclass(frozen=True, slots=True)
class Seam:
    """What the family's render has between an assistant's turn and a tail of one shape."""

    closer: int | None
    """The stop token there; None if it has none (harmony's `<|end|>`)."""
    own: bool
    """The closer belongs to the assistant's turn, and is not what begins the next (GLM's `<|user|>`)."""
    named: bool
    """The family's bridge must be told the function that each answer is of."""

    def behind(self, response: Ids, made: Ids, stops: Collection[int], *, closed: bool) -> Ids | None:
        """What is to be added behind `response`, where the family's bridge added `made`; None if the turn does not end
        there as the render ends it."""
        if self.closer is None:
            return made
        if closed:
            last = response[-1]
            return made if last == self.closer or (self.own and last in stops) else None
        at = next((at for at, token in enumerate(made) if token in stops), len(made))
        ends = made[at : at + 2].tolist()
        if ends[:1] == [self.closer]:
            return made
        if ends[1:] == [self.closer] and not self.own:
            # GLM's bridge ends a turn that was cut with <|endoftext|>, which its render never writes.
            return made[:at] + made[at + 1 :]
        return None


@dataclass(frozen=True, slots=True)
class Known:
    """Short messages of one shape. No two say the same, so that their order shows."""

    head: tuple[Message, ...]
    tail: tuple[Message, ...]
    names: Mapping[str, str]


def shape_of(tail: Sequence[Message], names: Mapping[str, str]) -> Shape:
    """`names`: call id -> function, of the calls of the turn before, in their order."""
    calls = {call_id: at for at, call_id in enumerate(names)}
    places = ((m.role, calls.get(m.tool_call_id or "", -1) if m.role == "tool" else -1) for m in tail)
    return Shape(len(calls), tuple(places))


def known(shape: Shape) -> Known:
    ids = [f"call_{at:024}" for at in range(shape.calls + 1)]  # the last is no call's
    names = {call_id: f"zkname{at}" for at, call_id in enumerate(ids[:-1])}
    calls = [ToolCall(call_id, name, '{"k": "v"}') for call_id, name in names.items()]
    tail = [
        Message(role=role, parts=(TextPart(f"t{at}"),), tool_call_id=ids[call] if role == "tool" else None)
        for at, (role, call) in enumerate(shape.messages)
    ]
    return Known((user("q"), assistant("" if calls else "a", calls)), tuple(tail), names)


def common(one: Ids, other: Ids) -> int:
    """Length of the longest common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def with_names(messages: Sequence[Message], names: Mapping[str, str]) -> list[Message]:
    """The messages, answers under the name of the function that was called."""
    return [
        replace(message, name=name)
        if message.role == "tool" and (name := names.get(message.tool_call_id or ""))
        else message
        for message in messages
    ]


def with_own_names(messages: Sequence[Message]) -> list[Message]:
    """The same, by the calls that the messages themselves have."""
    return with_names(messages, {call.id: call.name for message in messages for call in message.tool_calls})
