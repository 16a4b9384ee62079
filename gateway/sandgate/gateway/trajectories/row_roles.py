"""Row roles: which rows of a session are of its main conversation, and which one has the agent's answer. (pure)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from sandgate.contract.choices import TurnRole
from sandgate.gateway.conversation.turn_roles import told_then

STRONGEST_FIRST = (TurnRole.MAIN, TurnRole.SUBAGENT, TurnRole.SIDE)


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


def roles_of(paths: Sequence[Sequence[Cast]]) -> tuple[list[TurnRole], int]:
    """The role of each path (root to leaf; in order of each leaf's commit), and the number of the main one; -1 if there
    is no path.

    A path's role is the strongest (main, subagent, side) of the turns that only it has: a title asked in the middle of
    a conversation is a side call, though the conversation is its head. The main one is the newest of the paths with
    role main; of the choices of one request, which are equally new, the first. Where no path has role main, the newest
    is taken for it: whatever the session did, it did there.
    """
    shared = Counter(turn.id for path in paths for turn in path)
    found = [_role(path, shared) for path in paths]
    mains = [number for number, role in enumerate(found) if role is TurnRole.MAIN]
    mains = mains or list(range(len(paths)))
    main = max(mains, key=lambda number: (paths[number][-1].index == 0, number), default=-1)
    if main >= 0:
        found[main] = TurnRole.MAIN
    return found, main


def owners_of(paths: Sequence[Sequence[Cast]], roles: Sequence[TurnRole]) -> dict[str, int]:
    """Turn id -> number of the path that trains it, where each turn is trained once: of the paths that share it the
    first with the strongest role. Else a title that was asked in the middle of a conversation would take what was said
    before it, and a trainer that leaves out side calls would never see that."""
    owners: dict[str, int] = {}
    for number in sorted(range(len(paths)), key=lambda number: STRONGEST_FIRST.index(roles[number])):
        for turn in paths[number]:
            owners.setdefault(turn.id, number)
    return owners


def _role(path: Sequence[Cast], shared: Counter[str]) -> TurnRole:
    told, own = "", set()
    for turn in path:
        told = told_then(turn.role, turn.fork, told)
        if shared[turn.id] == 1:
            own.add(told)
    return next((role for role in STRONGEST_FIRST if role in own), TurnRole.SIDE)
