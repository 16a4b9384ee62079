"""Turn roles: whether a turn is of the main conversation, a side call or a sub-agent, and what told so. (pure)

In this order count: the job's rules; what the request's headers say; its words; the conversation that it goes on with;
and how it left the tree. All of this is the agent's own word: a role changes no token and no reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sandgate.contract.choices import TurnRole
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.serving import RoleRule
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.conversation.purposes import (
    COMPACTION,
    QUOTA,
    TITLE,
    last_words,
    purpose,
    system_words,
)
from sandgate.gateway.conversation.turn import Turn

OWN_SYSTEM, OWN_TOOLS = "own_system", "own_system_and_tools"
ONE_CALL = frozenset({COMPACTION, TITLE, QUOTA})
"""What tells the purpose of one call, not that of its conversation."""
OF_CONVERSATIONS = frozenset({"", OWN_SYSTEM, OWN_TOOLS})
"""What holds for all requests with one head: system prompt and tools."""


class AssignedRole(NamedTuple):
    """A role, and what told it."""

    role: TurnRole
    why: str
    """A header's name, `roles[K]` for the job's rule K, compaction, title, probe, own_system, own_system_and_tools, or
    empty: nothing said otherwise."""


def role_of(
    request: TurnRequest,
    head_key: bytes,
    fork: str | None,
    parent: Turn | None,
    turns: Mapping[str, Turn],
    rules: Sequence[RoleRule] = (),
) -> AssignedRole:
    """The role of the turn that answers a request. `parent`: the turn that it goes on with; `turns`: all of the
    session, in order of commit, by id; `fork`: as the turn's record will have it."""
    caller = request.caller
    for number in caller.rules:
        if _says(rules[number], request):
            return AssignedRole(rules[number].role, f"roles[{number}]")
    if caller.role:
        return AssignedRole(TurnRole(caller.role), caller.why)
    if why := purpose(request, system=parent is None):
        return AssignedRole(TurnRole.SIDE, why)
    before = parent or _alike(head_key, turns.values())
    if before is not None:
        return _lasting(before, turns)
    if fork == ForkReason.SIDE_CALL:
        return (
            AssignedRole(TurnRole.SUBAGENT, OWN_TOOLS)
            if request.tools
            else AssignedRole(TurnRole.SIDE, OWN_SYSTEM)
        )
    return AssignedRole(TurnRole.MAIN, "")


def told_then(role: str, fork: str | None, parent: str) -> str:
    """The role of a turn in a journal that has none: its parent's, or by how it left the tree."""
    if role or parent:
        return role or parent
    return TurnRole.SIDE if fork == ForkReason.SIDE_CALL else TurnRole.MAIN


def _says(rule: RoleRule, request: TurnRequest) -> bool:
    if (text := rule.system_contains) and text.lower() not in system_words(request.messages).lower():
        return False
    return not (text := rule.last_message_contains) or text.lower() in last_words(request.messages).lower()


def _alike(head_key: bytes, turns: Iterable[Turn]) -> Turn | None:
    """The newest turn of a conversation with this head whose role was told by that."""
    found = (turn for turn in reversed(list(turns)) if turn.head_key == head_key)
    return next((turn for turn in found if turn.role_why in OF_CONVERSATIONS), None)


def _lasting(turn: Turn, turns: Mapping[str, Turn]) -> AssignedRole:
    """The role of a turn's conversation: that of the nearest turn on its path which was no side call in the middle of
    one, and no call of its own kind."""
    at: Turn | None = turn
    while at is not None and (at.role_why in ONE_CALL or (at.role == TurnRole.SIDE and at.parent)):
        at = turns.get(at.parent) if at.parent else None
    if at is None:
        return AssignedRole(TurnRole.MAIN, "")
    return AssignedRole(TurnRole(told_then(at.role, at.fork, "")), at.role_why)
