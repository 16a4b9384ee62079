"""The audit log, counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.scale.figures import figures, quantile

US = "operator"


def event(verb: str, resource: str, name: str, at: float, **more: Any) -> dict[str, Any]:
    """Asked for 0.1 s before `at`, seconds after noon."""
    ref = {"resource": resource, "name": name}
    if "subresource" in more:
        ref["subresource"] = more["subresource"]
    return {
        "verb": verb,
        "user": {"username": more.get("user", US)},
        "objectRef": ref,
        "responseStatus": {"code": more.get("code", 201)},
        "requestReceivedTimestamp": f"2026-01-01T12:00:{at - 0.1:09.6f}Z",
        "stageTimestamp": f"2026-01-01T12:00:{at:09.6f}Z",
    }


EVENTS = [
    event("create", "agentsessions", "a", 1.1),
    event("create", "agentsessions", "b", 2.0),
    event("create", "pods", "b", 3.0),
    event("create", "pods", "a", 1.5, code=409),
    event("create", "pods", "a", 1.6),
    event("create", "pods", "stranger", 9.0, user="somebody"),
    event("watch", "pods", "", 9.0),
    event("list", "pods", "", 9.0),
    event("patch", "agentsessions", "a", 5.0, subresource="status", code=200),
    event("patch", "agentsessions", "b", 5.9, subresource="status", code=404),
]


def test_writes_of_the_operator_are_counted_refused_ones_too() -> None:
    found = figures(EVENTS, US)
    assert found.writes == {
        "create agentsessions": 2,
        "create pods": 3,
        "patch agentsessions/status": 2,
    }
    assert found.sessions == 2
    assert found.writes_per_session == 3.5


def test_times_are_from_one_answer_to_the_other() -> None:
    found = figures(EVENTS, US)
    assert found.wait_s == pytest.approx((0.5, 1.0))
    assert found.rate == pytest.approx(2 / 4.0), "from the first question to the last status"


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        pytest.param(1, 0.5, 1, id="of one it is that one"),
        pytest.param(100, 0.5, 50, id="half do not exceed the median"),
        pytest.param(100, 0.99, 99, id="p99 of a hundred is the second largest"),
        pytest.param(1000, 0.99, 990, id="p99 of a thousand leaves ten"),
        pytest.param(3, 1.0, 3, id="all do not exceed the largest"),
    ],
)
def test_quantile(count: int, share: float, expected: int) -> None:
    assert quantile(tuple(range(1, count + 1)), share) == expected
