"""Roles that a template supports: a message that it would drop in silence is refused, never lost. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from msgspec.structs import replace

from sandgate.contract.errors import BadRequest, Unsupported
from sandgate.gateway.conversation.messages import Message, Role, TextPart, ToolCall

WORDS = ("zkheard", "zkagain")
BETWEEN = TextPart("\n\n")
"""What stands between leading messages that are given as one."""
INSTRUCTING: tuple[Role, ...] = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles that one template supports."""

    developer_as_system: bool = False
    """The template has no developer messages, but system ones: developer messages are rendered as system."""
    dropped: frozenset[Role] = frozenset()
    """Roles whose messages it renders to nothing."""
    only_first: frozenset[Role] = frozenset()
    """Roles whose messages it renders at the head of a conversation, and later to nothing."""
    replacing: frozenset[Role] = frozenset()
    """Roles whose later message it renders in the place of the first, which is lost."""
    joined: frozenset[tuple[Role, Role]] = frozenset()
    """Roles of two messages at the head that it does not render both: they are given to it as one."""
    answers_only: bool = False
    """It renders what tools answered only right behind an assistant message with calls."""

    def adapt(self, messages: Sequence[Message], *, before: int = 0) -> Sequence[Message]:
        """The messages as this template takes them; `before`: how many came before them, the last of which the
        assistant said. Raises Unsupported for what it drops."""
        if self == TAKES_ALL:
            return messages
        out: list[Message] = []
        leading, instructed, called = not before, bool(before), bool(before)
        for index, message in enumerate(messages, before):
            if self.developer_as_system and message.role == "developer":
                message = Message(role="system", parts=message.parts, name=message.name)
            leading = leading and message.role in INSTRUCTING
            if why := self._lost(message.role, leading=leading, instructed=instructed, called=called):
                raise Unsupported(f"this model's chat template drops {why}", field=f"messages[{index}].role")
            instructed = instructed or message.role in INSTRUCTING
            called = bool(message.tool_calls) or (called and message.role == "tool")
            if leading and out and (out[-1].role, message.role) in self.joined:
                between = (BETWEEN,) if out[-1].parts and message.parts else ()
                out[-1] = replace(out[-1], parts=(*out[-1].parts, *between, *message.parts))
            else:
                out.append(message)
        return out

    def _lost(self, role: Role, *, leading: bool, instructed: bool, called: bool) -> str:
        """What the template would drop with a message of this role here, if anything."""
        if role in self.dropped:
            return f"messages of role {role}"
        if role in self.only_first and not leading:
            return f"messages of role {role} that are not the first"
        if role in self.replacing and not leading and instructed:
            return f"earlier instructions for a later message of role {role}; give them all before the first question"
        if role == "tool" and self.answers_only and not called:
            return "what a tool answered that is not right behind the assistant message that called it"
        return ""


TAKES_ALL = Roles()


def find_roles(render: Callable[[Sequence[Message]], str]) -> Roles:
    """Tries each role in the places where agents put it. What the template itself refuses is not listed: the template
    says so."""
    heard = {role: _heard(render, _alone(role)) for role in (*INSTRUCTING, "tool")}
    as_system = heard["developer"] != [True] and heard["system"] == [True]
    dropped = {role for role, found in heard.items() if found == [False]}
    if as_system:
        dropped.discard("developer")
    taken: list[Role] = [role for role in INSTRUCTING if heard[role] == [True]]
    joined = {
        (one, two)
        for one, two in product(taken, repeat=2)
        if _heard(render, (_says(one), _says(two, WORDS[1]), _ASKED)) != [True, True]
    }
    only_first, replacing = set[Role](), set[Role]()
    for late, first in product(taken, (None, *taken)):
        for place in _late(late, first):
            found = _heard(render, place) or [True]
            if not found[-1]:
                only_first.add(late)
            if not found[0] and first is not None:
                replacing.add(late)
    apart = any(_heard(render, place) == [False] for place in _UNCALLED)
    return Roles(
        as_system, frozenset(dropped), frozenset(only_first), frozenset(replacing), frozenset(joined), apart
    )


def _says(role: Role, word: str = WORDS[0]) -> Message:
    return Message(role=role, parts=(TextPart(word),), tool_call_id=_CALL.id if role == "tool" else None)


_CALL = ToolCall(f"call_{3:024}", "probe", "{}")
_ASKED = Message(role="user", parts=(TextPart("q"),))
_ANSWERED = Message(role="assistant", parts=(TextPart("a"),))
_SAID = Message(role="assistant", parts=(TextPart("a"),), tool_calls=(_CALL,))
_ANSWER = _says("tool")
_UNCALLED = (
    (_ASKED, _ANSWER, _ASKED),
    (_ASKED, _ANSWERED, _ANSWER, _ASKED),
    (_ASKED, _SAID, _ASKED, _ANSWER),
    (_ANSWER, _ASKED),
)
"""A tool's answer behind no call, as a history has it that was made shorter, or behind what came between."""


def _alone(role: Role) -> Sequence[Message]:
    return (_ASKED, _SAID, _ANSWER) if role == "tool" else (_says(role), _ASKED)


def _late(role: Role, first: Role | None) -> Iterator[Sequence[Message]]:
    """Conversations with a message of this role behind the first question, some behind the last, and with another
    message at the head, if any."""
    head = () if first is None else (_says(first),)
    late = _says(role, WORDS[1])
    yield (*head, _ASKED, _ANSWERED, late, _ASKED)
    yield (*head, _ASKED, late, _ASKED)
    yield (*head, _ASKED, late)
    yield (*head, _ASKED, _ANSWERED, _ASKED, late)
    yield (*head, _ASKED, _SAID, Message(role="tool", parts=_ASKED.parts, tool_call_id=_CALL.id), late)


def _heard(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> list[bool] | None:
    """Of each of our words in the messages, in order, whether it is rendered; None: the template refuses them."""
    try:
        text = render(messages)
    except BadRequest:
        return None
    return [message.text in text for message in messages if message.text in WORDS]
