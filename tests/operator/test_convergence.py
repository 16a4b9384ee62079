"""Whatever order things happen in, and however often the driver dies, a job ends, once, within its bounds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.session import SessionState
from sandgate.contract.status import JobCondition
from sandgate.operator.observed.frozen_map import FrozenMap
from sandgate.operator.observed.job import JOB_KEY
from sandgate.operator.plan.actions import WriteStatus
from sandgate.operator.plan.conditions import is_true
from sandgate.operator.plan.first_failures import Firsts
from tests.operator.plans import want
from tests.operator.world import World

STEPS_MAX = 20_000
"""Jobs of these tests need some hundred."""

jobs = st.fixed_dictionaries(
    {
        "groupSize": st.integers(1, 4),
        "parallelism": st.integers(1, 6),
        "startBurst": st.none() | st.integers(1, 3),
        "group__retry__infra": st.integers(0, 2),
        "reward": st.sampled_from(
            [
                {"source": "exitCode"},
                {"source": "agent"},
                {"source": "verifier", "verifier": {"container": {"image": "v"}}},
            ]
        ),
    }
)


def world(fields: dict[str, Any], tasks: int, seed: int, **more: Any) -> World:
    wanted = want(**{name: value for name, value in {**fields, **more}.items() if value is not None})
    return World(want=wanted, rng=random.Random(seed), tasks=[f"t{index}" for index in range(tasks)])


def finish(made: World, *, deaths: int = 0, failed_calls: float = 0.0) -> None:
    made.failed_calls = failed_calls
    for _ in range(deaths):
        for _ in range(made.rng.randrange(60)):
            made.step()
        made.restart()
    for _ in range(STEPS_MAX):
        if made.over or not made.step():
            break
    assert made.over, f"stuck: {made.store.job()}"


def laws(made: World) -> None:
    spec = made.want.spec
    assert made.most <= spec.parallelism
    assert made.most_starting <= (spec.start_burst or spec.parallelism)
    assert set(made.begun.values()) <= {1}, "no attempt is ever started twice"
    assert all(one.state is SessionState.FINALIZED for one in made.sessions.values()), (
        "every session is sealed"
    )
    by_sample: dict[tuple[str, int], list[Any]] = {}
    for one in made.sessions.values():
        by_sample.setdefault((one.uid, one.sample_index), []).append(one)
    for key, attempts in by_sample.items():
        attempts.sort(key=lambda one: one.attempt)
        assert [one.attempt for one in attempts] == list(range(len(attempts))), key
        before, last = attempts[:-1], attempts[-1]
        assert all(one.failure_class == "infra" for one in before), f"{key}: what had ended was begun again"
        assert all(one.reward is None for one in attempts if one.failure_class == "infra")
        if last.failure_class == "infra":
            assert last.uid in made.closed, f"{key} ended badly, and its gateway does not know"
    gateways: dict[str, set[str]] = {}
    for one in made.sessions.values():
        gateways.setdefault(one.uid, set()).add(made.placed[one.session_id])
    assert all(len(found) == 1 for found in gateways.values()), "siblings share a gateway"


@given(fields=jobs, tasks=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_a_job_converges_and_every_sample_ends_exactly_once(
    fields: dict[str, Any], tasks: int, seed: int
) -> None:
    made = world(fields, tasks, seed)
    finish(made)
    laws(made)
    status = made.store.status
    assert status is not None
    samples = tasks * made.want.spec.group_size
    newest = {
        (one.uid, one.sample_index): one
        for one in sorted(made.sessions.values(), key=lambda one: one.attempt)
    }
    vain = all(one.failure_class in ("agent", "infra") for one in newest.values())
    assert is_true(status, JobCondition.FAILED) is vain
    assert is_true(status, JobCondition.COMPLETE) is not vain
    assert (status.sessions, status.ended, status.running) == (samples, samples, 0)
    assert len({(one.uid, one.sample_index) for one in made.sessions.values()}) == samples
    assert status.retries == len(made.sessions) - samples
    spent = Counter(
        (one.uid, one.sample_index) for one in made.sessions.values() if one.failure_class == "infra"
    )
    assert all(count <= made.want.spec.group.retry.infra + 1 for count in spent.values())


@given(fields=jobs, tasks=st.integers(1, 4), seed=st.integers(0, 2**32), deaths=st.integers(1, 4))
def test_a_driver_that_dies_repeats_no_finished_session(
    fields: dict[str, Any], tasks: int, seed: int, deaths: int
) -> None:
    made = world(fields, tasks, seed)
    finish(made, deaths=deaths, failed_calls=0.1)
    laws(made)
    status = made.store.status
    assert status is not None
    assert status.ended == tasks * made.want.spec.group_size


@given(tasks=st.integers(1, 4), seed=st.integers(0, 2**32), quorum=st.integers(1, 3))
def test_with_a_quorum_stragglers_are_cut_and_the_job_still_ends(tasks: int, seed: int, quorum: int) -> None:
    fields = {"groupSize": 4, "parallelism": 5, "group__quorum": quorum, "group__stragglerSeconds": 3}
    made = world(fields, tasks, seed)
    finish(made)
    laws(made)


@given(seed=st.integers(0, 2**32))
def test_past_its_deadline_a_job_fails_and_leaves_nothing_running(seed: int) -> None:
    made = world({"groupSize": 2, "parallelism": 3}, 6, seed, activeDeadlineSeconds=5)
    finish(made)
    assert not made.agents
    assert all(one.state is SessionState.FINALIZED for one in made.sessions.values())
    if is_true(made.store.status, JobCondition.FAILED):
        assert made.now >= 1005


@given(fields=jobs, seed=st.integers(0, 2**32), steps=st.integers(0, 80))
def test_planning_again_after_carrying_out_gives_nothing(
    fields: dict[str, Any], seed: int, steps: int
) -> None:
    made = world(fields, 3, seed)
    for _ in range(steps):
        made.step()
    for key in [*made.store.sessions, JOB_KEY]:
        steps = 0
        while made.plan(key) and steps < 10:  # look, then seal, then forget: several steps, and no time
            made.turn(key)
            steps += 1
        assert made.plan(key) == []


def test_a_plan_costs_what_runs_not_what_the_job_is_large() -> None:
    """A million tasks, eight sessions: the plan may look at a handful of objects."""

    class Fresh(FrozenMap[str, None]):
        looked = 0

        def __iter__(self) -> Any:
            for uid in super().__iter__():
                Fresh.looked += 1
                yield uid

    made = world({"groupSize": 4, "parallelism": 8}, 1, seed=0)
    many = Fresh({f"t{index}": None for index in range(100_000)})
    made.state.observed = replace(made.store, fresh=many, firsts=Firsts(proved=True))
    plan = [one for one in made.plan(JOB_KEY) if not isinstance(one, WriteStatus)]
    assert len(plan) == 8
    assert Fresh.looked < 10


@pytest.mark.parametrize("seed", range(3))
def test_a_large_job_is_planned_in_time(seed: int) -> None:
    made = world({"groupSize": 8, "parallelism": 64}, 60, seed)
    finish(made)
    laws(made)
