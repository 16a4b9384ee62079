"""Why a row teaches nothing: the same rules for every trainer. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sandgate.contract.choices import TurnRole
from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.trajectory import Trajectory, main_row
from sandgate.trainer.credit.lengths import Lengths

TAUGHT = (TurnRole.MAIN, TurnRole.SUBAGENT)
"""Roles whose rows teach, unless one says otherwise: a title is not what the session was scored for."""
TRUNCATIONS = frozenset(
    {
        FailureReason.TURN_LIMIT,
        FailureReason.TOKEN_LIMIT,
        FailureReason.CONTEXT_EXCEEDED,
        FailureReason.SESSION_TIMEOUT,
    }
)
"""A limit ended the episode, not the agent."""
LENGTH = "length"
"""Finish reason of an answer that has as many tokens as it may."""
Truncated = Literal["score", "mask"]
"""What becomes of truncated episodes: they count with their score, as verl's own loops do it; or they teach nothing
and are no part of the mean (DAPO's overlong filtering)."""


class LeftOut(StrEnum):
    """Why a row teaches nothing."""

    FAILURE = "failure"
    """Its session failed, and not by the policy's doing."""
    NO_REWARD = "no_reward"
    """Nobody scored it."""
    TRUNCATED = "truncated"
    """A limit ended its session or its answer, and such are to be masked."""
    TOO_LONG = "too_long"
    """It has more tokens than the trainer takes."""
    PLACEHOLDER = "placeholder"
    """It has a token that stands for a part of a picture, and there is no picture: the policy sampled it. A model that
    sees cannot be run on it."""
    ROLE = "role"
    """It is a side call, or of another role that is not taught."""
    OTHER_ROW = "other_row"
    """The trainer takes one row of a session, and it is another."""
    NOTHING_SAMPLED = "nothing_sampled"
    """None of its tokens is for it to train: all are context, or trained in another row of its session."""


WHOLE_SESSION = frozenset(
    {LeftOut.FAILURE, LeftOut.NO_REWARD, LeftOut.TRUNCATED, LeftOut.TOO_LONG, LeftOut.PLACEHOLDER}
)
"""Where they are true of a session's main row, none of its rows teaches, and it is no part of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRules:
    """What teaches."""

    roles: Collection[str] = TAUGHT
    lengths: Lengths | None = None
    """The most that the trainer takes; None: any."""
    truncated: Truncated = "score"
    scored: bool = True
    """Rewards are there; without, the trainer gives them later."""
    misplaced: Callable[[Trajectory], bool] | None = None
    """Whether a row has placeholders of pictures where there are none; None: nobody looks."""

    def fits(self, row: Trajectory) -> bool:
        """Whether a trainer can take the row as it is, if only under mask 0."""
        if self.lengths is not None and not self.lengths.fits(row):
            return False
        return self.misplaced is None or not self.misplaced(row)

    def why(self, row: Trajectory) -> LeftOut | None:
        """Why the row, looked at alone, teaches nothing; None: it teaches."""
        if row.failure_class not in (None, FailureClass.POLICY):
            return LeftOut.FAILURE
        if self.truncated == "mask" and is_truncated(row):
            return LeftOut.TRUNCATED
        if self.scored and row.reward is None:
            return LeftOut.NO_REWARD
        if self.lengths is not None and not self.lengths.fits(row):
            return LeftOut.TOO_LONG
        if self.misplaced is not None and self.misplaced(row):
            return LeftOut.PLACEHOLDER
        if row.role and row.role not in self.roles:
            return LeftOut.ROLE
        return None if 1 in row.loss_mask else LeftOut.NOTHING_SAMPLED


def is_truncated(row: Trajectory) -> bool:
    """Whether a limit (window, turns, tokens, time) ended the row's session, or its last answer."""
    return row.failure_reason in TRUNCATIONS or row.finish_reason == LENGTH


def mains_of(rows: Sequence[Trajectory]) -> dict[tuple[str, str], Trajectory]:
    """(task, session) -> its main row; in the order of the sessions' first rows."""
    sessions: dict[tuple[str, str], list[Trajectory]] = {}
    for row in rows:
        sessions.setdefault((row.uid, row.session_id), []).append(row)
    return {name: main_row(found) for name, found in sessions.items()}


def reasons(rows: Sequence[Trajectory], rules: CreditRules) -> list[LeftOut | None]:
    """For each row why it teaches nothing, None where it teaches. `rows`: with all rows of their sessions."""
    ends = {name: rules.why(main) for name, main in mains_of(rows).items()}
    found = []
    for row in rows:
        end = ends[row.uid, row.session_id]
        found.append(end if end in WHOLE_SESSION else rules.why(row))
    return found
