"""Which samples get another attempt, and when."""

from __future__ import annotations

import pytest

from sandgate.contract.failure_reasons import FailureReason as R
from sandgate.operator.plan.actions import SampleObserved
from sandgate.operator.plan.retries import retry_at, retryable
from sandgate.operator.plan.settling import ended_with
from tests.operator.plans import spec

INFRA = 3
"""Further attempts that the job allows."""


def pauses(*ends: R) -> list[float]:
    """Before each further attempt of a sample whose attempts end so, as far as there is one."""
    rules, sample, found = spec(group={"retry": {"infra": INFRA}}), SampleObserved(), list[float]()
    for attempt, reason in enumerate(ends):
        sample = ended_with(reason, attempt, 100.0, sample)
        if not retryable(sample, rules):
            break
        found.append(retry_at(sample) - 100.0)
    return found


REFUSED = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
CASES: dict[str, tuple[tuple[R, ...], list[float]]] = {
    "what breaks gets a moment, longer each time": ((R.NODE_LOST,) * 9, [1.0, 2.0, 4.0]),
    "what we do ourselves costs nothing": ((R.ABORTED, R.DRIVER_LOST) * 5, [0.0] * 10),
    "a node that takes no pods has minutes, not for ever": ((R.NODE_REFUSED,) * 99, [*REFUSED, 60.0, 60.0, 60.0]),
    "refusals spend nothing, and start from a short pause": (
        (R.NODE_LOST, R.NODE_REFUSED, R.NODE_REFUSED, R.NODE_LOST, R.NODE_LOST, R.NODE_LOST),
        [1.0, 1.0, 2.0, 2.0, 4.0],
    ),
    "an agent's failure is no case for another": ((R.AGENT_EXIT,), []),
}  # fmt: skip


@pytest.mark.parametrize(("ends", "waits"), CASES.values(), ids=CASES)
def test_the_pauses_between_attempts(ends: tuple[R, ...], waits: list[float]) -> None:
    assert pauses(*ends) == waits


def test_who_wants_no_retries_has_none_but_of_what_never_ran() -> None:
    never = spec(group={"retry": {"infra": 0}})
    ends = {reason: ended_with(reason, 0, 1.0, SampleObserved()) for reason in (R.NODE_LOST, R.NODE_REFUSED)}
    assert [retryable(one, never) for one in ends.values()] == [False, True]
