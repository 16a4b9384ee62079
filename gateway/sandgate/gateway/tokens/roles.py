"""Roles that a template supports: a message that it would drop in silence is refused, never lost. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandgate.contract.errors import BadRequest, Unsupported
from sandgate.gateway.conversation.messages import Message, Role, TextPart, ToolCall

WORD = "zkheard"


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles that one template supports."""

    developer_as_system: bool = False
    """The template has no developer messages, but system ones: developer messages are rendered as system."""
    dropped: frozenset[Role] = frozenset()
    """Roles whose messages it renders to nothing."""
    only_first: frozenset[Role] = frozenset()
    """Roles whose messages it renders as the first of a conversation, and later to nothing."""

    def adapt(self, messages: Sequence[Message], *, before: int = 0) -> Sequence[Message]:
        """The messages as this template takes them; `before`: how many came before them. Raises Unsupported for what it
        drops."""
        if not self.developer_as_system and not self.dropped and not self.only_first:
            return messages
        out = []
        for index, message in enumerate(messages, before):
            if self.developer_as_system and message.role == "developer":
                message = Message(role="system", parts=message.parts, name=message.name)
            if message.role in self.dropped:
                raise Unsupported(
                    f"this model's chat template drops messages of role {message.role}",
                    field=f"messages[{index}].role",
                )
            if index and message.role in self.only_first:
                raise Unsupported(
                    f"this model's chat template drops messages of role {message.role} that are not the first",
                    field=f"messages[{index}].role",
                )
            out.append(message)
        return out


def find_roles(render: Callable[[Sequence[Message]], str]) -> Roles:
    """Tries each role. A role that the template itself refuses is not listed: the template says so."""
    heard = {role: _heard(render, role) for role in _KNOWN}
    as_system = not heard["developer"] and bool(heard["system"])
    dropped = {role for role, rendered in heard.items() if rendered is False}
    if as_system:
        dropped.discard("developer")
    late = {role for role in _INSTRUCTING if heard[role] and _heard(render, role, late=True) is False}
    return Roles(as_system, frozenset(dropped), frozenset(late))


_ASKED = Message(role="user", parts=(TextPart("q"),))
_CALL = ToolCall(f"call_{3:024}", "probe", "{}")
_SAID = Message(role="assistant", parts=(TextPart("a"),), tool_calls=(_CALL,))


def _place(role: Role, late: bool) -> Sequence[Message]:
    """A conversation with the word in a message of this role; `late`: behind an answer."""
    message = Message(role=role, parts=(TextPart(WORD),), tool_call_id=_CALL.id if role == "tool" else None)
    if role == "tool":
        return (_ASKED, _SAID, message)
    return (_ASKED, _ANSWERED, message, _ASKED) if late else (message, _ASKED)


_ANSWERED = Message(role="assistant", parts=(TextPart("a"),))
_KNOWN: tuple[Role, ...] = ("system", "developer", "tool")
_INSTRUCTING: tuple[Role, ...] = ("system", "developer")


def _heard(render: Callable[[Sequence[Message]], str], role: Role, *, late: bool = False) -> bool | None:
    """True: rendered; False: dropped; None: refused."""
    try:
        return WORD in render(_place(role, late))
    except BadRequest:
        return None
