"""Session trees as the gateway shows them (GET .../tree), laid out for reading. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sandgate.contract.choices import TurnRole
from sandgate.contract.trajectory import Json

Tree = dict[str, Json]
"""What GET /v1/sessions/{id}/tree answers: the session's summary, and its `turns` in order of commit."""


@dataclass(frozen=True, slots=True)
class Line:
    """One turn of a laid-out tree. A turn that continues its parent stands below it; a branch is one deeper."""

    depth: int
    turn: dict[str, Any]
    continues: bool
    """It is its parent's first child."""


def lay_out(tree: Tree) -> Iterator[Line]:
    """Depth first, branches before the continuation, so that a linear conversation is a column of any length."""
    children: dict[str | None, list[dict[str, Any]]] = {}
    known = {turn["turn"] for turn in tree["turns"]}
    for turn in tree["turns"]:
        children.setdefault(turn["parent"] if turn["parent"] in known else None, []).append(turn)
    pending = [Line(0, root, continues=False) for root in reversed(children.get(None, []))]
    while pending:
        line = pending.pop()
        yield line
        below = children.get(line.turn["turn"], [])
        pending += [Line(line.depth, first, continues=True) for first in below[:1]]
        pending += [Line(line.depth + 1, other, continues=False) for other in reversed(below[1:])]


def fork_rows(tree: Tree) -> list[dict[str, Json]]:
    """Each turn that broke token identity with what came before it, and why; in order of commit."""
    return [
        {
            "session": tree["session_id"],
            "uid": tree["uid"],
            "sample": tree["sample_index"],
            "turn": turn["turn"],
            "left": turn["parent"] or "",
            "reason": turn["fork"],
            "role": turn.get("role", ""),
            "prompt_tokens": turn["prompt_tokens"],
        }
        for turn in tree["turns"]
        if turn["fork"]
    ]


def beside(turn: dict[str, Any]) -> str:
    """`side (title)`: the role of a turn that is not of the main conversation, and what told it; else empty. A gateway
    that is older than roles says none."""
    role, why = turn.get("role", ""), turn.get("role_why", "")
    if role in ("", TurnRole.MAIN):
        return ""
    return f"{role} ({why})" if why else str(role)


def versions(turn: dict[str, Any]) -> str:
    """`v7`, or `v7-8` if the policy changed while the turn was sampled."""
    found = sorted({version for version, start, end in turn["versions"] if end > start})
    if not found:
        return ""
    return f"v{found[0]}" if len(found) == 1 else f"v{found[0]}-{found[-1]}"
