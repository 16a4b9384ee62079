"""The main row: of a session's main conversations the one that is the agent's own, and its newest row. (pure)

Roles alone do not tell an agent without tools from a judge without tools: both are main, in two conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sandgate.contract.choices import TurnRole
from sandgate.contract.errors import ForkReason
from sandgate.gateway.conversation.message_equality import KEY_BYTES, NO_SYSTEM, NO_TOOLS


class Cast(Protocol):
    """The part of a turn that is needed here."""

    @property
    def id(self) -> str: ...
    @property
    def fork(self) -> str | None: ...
    @property
    def index(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def role_why(self) -> str: ...
    @property
    def head_key(self) -> bytes: ...


_Path = Sequence[Cast]


@dataclass(slots=True)
class _Conversation:
    """The rows that are one conversation: what begins anew behind a summary or under other tools goes on with it."""

    system: bytes
    tools: bytes
    rows: list[int] = field(default_factory=list)
    named: bool = False
    """An agent or its job said that this is the main one."""
    longest: int = 0
    """Main turns of its longest row."""
    turns: int = 0

    def rank(self) -> tuple[bool, int, bool, int]:
        """Of two, the greater is the agent's own."""
        return self.named, self.longest, self.tools != NO_TOOLS, self.turns


def main_row(paths: Sequence[_Path], mains: Sequence[int], told: Mapping[str, TurnRole]) -> int:
    """The number of the main one of these paths (`mains`, in order), `told` the role of each turn; -1 if there is none.

    It is the newest path of the agent's own conversation; of the choices of one request, which are equally new, the
    first. That conversation is the one that was named so (a header, a rule of the job); else the one whose longest path
    has most main turns; of equals one with tools, then the one with more turns in all, then the first. A judge is asked
    once about what took the agent many turns, and a title that no rule knew comes before the first of them.
    """
    if not mains:
        return -1
    best = max(_conversations(paths, mains, told), key=_Conversation.rank)
    return max(best.rows, key=lambda number: (paths[number][-1].index == 0, number))


def _conversations(
    paths: Sequence[_Path], mains: Sequence[int], told: Mapping[str, TurnRole]
) -> list[_Conversation]:
    """In order of their first paths."""
    found: list[_Conversation] = []
    roots: dict[str, _Conversation] = {}
    counted: set[str] = set()
    for number in mains:
        path = paths[number]
        root = path[0]
        home = roots.get(root.id) or _home(root, found)
        if home is None:
            home = _Conversation(_system(root), _tools(root))
            found.append(home)
        roots[root.id] = home
        own = [turn for turn in path if told[turn.id] is TurnRole.MAIN]
        home.rows.append(number)
        home.named = home.named or any(_named(turn) for turn in own)
        home.longest = max(home.longest, len(own))
        home.turns += sum(turn.id not in counted and not turn.index for turn in own)
        counted.update(turn.id for turn in own)
    return found


def _home(root: Cast, found: Sequence[_Conversation]) -> _Conversation | None:
    """The conversation that a root goes on with: one with its system prompt. A root that a rewritten history made may
    have another one, and goes on with one of its tools, or with the longest."""
    system, tools = _system(root), _tools(root)
    same = [one for one in found if one.system == system and (system != NO_SYSTEM or one.tools == tools)]
    if not same and root.fork not in (None, ForkReason.NEW_ROOT, ForkReason.SIDE_CALL):
        same = [one for one in found if one.tools == tools] or list(found)
    return max(same, key=_Conversation.rank, default=None)


def _system(turn: Cast) -> bytes:
    return turn.head_key[:KEY_BYTES]


def _tools(turn: Cast) -> bytes:
    return turn.head_key[KEY_BYTES : 2 * KEY_BYTES]


def _named(turn: Cast) -> bool:
    return turn.role == TurnRole.MAIN and turn.role_why != ""
