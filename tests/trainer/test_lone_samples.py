"""A batch of groups of one sample teaches nothing, which is said once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit import lone_samples
from sandgate.trainer.credit.group_advantages import prepare
from tests.gateway.trajectories.forest import T
from tests.trainer.groups import session

ONE = [T("a", role="main")]
FORKED = [T("a", role="main"), T("b", "a", role="main"), T("c", "a", role="main")]


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    lone_samples._say.cache_clear()
    yield
    lone_samples._say.cache_clear()


def sample(number: int, reward: float | None = 1.0, failure: str | None = None) -> list[Trajectory]:
    reason = "NodeLost" if failure else None
    return session(number, ONE, (reward, failure, reason))


ALONE = "nothing is learned from this batch"
LAST = sample(7)
BATCHES: dict[str, tuple[list[list[Trajectory]], bool]] = {
    "the eighth sample, whose others were lost": ([LAST], False),
    "beside the eighth of a group whose others were lost": ([sample(0), LAST], False),
    "one group of one sample": ([sample(0)], True),
    "several of them": ([sample(0), sample(0, 0.0)], True),
    "a sample that forked is one sample": ([session(0, FORKED, (1.0, None, None))], True),
    "a sample and an earlier attempt at it": ([[*sample(0), *sample(0, None, "infra")]], True),
    "beside a group in which nothing teaches": ([sample(0), sample(0, None)], True),
    "two that scored the same": ([[*sample(0), *sample(1)]], False),
    "two of which one failed": ([[*sample(0), *sample(1, None, "infra")]], False),
    "beside a group of two": ([sample(0), [*sample(0), *sample(1, 0.0)]], False),
    "a group in which nothing teaches": ([sample(0, None)], False),
    "no group": ([], False),
}


@pytest.mark.parametrize(("groups", "said"), BATCHES.values(), ids=BATCHES)
def test_a_batch_of_lone_samples_is_told(
    groups: list[list[Trajectory]], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        lone_samples.warn_of_lone_samples([prepare(rows) for rows in groups])
    assert [one.getMessage().startswith(ALONE) for one in caplog.records] == [True] * said


SIZES: dict[str, tuple[list[list[Trajectory]], list[int | None], bool]] = {
    "groups of one": ([sample(0), sample(0)], [1, 1], True),
    "one of eight, whose others were lost": ([sample(0)], [8], False),
    "a group of one beside one of eight, whose others were lost": ([sample(0), sample(0)], [1, 8], False),
    "one beside one of a size that nobody knows": ([sample(0), sample(0)], [1, None], True),
    "a group of one beside one of eight of which nothing teaches": (
        [sample(0), sample(1, None)],
        [1, 8],
        True,
    ),
}


@pytest.mark.parametrize(("groups", "sizes", "said"), SIZES.values(), ids=SIZES)
def test_a_group_is_of_the_size_that_was_asked_for(
    groups: list[list[Trajectory]], sizes: list[int | None], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lone_samples.warn_of_lone_samples([prepare(rows) for rows in groups], sizes)
    assert [one.getMessage().startswith(ALONE) for one in caplog.records] == [True] * said


def test_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        lone_samples.warn_of_lone_samples([prepare(sample(0))])
    assert len(caplog.records) == 1
