"""Random groups: sessions with forks, side calls, sub-agents, failures and truncations, each also without its forks.

From a seed and the standard library alone: the trainers' environments have no hypothesis.
"""

from __future__ import annotations

import random
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.journal.records import Sealed
from sandgate.gateway.trajectories.linearize import linearize
from tests.gateway.trajectories.forest import T, seen
from tests.trainer.made_group import RandomGroup as RandomGroup

NAMES = "abcdefghij"
ROLES = ("main", "main", "main", "side", "subagent")
ENDS: tuple[tuple[float | None, str | None, str | None], ...] = (
    (1.0, None, None),
    (0.25, None, None),
    (0.0, None, None),
    (0.5, None, "AnswerWrong"),
    (0.0, "policy", "TurnLimit"),
    (0.0, "policy", "ContextExceeded"),
    (None, "infra", "NodeLost"),
    (0.0, "agent", "AgentExit"),
    (None, None, None),
)
"""(reward, failure class, reason)"""
COUNTS = (None, "policy")


def session(
    number: int, turns: list[T], end: tuple[float | None, str | None, str | None]
) -> list[Trajectory]:
    """The rows of a session with these turns."""
    reward, failure, reason = end
    sealed = Sealed(at=1.0, reward=reward, failure_class=failure, failure_reason=reason)
    spec: dict[str, Any] = {"job": "shop", "uid": "q1", "sample_index": number}
    return linearize(turns, session_id=f"s{number}", spec=spec, sealed=sealed, delivered=seen(turns))


def tree(rng: random.Random) -> list[T]:
    """One to ten turns; each goes on from an earlier one, or begins anew."""
    turns = [T("a", role="main")]
    for at in range(1, rng.randint(1, len(NAMES))):
        parent = rng.choice([None, *NAMES[:at]])
        fork = None if parent else rng.choice(["side_call", "compaction", "new_root"])
        turns.append(T(NAMES[at], parent, role=rng.choice(ROLES), fork=fork, version=rng.randint(1, 3)))
    return turns


def random_group(seed: int, *, sessions: int | None = None, fails: float = 0.3) -> RandomGroup:
    """`fails`: the share of sessions that do not count; 1.0: all."""
    rng, found = random.Random(seed), RandomGroup()
    found.sessions = rng.randint(1, 6) if sessions is None else sessions
    for number in range(found.sessions):
        good = [one for one in ENDS if one[0] is not None and one[1] in COUNTS]
        bad = [one for one in ENDS if one not in good]
        end = rng.choice(bad if rng.random() < fails else good)
        turns = tree(rng)
        found.forked += session(number, turns, end)
        found.plain += session(number, turns[:1], end)
        if end in good:
            assert end[0] is not None
            found.rewards[f"s{number}"] = end[0]
            found.main_turns[f"s{number}"] = [turn.id for turn in turns if turn.role == "main"]
    rng.shuffle(found.forked)
    return found


def trained(ids: list[int], mask: list[int]) -> list[str]:
    """The turns of which each token of these is trained, once for each time; a turn's ids say which it is."""
    first = [one for one, bit in zip(ids, mask, strict=True) if bit and one % 1000 == 500]
    assert sum(mask) == 3 * len(first), "turns are trained whole"
    return [NAMES[one // 1000 - 1] for one in first]
