"""prepare: which rows of a group teach, what each session scored, and the advantage of each row. (pure)

The same rules for every trainer. A group's mean and deviation are over sessions, each once: a session that forked into
ten rows counts no more than one that did not. A session that failed for no fault of the policy, or that nobody scored,
is no part of them. What is left out has a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import fmean, stdev

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.reasons import (
    TAUGHT,
    WHOLE_SESSION,
    CreditRules,
    Truncated,
    mains_of,
    reasons,
)
from sandgate.trainer.credit.reasons import LeftOut as LeftOut
from sandgate.trainer.credit.samples import refuse_reward
from sandgate.trainer.credit.shared_turns import handed_on

EPSILON = 1e-4
"""Added to the deviation, as in TRL; a group whose rows all scored the same has advantages of 0."""


@dataclass(frozen=True, slots=True)
class CreditedRow:
    """A row and what it teaches."""

    trajectory: Trajectory
    advantage: float
    """0.0 where it teaches nothing."""
    left_out: LeftOut | None = None
    """None: it teaches."""


@dataclass(frozen=True, slots=True)
class CreditedGroup:
    """All rows of one task's sessions."""

    rows: tuple[CreditedRow, ...]
    """In the order in which they came."""
    scores: Mapping[str, float]
    """Session id -> the reward of its main row; the sessions that count, in the order of their first rows."""
    mean: float
    """Of the scores; 0.0 without any."""
    deviation: float
    """Of the scores as a sample (n - 1, as torch.std); 0.0 for fewer than two."""
    spread: float = 0.0
    """How far rows lie from their own session's score: the root of the mean, over sessions, of the square of the row
    that lies farthest. 0.0 unless single turns were rewarded."""

    @property
    def taught(self) -> tuple[CreditedRow, ...]:
        """The rows that teach."""
        return tuple(row for row in self.rows if row.left_out is None)

    @property
    def left_out(self) -> Counter[str]:
        """Reason -> how many rows; for metrics."""
        return Counter(row.left_out.value for row in self.rows if row.left_out is not None)


def prepare(
    rows: Iterable[Trajectory],
    *,
    roles: Collection[str] = TAUGHT,
    scale: bool = True,
    lengths: Lengths | None = None,
    truncated: Truncated = "score",
) -> CreditedGroup:
    """Credit of one group. `rows`: of all its sessions, in any order. `roles`: which teach. `scale`: advantages are
    divided by the deviation (GRPO); without, they are differences from the mean (Dr. GRPO). `lengths`: the most that
    the trainer takes of a row. `truncated`: whether episodes that a limit ended count, or are masked.

    What a row that is left out would have trained for others of its session, the first of those trains (`handed_on`).

    A row's advantage is that of its own reward, which is the session's unless single turns were rewarded; what it is
    divided by then has the rows' spread in it, or sessions that all scored the same would make thousands of it. Rows
    that are older than roles teach. Raises InvalidBody for rows of more than one task, and for a reward that is no
    number.
    """
    given = list(rows)
    for row in given:
        refuse_reward(row)
    tasks = {row.uid for row in given}
    if len(tasks) > 1:
        raise InvalidBody(f"rows of {len(tasks)} tasks; a group is of one", field="uid")
    rules = CreditRules(roles=roles, lengths=lengths, truncated=truncated)
    scores = _scores(given, rules)
    mean = fmean(scores.values()) if scores else 0.0
    deviation = stdev(scores.values()) if len(scores) > 1 else 0.0
    why_not = reasons(given, rules)
    given = handed_on(given, why_not)
    spread = _spread([row for row, why in zip(given, why_not, strict=True) if why is None], scores, mean)
    unit = hypot(deviation, spread) + EPSILON if scale else 1.0
    credited = [
        CreditedRow(row, 0.0 if why or row.reward is None else (row.reward - mean) / unit, why)
        for row, why in zip(given, why_not, strict=True)
    ]
    return CreditedGroup(tuple(credited), scores, mean, deviation, spread)


def why_left_out(row: Trajectory, *, roles: Collection[str] = TAUGHT, scored: bool = True) -> LeftOut | None:
    """Why a row, looked at alone, teaches nothing; None: it teaches. `scored`: rewards are there; without, a trainer
    gives them later."""
    return CreditRules(roles=roles, scored=scored).why(row)


def _spread(taught: Sequence[Trajectory], scores: Mapping[str, float], mean: float) -> float:
    farthest: dict[str, float] = {}
    for row in taught:
        if row.reward is not None:
            away = abs(row.reward - scores.get(row.session_id, mean))
            farthest[row.session_id] = max(away, farthest.get(row.session_id, 0.0))
    return sqrt(fmean(away * away for away in farthest.values())) if farthest else 0.0


def _scores(rows: Sequence[Trajectory], rules: CreditRules) -> dict[str, float]:
    return {
        session: main.reward
        for (_, session), main in mains_of(rows).items()
        if main.reward is not None and rules.why(main) not in WHOLE_SESSION
    }
