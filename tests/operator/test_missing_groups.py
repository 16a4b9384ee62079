"""When a group is there, and what is said of one that is not."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.session import SessionState, SessionSummary
from sandgate.operator.plan.missing_groups import Gaps, Sample, cause, gaps, has_row, one_line
from tests.operator.plans import spec

ROWS: dict[str, tuple[dict[str, Any], bool]] = {
    "it ended well": ({}, True),
    "the policy failed": ({"failure_class": "policy"}, True),
    "the agent crashed after a turn: a row, masked": ({"failure_class": "agent"}, True),
    "the agent crashed before one": ({"failure_class": "agent", "turns": 0}, False),
    "it ended well and never asked": ({"turns": 0}, False),
    "the infrastructure failed, turns or not": ({"failure_class": "infra"}, False),
    "it was aborted": ({"state": SessionState.ABORTED}, False),
    "it runs": ({"state": SessionState.OPEN}, False),
}


@pytest.mark.parametrize(("more", "wanted"), ROWS.values(), ids=ROWS)
def test_has_row(more: dict[str, Any], wanted: bool) -> None:
    fields: dict[str, Any] = {"session_id": "s", "state": SessionState.FINALIZED, "turns": 1}
    assert has_row(SessionSummary(**(fields | more))) is wanted


def have(text: str) -> set[Sample]:
    """`a0 a1 b0`."""
    return {(one[0], int(one[1:])) for one in text.split()}


GAPS: dict[str, tuple[dict[str, Any], str, Gaps]] = {
    "every sample has a row": ({}, "a0 a1 a2 b0 b1 b2", {}),
    "one is missing": ({}, "a0 a1 a2 b0 b2", {"b": (1,)}),
    "a quorum is enough": ({"group__quorum": 2}, "a0 a1 a2 b0 b2", {}),
    "less than a quorum is not": ({"group__quorum": 2}, "a0 a1 b2", {"b": (0, 1)}),
    "nothing is there": ({}, "", {"a": (0, 1, 2), "b": (0, 1, 2)}),
    "rows of other tasks do not help": ({"group__quorum": 1}, "a0 c0 c1 c2", {"b": (0, 1, 2)}),
    "nor of samples that the job does not have": ({"group__quorum": 1}, "a0 b3", {"b": (0, 1, 2)}),
}


@pytest.mark.parametrize(("fields", "rows", "wanted"), GAPS.values(), ids=GAPS)
def test_gaps(fields: dict[str, Any], rows: str, wanted: Gaps) -> None:
    assert gaps("ab", spec(groupSize=3, **fields), have(rows)) == wanted


def attempt(at: float, **more: Any) -> SessionSummary:
    fields: dict[str, Any] = {"session_id": f"s{at:g}", "state": SessionState.FINALIZED, "changed_at": at}
    return SessionSummary(**(fields | more))


INFRA = {
    "failure_class": "infra",
    "failure_reason": "StartFailed",
    "failure_detail": "pythonx is not on PATH",
}
ENGINE = {
    "failure_class": "infra",
    "failure_reason": "EngineError",
    "failure_detail": "exit code 1; the engine failed 2 calls of it: no such model",
}
CAUSES: dict[str, tuple[Gaps, dict[Sample, SessionSummary], str]] = {
    "nothing is missing": ({}, {}, ""),
    "the first that ended is named": (
        {"a": (0, 1), "b": (0,)},
        {("a", 0): attempt(9, **ENGINE), ("a", 1): attempt(5, **INFRA), ("b", 0): attempt(7)},
        "2 of 3 groups are incomplete, 3 samples without a row; the first: s5: infra/StartFailed"
        " pythonx is not on PATH",
    ),
    "not one of a group that is there": (
        {"b": (0,)},
        {("a", 0): attempt(1, **INFRA), ("b", 0): attempt(7, **ENGINE)},
        "1 of 3 groups are incomplete, 1 samples without a row; the first: s7: infra/EngineError exit code 1;"
        " the engine failed 2 calls of it: no such model",
    ),
    "it ended well": (
        {"b": (0,)},
        {("b", 0): attempt(7)},
        "1 of 3 groups are incomplete, 1 samples without a row; the first: s7: it ended without a turn",
    ),
    "none of them ever ran": ({"b": (0,)}, {}, "1 of 3 groups are incomplete, 1 samples without a row"),
}


@pytest.mark.parametrize(("missing", "newest", "wanted"), CAUSES.values(), ids=CAUSES)
def test_cause(missing: Gaps, newest: dict[Sample, SessionSummary], wanted: str) -> None:
    assert cause(missing, 3, newest) == wanted


def test_what_an_agent_said_moves_nothing_on_a_terminal() -> None:
    assert one_line("a\n\x1b[31mb\x07\tc") == "a [31mb c"
