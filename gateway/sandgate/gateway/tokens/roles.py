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

    def adapt(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as this template takes them. Raises Unsupported for a role that it drops."""
        if not self.developer_as_system and not self.dropped:
            return messages
        out = []
        for index, message in enumerate(messages):
            if self.developer_as_system and message.role == "developer":
                message = Message(role="system", parts=message.parts, name=message.name)
            if message.role in self.dropped:
                raise Unsupported(
                    f"this model's chat template drops messages of role {message.role}",
                    field=f"messages[{index}].role",
                )
            out.append(message)
        return out


def find_roles(render: Callable[[Sequence[Message]], str]) -> Roles:
    """Tries each role. A role that the template itself refuses is not listed: the template says so."""
    heard = {role: _heard(render, role) for role in _KNOWN}
    as_system = not heard["developer"] and bool(heard["system"])
    dropped = {role for role, rendered in heard.items() if rendered is False}
    return Roles(as_system, frozenset(dropped - {"developer"} if as_system else dropped))


_ASKED = Message(role="user", parts=(TextPart("q"),))
_CALL = ToolCall(f"call_{3:024}", "probe", "{}")
_SAID = Message(role="assistant", parts=(TextPart("a"),), tool_calls=(_CALL,))


def _place(role: Role) -> Sequence[Message]:
    """A conversation with the word in a message of this role."""
    message = Message(role=role, parts=(TextPart(WORD),), tool_call_id=_CALL.id if role == "tool" else None)
    return (_ASKED, _SAID, message) if role == "tool" else (message, _ASKED)


_KNOWN: tuple[Role, ...] = ("system", "developer", "tool")


def _heard(render: Callable[[Sequence[Message]], str], role: Role) -> bool | None:
    """True: rendered; False: dropped; None: refused."""
    try:
        return WORD in render(_place(role))
    except BadRequest:
        return None
