"""Groups: which sessions make one up, and when it is whole."""

from __future__ import annotations

import pytest

from sandgate.gateway.journal.records import Opened, Sealed
from sandgate.gateway.trajectories.leases import LeaseBook
from tests.gateway.trajectories.books import TTL, Journalled


@pytest.fixture
def it() -> Journalled:
    return Journalled()


MEMBERS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "a group is whole when every sample is sealed": (["open 0.0 1.0", "seal 0.0 1.0"], ("q.0.0", "q.1.0")),
    "a running sample is waited for": (["open 0.0 1.0", "seal 0.0"], ()),
    "a sample that was never opened is waited for": (["open 0.0", "seal 0.0"], ()),
    "a model's own failure counts": (["open 0.0 1.0", "seal 0.0", "policy 1.0"], ("q.0.0", "q.1.0")),
    "an agent's crash counts": (["open 0.0 1.0", "seal 0.0", "agent 1.0"], ("q.0.0", "q.1.0")),
    "an infrastructure failure does not": (["open 0.0 1.0", "seal 0.0", "infra 1.0"], ()),
    "its next attempt does": (
        ["open 0.0 1.0", "seal 0.0", "infra 1.0", "open 1.1", "seal 1.1"],
        ("q.0.0", "q.1.1"),
    ),
    "an aborted session does not count": (["open 0.0 1.0", "seal 0.0", "abort 1.0"], ()),
    "an attempt that is superseded does not count": (
        ["open 0.0 1.0 1.1", "seal 0.0 1.0 1.1"],
        ("q.0.0", "q.1.1"),
    ),
    "while a newer attempt runs its sample is not done": (["open 0.0 1.0 1.1", "seal 0.0 1.0"], ()),
    "an older attempt that still runs is not waited for": (
        ["open 0.0 1.0 1.1", "seal 0.0 1.1"],
        ("q.0.0", "q.1.1"),
    ),
    "a newer attempt that failed by infrastructure gives way": (
        ["open 0.0 1.0 1.1", "seal 0.0 1.0", "infra 1.1"],
        ("q.0.0", "q.1.0"),
    ),
    "closing hands out what is good": (["open 0.0 1.0", "seal 0.0", "infra 1.0", "close"], ("q.0.0",)),
    "closing does not wait for stragglers": (["open 0.0 1.0", "seal 0.0", "close"], ("q.0.0",)),
    "a straggler that ends after closing is left out": (
        ["open 0.0 1.0", "seal 0.0", "close", "seal 1.0"],
        ("q.0.0",),
    ),
    "of a group that is closed with nothing good the failures are told": (
        ["open 0.0 1.0", "infra 0.0 1.0", "close"],
        ("q.0.0", "q.1.0"),
    ),
    "of each sample the last one": (["open 0.0", "infra 0.0", "open 0.1", "infra 0.1", "close"], ("q.0.1",)),
    "a lost group that is not whole is one that is over, too": (
        ["open 0.0", "abort 0.0", "close"],
        ("q.0.0",),
    ),
    "what still runs of a lost group is not told": (["open 0.0 1.0", "infra 0.0", "close"], ("q.0.0",)),
    "a lost group of which nothing is over waits for it": (["open 0.0", "close"], ()),
    "and is told then": (["open 0.0", "close", "infra 0.0"], ("q.0.0",)),
    "what ends well after that makes it no better": (
        ["open 0.0", "infra 0.0", "close", "open 1.0", "seal 1.0"],
        ("q.0.0", "q.1.0"),
    ),
}


def play(it: Journalled, lines: list[str]) -> None:
    for line in lines:
        verb, *names = line.split()
        sessions = [f"q.{name}" for name in names]
        match verb:
            case "open":
                it.open(*sessions)
            case "seal":
                it.seal(*sessions)
            case "abort":
                it.seal(*sessions, aborted=True)
            case "close":
                it.close("q")
            case failure:
                it.seal(*sessions, failure=failure)


@pytest.mark.parametrize(("lines", "sessions"), MEMBERS.values(), ids=MEMBERS)
def test_a_whole_group(it: Journalled, lines: list[str], sessions: tuple[str, ...]) -> None:
    play(it, lines)
    assert it.lease() == sessions
    assert it.replayed() == it.book


def test_a_lost_group_is_told_once_without_rows_and_nobody_is_owed_it(it: Journalled) -> None:
    play(it, ["open 0.0 1.0", "infra 0.0", "close"])
    assert it.book.standing(it.now) == (0, 0)
    assert it.lease(size=lambda session: 10**9, max_tokens=1) == ("q.0.0",)
    assert it.book.standing(it.now) == (0, 0)
    assert not it.book.tells("q.0.0")
    it.seal("q.1.0", failure="infra")
    assert it.book.disposable() == []
    it.ack()
    assert it.lease("l2") == ()
    assert it.book.disposable() == [["q.0.0", "q.1.0"]]
    assert it.compacted() == it.replayed() == it.book
    it.book.forget(["q.0.0", "q.1.0"])
    assert not it.book.lost


def test_sessions_of_a_group_stand_in_order_of_sample(it: Journalled) -> None:
    it.open("q.1.0", "q.0.0")
    it.seal("q.1.0", "q.0.0")
    assert it.lease() == ("q.0.0", "q.1.0")


def test_of_two_sessions_of_one_attempt_the_one_that_runs_is_not_waited_for() -> None:
    book = LeaseBook()
    for session in ("a", "b"):
        book.fold(session, Opened(at=0.0, spec={"uid": "q", "attempt": 1}))
    book.fold("a", Sealed(at=0.0))
    record = book.lease("l", 0.0, ttl_s=TTL)
    assert record is not None
    assert record.sessions == ("a",)


def test_the_same_task_of_two_jobs_is_two_groups(it: Journalled) -> None:
    it.ended("q.0.0")
    it.job = "other"
    it.ended("q.1.0")
    assert it.lease() == ()
    assert it.lease(whole_groups=False, max_groups=2) == ("q.0.0", "q.1.0")


def test_a_session_without_a_task_is_a_group_of_its_own() -> None:
    book = LeaseBook()
    for session in ("a", "b"):
        book.fold(session, Opened(at=0.0, spec={"group_size": 8, "uid": ""}))
        book.fold(session, Sealed(at=0.0))
    record = book.lease("l", 0.0, ttl_s=TTL)
    assert record is not None
    assert record.sessions == ("a",)


def test_a_mistaken_group_size_is_bounded(it: Journalled) -> None:
    it.open("q.0.0", size=10**12)
    assert next(iter(it.book.groups.values())).size == 65_536
