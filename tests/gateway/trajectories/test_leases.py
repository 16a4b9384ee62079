"""Leases: whole groups, one attempt per sample, at least once, nothing twice, nothing lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from sandgate.contract.errors import Conflict, NotFound, Overloaded
from sandgate.gateway.journal.records import Completed, Opened, Sealed
from sandgate.gateway.trajectories.leases import KEPT_MAX, LeaseBook
from tests.gateway.trajectories.books import TTL, Journalled


@pytest.fixture
def it() -> Journalled:
    return Journalled()


# --- what one lease takes


def test_oldest_first_and_no_more_than_asked(it: Journalled) -> None:
    for task in ("a", "b", "c"):
        it.ended(f"{task}.0.0", f"{task}.1.0")
    assert it.lease("l1", max_groups=2) == ("a.0.0", "a.1.0", "b.0.0", "b.1.0")
    assert it.lease("l2", max_groups=2) == ("c.0.0", "c.1.0")
    assert it.lease("l3") == ()


def test_a_group_that_waits_keeps_its_place_whatever_else_ends_in_it(it: Journalled) -> None:
    it.open("a.0.0")
    it.ended("a.0.1", "a.1.0")
    it.ended("b.0.0", "b.1.0")
    it.seal("a.0.0")
    assert it.lease() == ("a.0.1", "a.1.0")


def test_only_of_the_job_that_was_asked_for(it: Journalled) -> None:
    it.ended("a.0.0", "a.1.0")
    assert it.lease(job="other") == ()
    assert it.lease(job="shop") == ("a.0.0", "a.1.0")


TOKENS: dict[str, tuple[int | None, str]] = {
    "without a limit all groups go": (None, "a.0.0 a.1.0 b.0.0 b.1.0 c.0.0 c.1.0"),
    "groups go while their tokens fit": (400, "a.0.0 a.1.0 b.0.0 b.1.0"),
    "a group is not split": (399, "a.0.0 a.1.0"),
    "one that is too large alone goes alone": (1, "a.0.0 a.1.0"),
}


@pytest.mark.parametrize(("limit", "sessions"), TOKENS.values(), ids=TOKENS)
def test_max_tokens(it: Journalled, limit: int | None, sessions: str) -> None:
    for task in ("a", "b", "c"):
        it.ended(f"{task}.0.0", f"{task}.1.0")
    assert " ".join(it.lease(max_groups=9, max_tokens=limit, size=lambda session: 100)) == sessions


def test_without_whole_groups_what_is_sealed_goes_and_the_rest_later(it: Journalled) -> None:
    it.open("q.0.0", "q.1.0")
    it.seal("q.0.0")
    assert it.lease("l1", whole_groups=False) == ("q.0.0",)
    it.seal("q.1.0")
    assert it.lease("l2", whole_groups=False) == (), "two live leases never share a group"
    it.ack("l1")
    assert it.lease("l3", whole_groups=True) == ("q.1.0",)


def test_a_lease_id_is_used_once(it: Journalled) -> None:
    it.ended("a.0.0", "a.1.0", "b.0.0", "b.1.0")
    record = it.book.lease("l1", it.now, ttl_s=TTL)
    assert record is not None
    with pytest.raises(Conflict):  # while it is being made durable, too: its groups would be free
        it.lease("l1")
    it.write("", record)
    with pytest.raises(Conflict):
        it.lease("l1")


def test_a_group_whose_part_is_acknowledged_waits_for_no_other_group_of_that_lease(it: Journalled) -> None:
    it.open("a.0.0", "a.1.0", "b.0.0")
    it.seal("a.0.0", "b.0.0")
    assert it.lease("l1", whole_groups=False, max_groups=2) == ("a.0.0", "b.0.0")
    it.ack("l1", ["a.0.0"])
    it.seal("a.1.0")
    assert it.lease("l2", whole_groups=False, max_groups=2) == ("a.1.0",)


# --- expiry, ack, nack


@pytest.fixture
def leased(it: Journalled) -> Journalled:
    it.ended("q.0.0", "q.1.0")
    assert it.lease("l1") == ("q.0.0", "q.1.0")
    return it


def test_a_lease_that_is_not_acked_in_time_is_offered_again(leased: Journalled) -> None:
    leased.now += TTL - 0.001
    assert leased.lease("l2") == ()
    leased.now += 0.001
    assert leased.lease("l2") == ("q.0.0", "q.1.0")


def test_an_ack_is_for_good_and_may_be_repeated(leased: Journalled) -> None:
    assert leased.ack() == ("q.0.0", "q.1.0")
    assert leased.ack() is None
    leased.now += 10 * TTL
    assert leased.ack() is None
    assert leased.lease("l2") == ()


def test_a_late_ack_is_fine_if_nobody_else_got_it(leased: Journalled) -> None:
    leased.now += 10 * TTL
    assert leased.ack() == ("q.0.0", "q.1.0")


def test_a_late_ack_is_refused_once_another_got_it(leased: Journalled) -> None:
    leased.now += TTL
    leased.lease("l2")
    with pytest.raises(Conflict, match=r"q\.0\.0, q\.1\.0"):
        leased.ack("l1")
    assert leased.ack("l2") == ("q.0.0", "q.1.0")
    with pytest.raises(Conflict):
        leased.ack("l1")


def test_a_late_ack_may_name_what_is_still_its_own(it: Journalled) -> None:
    it.ended("a.0.0", "a.1.0", "b.0.0", "b.1.0")
    it.lease("l1", max_groups=2)
    it.now += TTL
    assert it.lease("l2") == ("a.0.0", "a.1.0")
    with pytest.raises(Conflict):
        it.ack("l1")
    assert it.ack("l1", ["b.0.0", "b.1.0"]) == ("b.0.0", "b.1.0")


def test_part_of_a_lease_may_be_acked(leased: Journalled) -> None:
    assert leased.ack("l1", ["q.1.0"]) == ("q.1.0",)
    assert leased.lease("l2") == (), "the rest is still leased"
    leased.now += TTL
    assert leased.lease("l3") == ("q.0.0",)


def test_giving_back_offers_at_once(leased: Journalled) -> None:
    assert leased.nack() is not None
    assert leased.nack() is None
    assert leased.lease("l2") == ("q.0.0", "q.1.0")
    with pytest.raises(Conflict, match="given back"):
        leased.ack("l1")


def test_giving_back_keeps_what_was_acked(leased: Journalled) -> None:
    leased.ack("l1", ["q.0.0"])
    leased.nack()
    with pytest.raises(Conflict, match="given back"):
        leased.ack("l1")
    assert leased.lease("l2") == ("q.1.0",)
    assert leased.ack("l1", ["q.0.0"]) is None


def test_giving_back_late_takes_nothing_from_the_next(leased: Journalled) -> None:
    leased.now += TTL
    leased.lease("l2")
    leased.nack("l1")
    assert leased.lease("l3") == ()
    assert leased.ack("l2") == ("q.0.0", "q.1.0")


def test_an_acked_attempt_counts_while_a_newer_one_runs(it: Journalled) -> None:
    it.ended("q.0.0")
    it.lease("l1", whole_groups=False)
    it.ack("l1")
    it.open("q.0.1")
    it.ended("q.1.0")
    assert it.lease("l2") == ("q.1.0",)


def test_closing_keeps_the_attempt_that_was_acked(it: Journalled) -> None:
    it.ended("q.0.0")
    it.lease("l1", whole_groups=False)
    it.ack("l1")
    it.ended("q.0.1", "q.1.0")
    it.close("q")
    assert it.lease("l2") == ("q.1.0",)
    it.ack("l2")
    assert it.book.disposable() == [["q.0.0", "q.0.1", "q.1.0"]]


RESUMED: dict[str, tuple[Callable[[Journalled], object], tuple[str, ...]]] = {
    "one that is held has what was left": (lambda it: None, ("l1",)),
    "one that is over when another is made is over": (lambda it: it.passes(TTL).lease("l2"), ("l2",)),
    "one that was given back is": (lambda it: it.nack(), ()),
    "one that was acknowledged is": (lambda it: it.ack(), ()),
    "one that was acknowledged in part is held": (lambda it: it.ack("l1", ["q.0.0"]), ("l1",)),
}  # fmt: skip


@pytest.mark.parametrize("compacted", [False, True], ids=["journal", "compacted"])
@pytest.mark.parametrize(("then", "held"), RESUMED.values(), ids=RESUMED)
def test_what_a_new_life_of_the_process_renews(
    leased: Journalled, then: Callable[[Journalled], object], held: tuple[str, ...], *, compacted: bool
) -> None:
    then(leased)
    book = leased.compacted() if compacted else leased.replayed()
    renewed = book.resumed(9e9, 0.0)
    assert {one.lease: (one.at, one.until) for one in renewed} == dict.fromkeys(held, (9e9, 9e9 + TTL))
    for record in renewed:
        book.fold("", record)
    again = book.resumed(9e9 - 5, 0.0)
    assert [(one.lease, one.until) for one in again] == [(name, 9e9 - 5 + TTL) for name in held], (
        "from the journal"
    )


KEPT: dict[str, tuple[float, float, float | None]] = {
    "less what passed behind it by other records": (9e9, 40.0, 9e9 + TTL - 40.0),
    "not if more passed than it had": (9e9, TTL, None),
    "by a clock that was set back, too": (-9e9, 0.0, -9e9 + TTL),
}


@pytest.mark.parametrize(("now", "passed", "until"), KEPT.values(), ids=KEPT)
def test_what_it_has_left(leased: Journalled, now: float, passed: float, until: float | None) -> None:
    book = leased.replayed()
    assert [one.until for one in book.resumed(now, passed)] == ([] if until is None else [until])
    if until is None:
        offered = book.lease("l2", now, ttl_s=TTL)
        assert offered is not None
        assert offered.sessions == ("q.0.0", "q.1.0")


def test_of_a_trainer_that_died_it_ends_however_often_the_gateway_starts(leased: Journalled) -> None:
    book = leased.replayed()
    for start in range(KEPT_MAX):
        for record in book.resumed(9e9 + start, 0.0):
            book.fold("", record)
    assert (book.leases["l1"].until, book.leases["l1"].kept) == (9e9 + KEPT_MAX - 1 + TTL, KEPT_MAX)
    assert book.resumed(9e9 + KEPT_MAX, 0.0) == []
    (earlier,) = book.resumed(8e9, 30.0)
    assert earlier.until == 8e9 + TTL - 30.0, "by a clock that was set back it ends, too"
    renewed = book.renew("l1", 9e9 + KEPT_MAX, ttl_s=TTL)
    assert renewed is not None
    assert renewed.kept == 0, "of one that lives it is kept as often again"


def test_unknown_names(leased: Journalled) -> None:
    for act in (lambda: leased.ack("l9"), lambda: leased.nack("l9"), lambda: leased.ack("l1", ["q.9.0"])):
        with pytest.raises(NotFound):
            act()
    with pytest.raises(NotFound):
        leased.close("unknown")


def test_closing_twice_is_closing_once(it: Journalled) -> None:
    it.open("q.0.0")
    assert it.close("q") is not None
    assert it.close("q") is None


# --- decided, but not yet durable


def test_of_two_closes_that_are_decided_at_once_the_first_counts(it: Journalled) -> None:
    it.open("q.0.0", "q.1.0")
    first = it.book.close("shop", "q", it.now)
    it.seal("q.0.0")
    second = it.book.close("shop", "q", it.now)
    assert first is not None
    assert second is not None
    for record in (first, second):
        it.write("", record)
    for book in (it.book, it.replayed()):
        (group,) = book.groups.values()
        assert (group.lost(), book.lost) == (True, {group.key})


HANDED: dict[str, tuple[bool, ...]] = {
    "once": (True,),
    "twice at once": (True, True),
    "twice at once, of which the first cannot be written": (False, True),
    "twice at once, of which the second cannot be written": (True, False),
}


@pytest.mark.parametrize("written", HANDED.values(), ids=HANDED)
def test_a_session_that_is_handed_over_is_acknowledged_and_offered_to_nobody(
    it: Journalled, written: tuple[bool, ...]
) -> None:
    it.ended("q.0.0")
    it.ended("q.1.0")
    decided = [
        it.book.hand_over(f"h{number}", session, it.now, leased_at=it.now)
        for number, _ in enumerate(written)
        for session in ("q.0.0", "q.1.0")
    ]
    for number, records in enumerate(decided):
        assert it.lease("other") == (), "not while it is being written"
        for record in records:
            if written[number // 2]:
                it.write("", record)
            else:
                it.book.undo(record)
    assert it.lease("other") == ()
    assert (it.book.acking, it.book.holds) == ({}, {})
    for book in (it.book, it.replayed()):
        assert all(member.acked for member in book.members.values())
        assert book.hand_over("again", "q.0.0", it.now, leased_at=it.now) == ()


def test_what_a_trainer_is_just_being_given_is_handed_over_behind_it(it: Journalled) -> None:
    it.ended("q.0.0", "q.1.0")
    given = it.book.lease("l1", it.now, ttl_s=TTL)
    assert given is not None
    for record in (given, *it.book.hand_over("h", "q.0.0", it.now, leased_at=it.now)):
        it.write("", record)
    with pytest.raises(Conflict, match=r"q\.0\.0"):
        it.ack("l1")
    assert it.book.members["q.0.0"].acked == "h"


def test_what_is_being_leased_is_not_offered_until_that_failed(it: Journalled) -> None:
    it.ended("q.0.0", "q.1.0")
    first = it.book.lease("l1", it.now, ttl_s=TTL)
    assert first is not None
    assert it.book.lease("l2", it.now, ttl_s=TTL) is None
    it.book.undo(first)
    assert it.replayed() == it.book
    assert it.lease("l2") == ("q.0.0", "q.1.0")


def test_what_is_being_acked_is_not_offered_until_that_failed(leased: Journalled) -> None:
    leased.now += TTL
    late = leased.book.ack("l1", leased.now)
    assert late is not None
    assert leased.lease("l2") == ()
    leased.book.undo(late)
    assert leased.replayed() == leased.book
    assert leased.lease("l2") == ("q.0.0", "q.1.0")


def test_of_two_acks_under_way_one_that_fails_frees_nothing(leased: Journalled) -> None:
    leased.now += TTL
    acks = [leased.book.ack("l1", leased.now) for _ in range(2)]
    assert acks[0] is not None
    assert acks[0] == acks[1]
    leased.book.undo(acks[0])
    assert leased.lease("l2") == ()
    leased.write("", acks[0])
    assert leased.replayed() == leased.book


def test_what_is_being_leased_again_cannot_be_acked_late(leased: Journalled) -> None:
    leased.now += TTL
    again = leased.book.lease("l2", leased.now, ttl_s=TTL)
    assert again is not None
    with pytest.raises(Conflict):
        leased.ack("l1")
    leased.book.undo(again)
    assert leased.ack("l1") == ("q.0.0", "q.1.0")


# --- forgetting and compaction


def test_only_a_finished_group_may_be_forgotten(leased: Journalled) -> None:
    leased.open("r.0.0")
    leased.seal("r.0.0", failure="infra")
    leased.ack("l1", ["q.0.0"])
    assert leased.book.disposable() == []
    leased.ack("l1", ["q.1.0"])
    assert leased.book.disposable() == [["q.0.0", "q.1.0"]]
    leased.close("r")
    assert leased.book.disposable() == [["q.0.0", "q.1.0"]]
    assert leased.lease("l2") == ("r.0.0",)
    leased.ack("l2")
    assert leased.book.disposable() == [["q.0.0", "q.1.0"], ["r.0.0"]]


def test_an_aborted_session_of_no_task_may_be_forgotten() -> None:
    book = LeaseBook()
    book.fold("a", Opened(at=0.0, spec={}))
    assert book.disposable() == []
    book.fold("a", Sealed(at=0.0, aborted=True))
    assert book.disposable() == [["a"]]


def test_what_is_forgotten_leaves_nothing_behind(leased: Journalled) -> None:
    leased.ack()
    leased.close("q")
    leased.book.forget([*leased.book.disposable()[0], "unknown"])
    assert leased.book == LeaseBook()
    assert leased.book.snapshot(leased.now) == []
    with pytest.raises(NotFound):
        leased.ack()


@pytest.mark.parametrize("compacted", [False, True], ids=["", "after a restart"])
def test_a_lease_of_which_another_had_a_group_has_nothing_left_once_that_is_forgotten(
    it: Journalled, compacted: bool
) -> None:
    """Its trainer overslept: what the other trained on may not be trained on again, and the rest is free."""
    it.ended("a.0.0", "a.1.0", "b.0.0", "b.1.0")
    assert len(it.lease("l1", max_groups=2)) == 4
    assert it.passes(TTL).lease("l2") == ("a.0.0", "a.1.0")
    it.ack("l2")
    (gone,) = it.book.disposable()
    for end in it.book.robbed(gone, it.now):
        it.write("", end)
    it.book.forget(gone)
    it.log = [(session, record) for session, record in it.log if session not in gone]
    if compacted:
        it.book = it.compacted()
    with pytest.raises(Conflict):
        it.book.renew("l1", it.now, ttl_s=TTL)
    with pytest.raises(Conflict):
        it.book.ack("l1", it.now)
    assert it.lease("l3") == ("b.0.0", "b.1.0")
    it.ack("l3")


def test_a_lease_goes_on_once_what_it_acknowledged_is_forgotten(it: Journalled) -> None:
    it.ended("a.0.0", "a.1.0", "b.0.0", "b.1.0")
    it.lease("l1", max_groups=2)
    it.ack("l1", ["a.0.0", "a.1.0"])
    (gone,) = it.book.disposable()
    assert it.book.robbed(gone, it.now) == []
    it.book.forget(gone)
    assert it.book.renew("l1", it.passes(1.0).now, ttl_s=TTL) is not None
    assert it.ack("l1") == ("b.0.0", "b.1.0")


def test_a_compacted_journal_says_the_same(it: Journalled) -> None:
    it.ended("a.0.0", "a.1.0", "b.0.0", "b.1.0", "c.0.0")
    it.lease("l1")
    it.ack("l1", ["a.0.0"])
    it.lease("l2")
    it.nack("l2")
    it.close("c")
    it.now += 1.0
    compacted = it.compacted()
    assert (compacted.members, compacted.groups) == (it.book.members, it.book.groups)
    assert {name: (one.until, one.over) for name, one in compacted.leases.items()} == {
        "l1": (1000.0 + TTL, False),
        "l2": (1000.0 + TTL, True),
    }


def test_lease_records_of_forgotten_sessions_change_nothing(leased: Journalled) -> None:
    leased.ack()
    leased.nack()
    book = LeaseBook()
    for session, record in leased.log:
        if not session:
            book.fold(session, record)
    assert book == LeaseBook()


def test_opened_again_it_stays_what_it_is(leased: Journalled) -> None:
    leased.ack()
    leased.open("q.0.0")
    assert leased.lease("l2") == ()
    assert leased.ack("l1") is None


def test_other_records_change_nothing(it: Journalled) -> None:
    it.open("q.0.0")
    before = dataclasses.replace(it.replayed())
    it.write("q.0.0", Completed(at=0.0))
    it.write("unknown", Sealed(at=0.0))
    assert it.book == before


# --- renewal


def test_a_renewed_lease_ends_later(leased: Journalled) -> None:
    leased.now += TTL - 1.0
    assert leased.renew() == leased.now + TTL
    leased.now += TTL - 1.0
    assert leased.lease("l2") == ()
    leased.now += 1.0
    assert leased.lease("l2") == ("q.0.0", "q.1.0")
    assert leased.replayed() == leased.book


def test_a_renewal_shortens_nothing(leased: Journalled) -> None:
    record = leased.book.renew("l1", leased.now + 1.0, ttl_s=1.0)
    assert record is not None
    assert record.until == leased.now + TTL


def test_a_late_renewal_is_fine_if_nobody_else_got_it(leased: Journalled) -> None:
    leased.now += 10 * TTL
    assert leased.renew() == leased.now + TTL
    assert leased.lease("l2") == ()


def test_a_renewal_is_refused_once_another_got_it(leased: Journalled) -> None:
    leased.now += TTL
    leased.lease("l2")
    with pytest.raises(Conflict, match="given to another"):
        leased.renew("l1")
    leased.nack("l2")
    with pytest.raises(Conflict, match="given to another"):
        leased.renew("l1")


def test_a_renewal_is_refused_once_another_acknowledged_it(leased: Journalled) -> None:
    """Else a trainer that was slow would train on what another has trained on."""
    leased.now += TTL
    leased.lease("l2")
    leased.ack("l2")
    with pytest.raises(Conflict, match="given to another"):
        leased.renew("l1")
    leased.nack("l1")
    with pytest.raises(Conflict, match="given back"):
        leased.renew("l1")


def test_a_renewal_is_refused_once_one_session_was_handed_over(leased: Journalled) -> None:
    for record in leased.book.hand_over("export", "q.0.0", leased.now, leased_at=leased.now):
        leased.write("q.0.0", record)
    with pytest.raises(Conflict, match=r"given to another: q\.0\.0"):
        leased.renew("l1")


def test_a_renewal_of_what_was_given_back_is_refused(leased: Journalled) -> None:
    leased.nack()
    with pytest.raises(Conflict, match="given back"):
        leased.renew()


def test_a_renewal_of_what_is_acknowledged_changes_nothing(leased: Journalled) -> None:
    leased.ack()
    assert leased.renew() is None


def test_a_renewal_that_is_being_made_durable_holds_its_groups_and_lets_itself_be_acked(
    leased: Journalled,
) -> None:
    leased.now += 2 * TTL
    record = leased.book.renew("l1", leased.now, ttl_s=TTL)
    assert record is not None
    assert leased.lease("l2") == ()
    assert leased.ack("l1") == ("q.0.0", "q.1.0")


def test_a_renewal_that_comes_to_the_journal_behind_the_nack_revives_nothing(leased: Journalled) -> None:
    record = leased.book.renew("l1", leased.now, ttl_s=TTL)
    assert record is not None
    leased.nack()
    leased.write("", record)
    assert leased.compacted().members == leased.book.members
    assert leased.lease("l2") == ("q.0.0", "q.1.0")
    assert leased.replayed() == leased.book


# --- asking again, because the answer was lost


def test_the_same_id_again_is_the_same_lease(leased: Journalled) -> None:
    found = leased.book.again("l1", leased.now)
    assert found is not None
    assert found.sessions == ("q.0.0", "q.1.0")
    assert leased.book.again("l9", leased.now) is None


def test_a_lease_that_is_over_is_not_given_again(leased: Journalled) -> None:
    with pytest.raises(Conflict, match="over"):
        leased.book.again("l1", leased.now + TTL)
    leased.nack()
    with pytest.raises(Conflict, match="over"):
        leased.book.again("l1", leased.now)


def test_a_lease_that_is_being_made_is_asked_for_a_little_later(it: Journalled) -> None:
    it.ended("q.0.0", "q.1.0")
    assert it.book.lease("l1", it.now, ttl_s=TTL) is not None
    with pytest.raises(Overloaded):
        it.book.again("l1", it.now)
