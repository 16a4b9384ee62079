"""spec.staleness: how many groups begin, whatever a trainer's versions are called and however it goes on."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.observed.pace import Pace, Settled, Shelf
from sandgate.operator.plan.actions import GroupObserved
from sandgate.operator.plan.conditions import held_by_trainer
from sandgate.operator.plan.staleness import admitted, held_by_staleness
from sandgate.operator.plan.status import job_status
from tests.operator.plans import group, seen, want
from tests.operator.trainers import Gateway, Job, Trainer, in_some_order

ROUNDS = 50
FEW = settings(max_examples=10)
"""Each is a whole training."""
ONE, TWO = ("g0",), ("g0", "g1")

STEADY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one that counts from 0": ({}, {}),
    "that goes on from version 500 of an earlier training": ({}, {"number": 501}),
    "that commits every 50 steps, after a checkpoint": ({}, {"commit_every": 50}),
    "that leases ahead": ({}, {"ahead": 8}),
    "that is strictly on-policy": ({"behind": 0}, {}),
    "that is strictly on-policy, and commits every 50 steps": ({"behind": 0}, {"commit_every": 50}),
    "of one group a batch": ({"behind": 0, "batch": 1}, {"number": 7}),
    "of two gateways": ({"gateways": TWO}, {"number": 501}),
}


def job(*, behind: int = 1, batch: int = 2, gateways: tuple[str, ...] = ONE) -> Job:
    return Job(behind, batch, {name: Gateway() for name in gateways})


@pytest.mark.parametrize("initial", [False, True], ids=["", "and publishes the weights it starts with"])
@pytest.mark.parametrize("name", STEADY)
@FEW
@given(seed=st.integers(0, 10_000))
def test_a_trainer_goes_on_and_no_group_is_older_than_is_asked(name: str, initial: bool, seed: int) -> None:
    asked, is_so = STEADY[name]
    it = job(**asked)
    trainer = Trainer(it, **is_so)
    random = Random(seed)
    if initial:
        trainer.tell(trainer.number)
        trainer.number += 1
        for gateway in it.gateways:
            it.look(gateway)
    bound = (it.behind + 1) * it.batch
    for _ in in_some_order(it, trainer, ROUNDS, random):
        assert it.begun <= bound + trainer.published * it.batch
    assert trainer.batches >= ROUNDS // 12, "it waits for groups, and the job for a version"


@pytest.mark.parametrize("name", STEADY)
@FEW
@given(seed=st.integers(0, 10_000))
def test_an_operator_that_starts_anew_admits_what_the_one_before_did(name: str, seed: int) -> None:
    asked, is_so = STEADY[name]
    it = job(**asked)
    trainer, random = Trainer(it, **is_so), Random(seed)
    bound = (it.behind + 1) * it.batch
    for number, _ in enumerate(in_some_order(it, trainer, ROUNDS, random)):
        if number % 47 == 46:
            it.restart()
        assert it.begun <= bound + trainer.published * it.batch
    assert trainer.batches >= ROUNDS // 15


def admits(it: Job) -> int | None:
    """Once all gateways were heard twice."""
    for name in [*it.gateways, *it.gateways]:
        it.look(name)
    return admitted(it.seen.want.spec, it.seen.job())


@pytest.mark.parametrize("at_once", [False, True], ids=["", "acknowledges at once"])
@FEW
@given(seed=st.integers(0, 10_000), behind=st.integers(0, 2), gateways=st.sampled_from([ONE, TWO]))
def test_an_operator_that_starts_anew_admits_as_one_that_did_not(
    at_once: bool, behind: int, gateways: tuple[str, ...], seed: int
) -> None:
    it = job(behind=behind, batch=4, gateways=gateways)
    trainer, random = Trainer(it, at_once=at_once), Random(seed)
    for number, _ in enumerate(in_some_order(it, trainer, ROUNDS, random)):
        if behind and number % 61 == 60:
            trainer.drop()
        if number % 29 == 28:
            while it.unreported:
                it.report()
            had = admits(it)
            it.restart()
            assert admits(it) == had
    assert trainer.batches >= ROUNDS // 15


@pytest.mark.parametrize("lag", [0, 10, 40])
@FEW
@given(seed=st.integers(0, 10_000), gateways=st.sampled_from([ONE, TWO]))
def test_what_was_published_while_no_operator_ran_admits_no_group_early_and_holds_no_job(
    lag: int, gateways: tuple[str, ...], seed: int
) -> None:
    it = job(behind=2, batch=4, gateways=gateways)
    trainer, random = Trainer(it, at_once=True), Random(seed)
    written = it.status()
    for number, _ in enumerate(in_some_order(it, trainer, 2 * ROUNDS, random)):
        for name in it.gateways:
            it.look(name)
        if number % 61 == 60:
            trainer.drop()
        if number % 97 == 96 - lag:
            written, it.away = it.status(), True
        if number % 97 == 96:
            it.restart(written)
        assert it.begun <= (it.behind + 1) * it.batch + trainer.learned + trainer.dropped
    assert trainer.batches >= ROUNDS // 8


@pytest.mark.parametrize("gateways", [ONE, TWO])
@FEW
@given(seed=st.integers(0, 10_000), jumps=st.lists(st.sampled_from([1, 2, 500, -1, -300, 0]), max_size=12))
@example(seed=0, jumps=[500, -300, 500, 1, 1, 1])
def test_whatever_versions_are_told_what_waits_for_the_trainer_is_bounded(
    gateways: tuple[str, ...], seed: int, jumps: list[int]
) -> None:
    it = job(gateways=gateways)
    trainer, random = Trainer(it, ahead=3), Random(seed)
    most, begun = 0, 0
    for number, _ in enumerate(in_some_order(it, trainer, ROUNDS, random)):
        most = max(most, it.taken)
        if it.begun > begun:
            begun = it.begun
            assert begun - most <= (it.behind + 1) * it.batch
        if number % 40 == 39 and jumps:  # a restart, another counter: it tells what it starts with
            trainer.number = max(0, trainer.number + jumps.pop())
            trainer.tell(trainer.number)
            trainer.number += 1
            trainer.give_back()
    assert trainer.batches >= ROUNDS // 12, "none of it holds the job"


@FEW
@given(seed=st.integers(0, 10_000))
def test_groups_that_a_trainer_drops_as_too_old_do_not_hold_the_job(seed: int) -> None:
    it = job(behind=1, batch=4)
    trainer, random = Trainer(it), Random(seed)
    for number, _ in enumerate(in_some_order(it, trainer, 3 * ROUNDS, random)):
        if number % 61 == 60:
            trainer.drop()
    assert trainer.batches >= ROUNDS // 12


@FEW
@given(seed=st.integers(0, 10_000))
def test_a_trainer_that_publishes_every_second_batch_goes_on_where_two_batches_may_begin(seed: int) -> None:
    it = job(behind=1)
    it.prompt = True
    trainer = Trainer(it, publish_every=2)
    for _ in in_some_order(it, trainer, ROUNDS, Random(seed)):
        assert it.begun - trainer.consumed <= 2 * it.batch
    assert trainer.batches >= ROUNDS // 12


def test_and_is_held_where_one_may_and_the_job_says_of_what() -> None:
    it = job(behind=0)
    trainer = Trainer(it, publish_every=2)
    for _ in in_some_order(it, trainer, ROUNDS, Random(0)):
        pass
    assert trainer.batches == 1
    assert held_by_staleness(it.seen.want.spec, it.seen.job()) == (
        "no new group begins before the trainer's next policy version: 2 groups begun, version 0, "
        "spec.staleness maxVersionsBehind 0, batchSize 2"
    )


def test_a_version_that_is_published_again_after_a_restart_opens_nothing_for_long() -> None:
    it = job(behind=0)
    trainer = Trainer(it)
    for _ in in_some_order(it, trainer, ROUNDS, Random(0)):
        pass
    while it.running or it.unreported:
        it.end()
        it.report()
    for number in range(10):
        trainer.tell(trainer.number + number)
        it.look("g0")
        it.look("g0")
        it.plan()
    assert it.begun - it.taken <= it.batch


STATUSES = {
    "of a job that has none": (None, 0),
    "of an operator that counted none: as that one did": (RolloutJobStatus(policy_version=40), 40),
    "of a job that began with version 500": (RolloutJobStatus(policy_version=503, published_versions=3), 3),
    "of one whose trainer has published nothing yet": (
        RolloutJobStatus(policy_version=500, published_versions=0),
        0,
    ),
}


@pytest.mark.parametrize("name", STATUSES)
def test_versions_are_counted_on_from_the_status(name: str) -> None:
    status, published = STATUSES[name]
    pace = Pace.of_status(status)
    assert pace.published == published
    if status is not None:
        said = Shelf(version=status.policy_version + 2, owed=0, leased=0)
        settled = Settled(at={}, others=0, ready=["g0"], open_only=True)
        assert pace.looked("g0", said, settled).published == published + 2


ACKNOWLEDGED: dict[str, tuple[RolloutJobStatus | None, int | None]] = {
    "of a job that has none": (None, 0),
    "of one whose trainer has published nothing yet": (RolloutJobStatus(published_versions=0), 0),
    "as it says": (RolloutJobStatus(policy_version=3, published_versions=3, acknowledged_at_version=7), 7),
    "of an operator that kept none: what is acknowledged when it is looked at": (
        RolloutJobStatus(policy_version=3, published_versions=3),
        None,
    ),
}


@pytest.mark.parametrize("name", ACKNOWLEDGED)
def test_what_was_acknowledged_at_the_last_version_is_read_from_the_status(name: str) -> None:
    status, done = ACKNOWLEDGED[name]
    assert Pace.of_status(status).done == done


ADMITTED: dict[str, tuple[tuple[int, int] | None, dict[str, Any], int | None]] = {
    "without it any number": (None, {"begun": 5}, None),
    "a batch for the weights that there are, and for each that may come": ((1, 2), {"begun": 1}, 3),
    "and for each version": ((0, 2), {"begun": 2, "published": 1, "taken": 2}, 2),
    "but not for one that consumed nothing": ((0, 2), {"begun": 2, "published": 501, "taken": 0}, 0),
    "what was acknowledged at a version was consumed": (
        (1, 4),
        {"begun": 20, "published": 2, "done": 12, "taken": 16},
        0,
    ),
    "also without so many versions": (
        (1, 4),
        {"begun": 16, "published": 2, "done": 12, "taken": 16},
        4,
    ),
}


@pytest.mark.parametrize("name", ADMITTED)
def test_admitted(name: str) -> None:
    limits, facts, number = ADMITTED[name]
    spec = {} if limits is None else {"staleness": {"maxVersionsBehind": limits[0], "batchSize": limits[1]}}
    assert admitted(want(**spec).spec, seen(fresh="abc", **facts)) == number


STANDS: dict[str, tuple[dict[str, Any], str]] = {
    "held": ({"begun": 2, "fresh": "c"}, "AwaitsVersion"),
    "a session runs": ({"groups": [group("b", "r")], "begun": 2, "fresh": "c"}, "Running"),
    "a version came": ({"begun": 2, "fresh": "c", "published": 1, "taken": 2}, "Waiting"),
    "no task waits": ({"begun": 2, "more": True}, "Waiting"),
    "no gateway takes sessions": ({"begun": 2, "fresh": "c", "gateways": {}}, "NoGateway"),
}


@pytest.mark.parametrize("name", STANDS)
def test_the_job_says_that_it_is_held(name: str) -> None:
    facts, reason = STANDS[name]
    more = dict(facts)
    groups: list[GroupObserved] = more.pop("groups", [])
    wanted = want(staleness={"maxVersionsBehind": 0, "batchSize": 2})
    status = job_status(wanted, seen(*groups, **more), 0.0)
    assert status.reason == reason
    assert bool(held_by_trainer(status)) == (reason == "AwaitsVersion")
