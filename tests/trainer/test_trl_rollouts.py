"""What `Rollouts` takes, and what it refuses before a run begins."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sandgate.contract.errors import InvalidBody
from sandgate.contract.job import Task
from sandgate.trainer.client.fleet import fleet
from sandgate.trainer.trl.names import Round
from sandgate.trainer.trl.rollouts import Rollouts

TASKS = [Task(uid=name, prompt=f"buy a {name}") for name in ("fig", "nut")]


def rollouts(tasks: list[Task] = TASKS, **options: Any) -> Rollouts:
    return Rollouts(fleet({"g": "http://g"}, "k"), tasks, job="shop", **options)


def test_an_agent_may_take_hours_and_is_waited_for() -> None:
    hours = rollouts(agent=print, session_s=36_000.0)
    assert (hours._session_s, hours._wait_s) == (36_000.0, 72_000.0)
    assert rollouts(wait_s=5.0)._wait_s == 5.0
    for seconds in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InvalidBody, match="session_s"):
            rollouts(session_s=seconds)


def test_no_two_processes_give_their_evaluations_the_same_names() -> None:
    """Restarted from one checkpoint, each evaluates at the same step; a name that comes again is a group that was
    acknowledged already, or a task that is not run a second time."""
    begins = {rollouts()._evaluated for _ in range(50)}
    assert len(begins) >= 49, "of 900,000, by chance one may come twice"
    apart = sorted(begins)
    assert all(b - a >= 1_000_000 for a, b in pairwise(apart)), "room for evaluations of a million batches"
    last = Round(7, max(begins) + 999_999, training=False)
    (named,) = last.tasks("run", [Task(uid="t1", prompt="")])
    assert Round.of("run", named.uid) == last


def test_a_uid_that_is_too_long_for_its_rounds_is_refused_before_the_run() -> None:
    with pytest.raises(InvalidBody, match="leaves no room"):
        rollouts([Task(uid="u" * 250, prompt="buy a fig")])
