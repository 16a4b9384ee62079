"""One suite for every `Store`: order, all or nothing, refusal and recovery, damage."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from sandgate.contract.errors import Conflict, CorruptRecord, InvalidBody, JournalUnavailable, TooLarge
from sandgate.gateway.journal import group_commit, memory, rows, sqlite
from sandgate.gateway.journal.records import Delivered, Intent, Record, TurnCommitted
from sandgate.gateway.journal.store import StoreStatus
from tests.gateway.journal.places import AnyStore, InMemory, InPostgres, OnDisk, Place
from tests.gateway.journal.samples import EVERY_KIND, turn


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgres":
        return InPostgres(request.getfixturevalue("postgres_server"))
    return InMemory() if request.param == "memory" else OnDisk(tmp_path)


def stored(store: AnyStore, session: str | None = None) -> list[str]:
    """Names of turns, deliveries and intents, in order."""
    kinds = Intent | TurnCommitted | Delivered
    return [record.turn for _, _, record in store.scan(session) if isinstance(record, kinds)]


async def refused(store: AnyStore, session: str, *records: Record) -> JournalUnavailable:
    with pytest.raises(JournalUnavailable) as caught:
        await store.append(session, *records)
    return caught.value


async def test_records_come_back_as_they_went_in_and_in_order(place: Place) -> None:
    async with await place.open() as store:
        for number, record in enumerate(EVERY_KIND.values()):
            await store.append(f"s{number % 3}", record)
        found = list(store.scan())
        assert [record for _, _, record in found] == list(EVERY_KIND.values())
        assert [seq for seq, _, _ in found] == list(range(1, len(EVERY_KIND) + 1))
        assert [row for row in found if row[1] == "s1"] == list(store.scan("s1"))
        assert list(store.scan("nobody")) == []


async def test_a_longer_log_than_one_read_comes_back_whole(place: Place) -> None:
    names = [f"t{number}" for number in range(3 * sqlite.SCAN_ROWS + 1)]
    async with await place.open() as store:
        await store.append("s", *map(turn, names))
        assert stored(store) == stored(store, "s") == names


async def test_a_scan_shows_what_was_durable_when_it_began(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"), turn("b"))
        scan = store.scan()
        first = next(scan)
        await store.append("s", turn("c"))
        assert [first[2], *(record for _, _, record in scan)] == [turn("a"), turn("b")]


async def test_unsynced_records_keep_their_place(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", Intent(at=0.0, turn="a", digest=b""), sync=False)
        await store.append("s", turn("b"))
        await store.append("s", Delivered(at=0.0, turn="c"), sync=False)
        await store.append("s", turn("d"))
        assert stored(store) == ["a", "b", "c", "d"]


async def test_closing_makes_everything_durable(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"), sync=False)
        await store.append("s", turn("b"), sync=False)
    async with await place.open() as store:
        assert stored(store) == ["a", "b"]


async def test_nothing_is_taken_after_closing(place: Place) -> None:
    store = await place.open()
    await store.aclose()
    await store.aclose()
    assert "closed" in str(await refused(store, "s", turn("a")))


async def test_only_one_may_have_it_open(place: Place) -> None:
    async with await place.open():
        with pytest.raises(Conflict, match="in use by another process"):
            await place.open()
    async with await place.open() as store:
        assert store.status().healthy


async def test_retire_forgets_these_sessions_and_no_others(place: Place) -> None:
    async with await place.open() as store:
        sessions = [f"s{number}" for number in range(65)]
        for session in sessions:
            await store.append(session, turn(session))
        await store.retire([*sessions[1:], "unknown"])
        assert stored(store) == ["s0"]
        assert store.status() == StoreStatus(healthy=True, records=1)
        await store.retire([])


async def test_lines_stand_in_place_of_what_was_retired(place: Place) -> None:
    line = EVERY_KIND["retired"]
    async with await place.open() as store:
        await store.append("s1", turn("a"))
        await store.append("s2", turn("b"), turn("c"))
        await store.retire(["s1"], {"~retired/s1": line, "~retired/s0": line})
    async with await place.open() as store:
        assert stored(store) == ["b", "c"]
        assert [(name, record) for _, name, record in store.scan("~retired/s1")] == [("~retired/s1", line)]
        assert store.status() == StoreStatus(healthy=True, records=4)


async def test_a_retirement_that_fails_leaves_everything_and_no_line(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"))
        with place.broken(), pytest.raises(JournalUnavailable):
            await store.retire(["s"], {"~retired/s": EVERY_KIND["retired"]})
        assert [name for _, name, _ in store.scan()] == ["s"]


async def test_names_that_begin_alike_come_in_order_from_any_of_them_on(place: Place) -> None:
    line = EVERY_KIND["retired"]
    wanted = sorted(["a-1", "a-10", "a-2", "B", "b", "é", *(f"x{n}" for n in range(2 * sqlite.SCAN_ROWS))])
    lines = {f"~retired/{name}": line for name in reversed(wanted)}
    async with await place.open() as store:
        await store.append("s", turn("a"))
        await store.append("~retired0", turn("b"))
        await store.append("~tasks", turn("c"))
        await store.retire([], lines)
        for after in ("", "B", "a-10", "nobody", wanted[-1]):
            found = [name for _, name, _ in store.scan_named("~retired/", after)]
            assert found == [f"~retired/{name}" for name in wanted if name > after], after


async def test_a_sequence_number_is_given_once(place: Place) -> None:
    async with await place.open() as store:
        await store.append("old", turn("a"), turn("b"))
        await store.retire(["old"])
    async with await place.open() as store:
        await store.append("new", turn("c"))
        assert [seq for seq, _, _ in store.scan()] == [3]


async def test_replace_puts_new_records_for_old_ones(place: Place) -> None:
    async with await place.open() as store:
        await store.append("", turn("a"), turn("b"))
        await store.append("s", turn("c"))
        await store.replace("", turn("d"))
        assert stored(store) == ["c", "d"]


async def test_counts_are_those_of_the_journal_after_a_restart(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"), turn("b"))
        assert store.status() == StoreStatus(healthy=True, records=2)
    async with await place.open() as store:
        assert store.status() == StoreStatus(healthy=True, records=2)


async def test_a_write_that_fails_is_refused_whole_and_loses_nothing(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"))
        with place.broken():
            error = await refused(store, "s", turn("b"), turn("c"))
            assert error.status == 503
            assert error.retry_after == rows.RETRY_S
            assert stored(store) == ["a"]
            status = store.status()
            assert (status.healthy, status.records) == (False, 1)
            assert status.detail
            with pytest.raises(JournalUnavailable):
                await store.replace("s", turn("d"))
            with pytest.raises(JournalUnavailable):
                await store.retire(["s"])
        place.clock.seconds += rows.RETRY_S
        await store.append("s", turn("e"))
        assert stored(store) == ["a", "e"]
        assert store.status() == StoreStatus(healthy=True, records=2)


async def test_after_a_failure_one_attempt_a_second_is_made(place: Place) -> None:
    async with await place.open() as store:
        with place.broken():
            await refused(store, "s", turn("a"))
        place.clock.seconds += rows.RETRY_S / 2
        early = await refused(store, "s", turn("b"))
        assert early.retry_after == pytest.approx(rows.RETRY_S / 2)
        with pytest.raises(JournalUnavailable):
            await store.append("s", turn("c"), sync=False)
        place.clock.seconds += rows.RETRY_S / 2
        await store.append("s", turn("d"))
        assert stored(store) == ["d"]


async def test_asking_for_the_status_heals_without_traffic(place: Place) -> None:
    async with await place.open() as store:
        with place.broken():
            await refused(store, "s", turn("a"))
            place.clock.seconds += rows.RETRY_S
            assert not store.status().healthy
            await asyncio.sleep(0)
        place.clock.seconds += rows.RETRY_S
        async with asyncio.timeout(10):
            while not store.status().healthy:  # the probe is answered by the writer, in its own time
                await asyncio.sleep(0)
                place.clock.seconds += rows.RETRY_S
        assert stored(store) == []


async def test_what_queued_behind_a_failure_is_refused_with_it(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"))
        with place.broken():
            calls = [store.append(f"s{number % 3}", turn(f"b{number}")) for number in range(50)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {JournalUnavailable}
        assert stored(store) == ["a"]


async def test_unsynced_records_outlast_a_failure_and_keep_their_place(place: Place) -> None:
    async with await place.open() as store:
        with place.broken():
            await store.append("s", Delivered(at=0.0, turn="kept"), sync=False)
            await refused(store, "t", turn("refused"))
            place.clock.seconds += rows.RETRY_S
            await refused(store, "t", turn("also refused"))
        place.clock.seconds += rows.RETRY_S
        await store.append("u", turn("last"))
        assert stored(store) == ["kept", "last"]


async def test_that_an_answer_was_sent_is_kept_though_what_its_agent_asked_next_was_refused(
    place: Place,
) -> None:
    """Nobody is told later of a record that nobody waits for: the row would be in the summary, and in no lease."""
    async with await place.open() as store:
        await store.append("s", turn("sent"))
        with place.broken():
            asked, noted = await asyncio.gather(
                store.append("s", turn("next")),
                store.append("s", Delivered(at=0.0, turn="sent"), sync=False),
                return_exceptions=True,
            )
        assert isinstance(asked, JournalUnavailable)
        async with asyncio.timeout(10):
            while not store.status().healthy:
                await asyncio.sleep(0)
                place.clock.seconds += rows.RETRY_S
        await store.append("u", turn("last"))
        assert stored(store) == ["sent", *["sent"] * (noted is None), "last"], "or its caller is told"


async def test_closing_says_so_if_unsynced_records_are_lost(place: Place) -> None:
    store = await place.open()
    with place.broken():
        await store.append("kept", Delivered(at=0.0, turn="kept"), sync=False)
        with pytest.raises(JournalUnavailable, match="closed without 1 unsynced record"):
            await store.aclose()
    async with await place.open() as store:
        assert stored(store) == []


async def test_a_caller_that_gives_up_takes_nobody_with_it(place: Place) -> None:
    async with await place.open() as store:
        impatient = asyncio.ensure_future(store.append("s", turn("a")))
        patient = asyncio.ensure_future(store.append("s", turn("b")))
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert stored(store)[-1] == "b"


async def test_a_damaged_tail_is_cut_and_reported(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"), turn("b"), turn("c"), turn("d"))
    place.damage(-1)
    place.damage(-2)
    async with await place.open() as store:
        assert store.status() == StoreStatus(healthy=True, records=2, cut=2)
        assert stored(store) == ["a", "b"]
        await store.append("s", turn("e"))
    async with await place.open() as store:
        assert store.status() == StoreStatus(healthy=True, records=3)
        assert stored(store) == ["a", "b", "e"]


async def test_damage_before_the_end_is_refused_by_name(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"), turn("b"), turn("c"))
    place.damage(1)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="record 2: "):
            await place.open()


async def test_damage_while_open_is_found_by_the_reader(place: Place) -> None:
    async with await place.open() as store:
        await store.append("s", turn("a"), turn("b"), turn("c"))
    async with await place.open() as store:
        place.damage(1)
        with pytest.raises(CorruptRecord, match="record 2: "):
            list(store.scan())


async def test_limits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await place.open() as store:
        with pytest.raises(InvalidBody) as caught:
            await store.append("\ud800", turn("a"))
        assert caught.value.field == "session_id"
        monkeypatch.setattr(rows, "RECORD_BYTES_MAX", 1000)
        with pytest.raises(TooLarge, match="1000"):
            await store.append("s", turn("a"), turn("b", tokens=1000))
        assert stored(store) == []


async def append_without_pause(store: AnyStore, count: int) -> None:
    """No await in here suspends, so nothing is told as written in between."""
    for number in range(count):
        await store.append("s", turn(f"t{number}"), sync=False)


async def test_a_queue_that_is_full_refuses(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (group_commit, memory):
        monkeypatch.setattr(module, "QUEUE_BYTES_MAX", 10_000)
    async with await place.open() as store:
        with pytest.raises(JournalUnavailable, match="for the disk"):
            await append_without_pause(store, 100)
    async with await place.open() as store:
        names = stored(store)
        assert 5 < len(names) < 100
        assert names == [f"t{number}" for number in range(len(names))]


async def test_status_is_a_value(place: Place) -> None:
    async with await place.open() as store:
        assert dataclasses.asdict(store.status()) == {"healthy": True, "detail": "", "records": 0, "cut": 0}
