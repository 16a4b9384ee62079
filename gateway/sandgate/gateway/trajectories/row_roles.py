"""Row roles: which rows of a session are of its main conversation, and which one has the agent's answer. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandgate.contract.choices import TurnRole
from sandgate.gateway.conversation.turn_roles import told_then
from sandgate.gateway.trajectories.main_row import Cast, last_read, main_row, newest

STRONGEST_FIRST = (TurnRole.MAIN, TurnRole.SUBAGENT, TurnRole.SIDE)


def roles_of(paths: Sequence[Sequence[Cast]], read: Mapping[str, int]) -> tuple[list[TurnRole], int]:
    """The role of each path (root to leaf; in order of each leaf's commit), and the number of the main one; -1 if there
    is no path. `read`: the place in order of commit of each turn that the agent was sent in full or went on from.

    A path's role is the strongest (main, subagent, side) of the turns that only it has: a title asked in the middle of
    a conversation is a side call, though the conversation is its head. Where that would leave a turn in weaker paths
    alone (a conversation that ends in two such titles), the newest of them has its role. The main one is the newest of
    the agent's own conversation (see `main_row`). Where no path has role main, the newest is taken for it: whatever the
    session did, it did there.
    """
    told: dict[str, TurnRole] = {}
    holders: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        above = ""
        for turn in path:
            above = told.setdefault(turn.id, TurnRole(told_then(turn.role, turn.fork, above)))
            holders.setdefault(turn.id, []).append(number)
    found = [TurnRole.SIDE] * len(paths)
    for turns_held_alone in (True, False):
        for name, held in holders.items():
            if (len(held) == 1) is turns_held_alone and not any(
                _covers(found[at], told[name]) for at in held
            ):
                found[max(held, key=lambda at: (last_read(paths[at], read), at))] = told[name]
    mains = [number for number, role in enumerate(found) if role is TurnRole.MAIN]
    main = main_row(paths, mains, told, read) if mains else newest(paths, range(len(paths)), read)
    if main >= 0:
        found[main] = TurnRole.MAIN
    return found, main


def _covers(path: TurnRole, turn: TurnRole) -> bool:
    return STRONGEST_FIRST.index(path) <= STRONGEST_FIRST.index(turn)


def owners_of(paths: Sequence[Sequence[Cast]], roles: Sequence[TurnRole]) -> dict[str, int]:
    """Turn id -> number of the path that trains it, where each turn is trained once: of the paths that share it the
    first with the strongest role. Else a title that was asked in the middle of a conversation would take what was said
    before it, and a trainer that leaves out side calls would never see that."""
    owners: dict[str, int] = {}
    for number in sorted(range(len(paths)), key=lambda number: STRONGEST_FIRST.index(roles[number])):
        for turn in paths[number]:
            owners.setdefault(turn.id, number)
    return owners
