"""The times in a gateway's word of a session, put by the clock as it is now: it may have been stepped since. (pure)

A gateway keeps them as its clock was then, in its journal, and tells them long after. Whoever compares them with times
that were moved along (`clock_step`) must move them as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sandgate.contract.session import SessionState, SessionSummary

SAME_S = 1e-3
"""Times that are less apart are one, summed up in another order."""
ASKED_S = 300.0
"""A gateway may be asked so long before it answers: what it tells is no later than that after it was asked."""


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The clock said `at` when it was found to have gone `by` seconds further than time had."""

    at: float
    by: float


def moved(said: SessionSummary, by: float) -> SessionSummary:
    """All of it was before a step."""
    return replace(
        said,
        turned_at=said.turned_at + by if said.turned_at else 0.0,
        restarted_at=said.restarted_at + by if said.restarted_at else None,
        asked_again_at=said.asked_again_at + by if said.asked_again_at else None,
    )


def by_present_clock(
    said: SessionSummary, steps: Sequence[ClockStep], asked: float, known: SessionSummary | None
) -> SessionSummary:
    """As the gateway told it that was `asked` then. `known`: what it had told before, moved along since."""
    if not steps:
        return said
    spans, before = _spans(steps, asked), known or SessionSummary(session_id="", state=SessionState.OPEN)

    def put(at: float | None, earlier: float | None) -> float | None:
        return _put(at, spans, earlier) if at else at

    return replace(
        said,
        turned_at=put(said.turned_at, before.turned_at) or 0.0,
        restarted_at=put(said.restarted_at, before.restarted_at),
        asked_again_at=put(said.asked_again_at, before.asked_again_at),
    )


def _spans(steps: Sequence[ClockStep], asked: float) -> list[tuple[ClockStep, float]]:
    """Each step, and what the clock said last before the next one."""
    ends = [after.at - after.by for _, after in pairwise(steps)]
    newest = steps[-1]
    return list(zip(steps, [*ends, asked + min(ASKED_S, abs(newest.by) / 2)], strict=True))


def _put(at: float, spans: Sequence[tuple[ClockStep, float]], known: float | None) -> float:
    if known:  # of a clock that was set back times do not say on which side of the step they were
        maybe = at
        for step, _ in (*reversed(spans), (ClockStep(0.0, 0.0), 0.0)):
            if abs(maybe - known) < SAME_S:
                return known
            maybe += step.by
    for step, end in spans:
        # Than it could be by the clock that was set back, and no later than that had said before.
        later = step.by < 0 and end < at <= step.at - step.by
        if later or at < step.at - max(0.0, step.by) / 2:
            at += step.by
    return at
