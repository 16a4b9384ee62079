"""Callers: what a request's headers say of who sends it: a sub-agent, a helper, and in which conversation. (pure)

The table is of what agents were seen to send (30 clients, November 2026). Agents that say nothing are most of them;
turn_roles tells those by their words, and by how they leave the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sandgate.contract.choices import TurnRole
from sandgate.contract.errors import InvalidBody
from sandgate.contract.serving import RoleRule
from sandgate.gateway.conversation.messages import Caller

OWN_HEADER = "x-sandgate-role"
"""For agents that know us: main, side or subagent."""
NAME_CHARS_MAX = 128
"""Of a name that a header tells; the names of real agents are UUIDs."""


class _Told(NamedTuple):
    """A header that says whose a request is."""

    header: str
    role: TurnRole
    thread: str
    """Header with the name of this conversation."""
    parent: str
    """Header with the name of the conversation that started it."""
    others: Mapping[str, TurnRole] = {}
    """Values of `header` that mean another role."""


HEADERS: Sequence[_Told] = (
    _Told("x-claude-code-agent-id", TurnRole.SUBAGENT, "x-claude-code-agent-id", "x-claude-code-session-id"),
    _Told(  # Codex
        "x-openai-subagent",
        TurnRole.SUBAGENT,
        "thread-id",
        "x-codex-parent-thread-id",
        {"compact": TurnRole.SIDE, "memory_consolidation": TurnRole.SIDE},
    ),
    _Told("x-codex-parent-thread-id", TurnRole.SUBAGENT, "thread-id", "x-codex-parent-thread-id"),
    _Told("x-parent-session-id", TurnRole.SUBAGENT, "x-session-id", "x-parent-session-id"),  # opencode
)
THREADS = ("x-claude-code-session-id", "thread-id", "x-session-id", "session-id", "session_id")
"""Headers that name the conversation of any request: of Claude Code, Codex, opencode, Codex again, pi."""


def caller_of(headers: Mapping[str, str], rules: Sequence[RoleRule] = ()) -> Caller:
    """What the headers (names in lower case) say. `rules`: the job's own; of those with a header, only the ones that
    hold remain to be asked. Raises InvalidBody for a role that is none."""
    asked = tuple(number for number, rule in enumerate(rules) if _holds(rule, headers))
    if (said := headers.get(OWN_HEADER)) is not None:
        if said not in list(TurnRole):
            raise InvalidBody(f"{OWN_HEADER} must be main, side or subagent", field=OWN_HEADER)
        return Caller(role=said, why=OWN_HEADER, thread=_thread(headers), rules=asked)
    for known in HEADERS:
        if value := headers.get(known.header):
            return Caller(
                role=known.others.get(value, known.role).value,
                why=known.header,
                thread=headers.get(known.thread, "")[:NAME_CHARS_MAX],
                parent=headers.get(known.parent, "")[:NAME_CHARS_MAX],
                rules=asked,
            )
    return Caller(thread=_thread(headers), rules=asked)


def _thread(headers: Mapping[str, str]) -> str:
    return next((headers[name][:NAME_CHARS_MAX] for name in THREADS if name in headers), "")


def _holds(rule: RoleRule, headers: Mapping[str, str]) -> bool:
    if not rule.header:
        return True
    said = headers.get(rule.header.lower())
    return said is not None and rule.header_value in ("", said)
