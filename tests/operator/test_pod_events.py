"""Of a pod's Events, the one that says what it waits for now."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.operator.cluster.pod_events import words


def event(reason: str, message: str, at: str = "", kind: str = "Warning", **more: Any) -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message, "lastTimestamp": at or None, **more}


MOUNT = 'MountVolume.SetUp failed for volume "keys" : secret "x" not found'
CASES: dict[str, tuple[list[Any], str]] = {
    "none": ([], ""),
    "a volume that cannot be mounted": ([event("FailedMount", MOUNT)], f"FailedMount: {MOUNT}"),
    "what goes well says nothing": (
        [event("Scheduled", "to n1", kind="Normal"), event("Pulled", "it", kind="Normal")],
        "",
    ),
    "an image that is being pulled": (
        [event("Pulling", 'Pulling image "big:1"', kind="Normal")],
        'Pulling: Pulling image "big:1"',
    ),
    "the newest of several": (
        [event("FailedMount", "new", "2026-01-01T00:00:09Z"), event("FailedMount", "old", "2026-01-01T00:00:01Z")],
        "FailedMount: new",
    ),
    "a pod that has a node by now is scheduled": ([event("FailedScheduling", "0/3 nodes")], ""),
    "an Event of the newer kind has another time": (
        [event("A", "old", "2026-01-01T00:00:01Z"), event("B", "new", eventTime="2026-01-01T00:00:02.000001Z")],
        "B: new",
    ),
    "words of a terminal's escapes and lines are made plain": ([event("A", "\x1b[31mbad\nworse")], "A: bad worse"),
    "an Event that says little": ([{"type": "Warning", "reason": "Odd"}], "Odd"),
}  # fmt: skip


@pytest.mark.parametrize(("listed", "said"), CASES.values(), ids=CASES)
def test_what_events_say_of_a_pod(listed: list[Any], said: str) -> None:
    assert words(listed) == said
