"""The main row: of a session's main conversations the one that is the agent's own, and its newest row. (pure)

Roles alone do not tell an agent without tools from a judge without tools: both are main, in two conversations. Nor does
the order of commit tell the agent's answer from what it threw away: a stream that it let go of goes on for a while, and
its turn is committed when the agent has its answer already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from sandgate.contract.choices import TurnRole
from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.message_equality import KEY_BYTES, NO_SYSTEM, NO_TOOLS
from sandgate.gateway.trajectories.row_tree import Linked, RowTree


class Cast(Linked, Protocol):
    """The part of a turn that is needed here."""

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


AnyCast = TypeVar("AnyCast", bound=Cast)


@dataclass(slots=True)
class _Conversation:
    """The rows that are one conversation: what begins anew behind a summary or under other tools goes on with it."""

    system: bytes
    tools: bytes
    rows: list[int] = field(default_factory=list)
    named: bool = False
    """An agent or its job said that this is the main one."""
    longest: int = 0
    """Main turns of its longest row, without what the agent let go of."""
    longest_begun: int = 0
    """With that."""
    turns: int = 0
    """Main turns, without what the agent let go of."""

    def rank(self) -> tuple[bool, int, bool, int, int]:
        """Of two, the greater is the agent's own. One of which nothing was read counts as one of a turn: an agent that
        ran out of time in its first is no less than the title before it."""
        longest, turns = max(self.longest, 1), max(self.turns, 1)
        return self.named, longest, self.tools != NO_TOOLS, turns, self.longest_begun


def main_row(
    rows: RowTree[AnyCast], mains: Sequence[int], told: Mapping[str, TurnRole], read: Mapping[str, int]
) -> int:
    """The number of the main one of these rows (`mains`, in order), `told` the role of each turn; -1 if there is none.
    `read`: the place in order of commit of each turn that the agent was sent in full or went on from.

    It is the newest row of the agent's own conversation (see `newest`). That conversation is the one that was named so
    (a header, a rule of the job); else the one whose longest row has most main turns; of equals one with tools, then
    the one with more turns in all, then the first. A judge is asked once about what took the agent many turns, and a
    title that no rule knew comes before the first of them.
    """
    if not mains:
        return -1
    best = max(_conversations(rows, mains, told, read), key=_Conversation.rank)
    return newest(rows, best.rows, last_reads(rows, read))


def newest(rows: RowTree[AnyCast], numbers: Iterable[int], last: Mapping[str, int]) -> int:
    """Of the rows with these numbers the one with the newest turn that the agent read (`last_reads`); of the choices of
    one request, which are equally new, the first; of those that read alike, the one that ended last. -1 if there is
    none."""

    def rank(number: int) -> tuple[bool, int, int]:
        end = rows.ends[number]
        return rows.by_id[end].index == 0, last[end], number

    return max(numbers, key=rank, default=-1)


def last_reads(rows: RowTree[AnyCast], read: Mapping[str, int]) -> dict[str, int]:
    """Turn -> the place of the newest turn that the agent read, of it and those above it; -1 if it read none."""
    last: dict[str, int] = {}
    for turn in rows.order:
        above = last[turn.parent] if turn.parent is not None else -1
        last[turn.id] = read.get(turn.id, above)
    return last


@dataclass(frozen=True, slots=True)
class _Head(Generic[AnyCast]):
    """What the turns from the root to one come to."""

    root: AnyCast
    named: bool
    begun: int
    """Main turns."""
    whole: int
    """Of them, those that the agent read."""


def _heads(
    rows: RowTree[AnyCast], told: Mapping[str, TurnRole], read: Mapping[str, int]
) -> dict[str, _Head[AnyCast]]:
    heads: dict[str, _Head[AnyCast]] = {}
    for turn in rows.order:
        above = _Head(turn, False, 0, 0) if turn.parent is None else heads[turn.parent]
        main = told[turn.id] is TurnRole.MAIN
        heads[turn.id] = _Head(
            above.root,
            above.named or (main and _named(turn)),
            above.begun + main,
            above.whole + (main and turn.id in read),
        )
    return heads


def _conversations(
    rows: RowTree[AnyCast], mains: Sequence[int], told: Mapping[str, TurnRole], read: Mapping[str, int]
) -> list[_Conversation]:
    """In order of their first rows."""
    found: list[_Conversation] = []
    roots: dict[str, _Conversation] = {}
    counted: set[str] = set()
    heads = _heads(rows, told, read)
    for number in mains:
        head = heads[rows.ends[number]]
        root = head.root
        home = roots.get(root.id) or _home(root, found)
        if home is None:
            home = _Conversation(_system(root), _tools(root))
            found.append(home)
        roots[root.id] = home
        home.rows.append(number)
        home.named = home.named or head.named
        home.longest = max(home.longest, head.whole)
        home.longest_begun = max(home.longest_begun, head.begun)
        fresh = list(rows.up(rows.ends[number], until=counted))
        counted.update(turn.id for turn in fresh)
        own = (turn for turn in fresh if told[turn.id] is TurnRole.MAIN)
        home.turns += sum(turn.id in read and not turn.index for turn in own)
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
