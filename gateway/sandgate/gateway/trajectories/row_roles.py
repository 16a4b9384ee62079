"""Row roles: which rows of a session are of its main conversation, and which one has the agent's answer. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandgate.contract.choices import TurnRole
from sandgate.gateway.conversation.turn_roles import told_then
from sandgate.gateway.trajectories.main_row import AnyCast, Cast, last_reads, main_row, newest
from sandgate.gateway.trajectories.row_tree import RowTree

STRONGEST_FIRST = (TurnRole.MAIN, TurnRole.SUBAGENT, TurnRole.SIDE)


def roles_of(rows: RowTree[AnyCast], read: Mapping[str, int]) -> tuple[list[TurnRole], int]:
    """The role of each row, and the number of the main one; -1 if there is no row. `read`: the place in order of commit
    of each turn that the agent was sent in full or went on from.

    A row's role is the strongest (main, subagent, side) of the turns that only it has: a title asked in the middle of a
    conversation is a side call, though the conversation is its head. Where that would leave a turn in weaker rows alone
    (a conversation that ends in two such titles), the newest of them has its role. The main one is the newest of the
    agent's own conversation (see `main_row`). Where no row has role main, the newest is taken for it: whatever the
    session did, it did there.

    Takes the time that the turns take, not the rows: a session of 500 branches is sealed behind this.
    """
    told: dict[str, TurnRole] = {}
    for turn in rows.order:
        above = told[turn.parent] if turn.parent is not None else ""
        told[turn.id] = TurnRole(told_then(turn.role, turn.fork, above))
    last = last_reads(rows, read)
    found = _strongest(rows, told, last)
    mains = [number for number, role in enumerate(found) if role is TurnRole.MAIN]
    main = main_row(rows, mains, told, read) if mains else newest(rows, range(len(rows.ends)), last)
    if main >= 0:
        found[main] = TurnRole.MAIN
    return found, main


def _strongest(
    rows: RowTree[AnyCast], told: Mapping[str, TurnRole], last: Mapping[str, int]
) -> list[TurnRole]:
    """The role of each row by its turns."""
    holders: dict[str, int] = {}
    """Turn -> how many rows have it."""
    newest_of: dict[str, tuple[int, int]] = {}
    """... and the newest of them: what was read last of it, and its number."""
    for number, end in enumerate(rows.ends):
        holders[end], newest_of[end] = 1, (last[end], number)
    for turn in reversed(rows.order):
        if (parent := turn.parent) is not None:
            holders[parent] = holders.get(parent, 0) + holders[turn.id]
            newest_of[parent] = max(newest_of.get(parent, newest_of[turn.id]), newest_of[turn.id])
    found = [TurnRole.SIDE] * len(rows.ends)
    for turn in rows.order:
        at = newest_of[turn.id][1]
        if holders[turn.id] == 1:
            found[at] = _stronger(found[at], told[turn.id])
    best = dict.fromkeys(told, TurnRole.SIDE)
    """Turn -> the strongest role of the rows that have it."""
    for number, end in enumerate(rows.ends):
        _raise(rows, best, end, found[number])
    for turn in rows.order:
        if holders[turn.id] > 1 and not _covers(best[turn.id], told[turn.id]):
            at = newest_of[turn.id][1]
            found[at] = told[turn.id]
            _raise(rows, best, rows.ends[at], found[at])
    return found


def _raise(rows: RowTree[AnyCast], best: dict[str, TurnRole], end: str, role: TurnRole) -> None:
    """A row has this role: so far up as that is news. It is at most twice for each turn."""
    for turn in rows.up(end):
        if _covers(best[turn.id], role):
            return
        best[turn.id] = role


def _stronger(one: TurnRole, other: TurnRole) -> TurnRole:
    return one if _covers(one, other) else other


def _covers(one: TurnRole, other: TurnRole) -> bool:
    return STRONGEST_FIRST.index(one) <= STRONGEST_FIRST.index(other)


def owners_of(paths: Sequence[Sequence[Cast]], roles: Sequence[TurnRole]) -> dict[str, int]:
    """Turn id -> number of the path that trains it, where each turn is trained once: of the paths that share it the
    first with the strongest role. Else a title that was asked in the middle of a conversation would take what was said
    before it, and a trainer that leaves out side calls would never see that."""
    owners: dict[str, int] = {}
    for number in sorted(range(len(paths)), key=lambda number: STRONGEST_FIRST.index(roles[number])):
        for turn in paths[number]:
            owners.setdefault(turn.id, number)
    return owners
