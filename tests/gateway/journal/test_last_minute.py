"""Which turns a kill may have cut the note of: by the journal's order, however the wall clock was set."""

from __future__ import annotations

import pytest
from msgspec import structs

from sandgate.gateway.journal.last_minute import LastMinute
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Acked, Delivered, Leased, Opened, Record, Retired, Sealed
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.trajectories.linearize import rows_of
from tests.gateway.journal.samples import turn

AT = 1_700_000_000.0
HOUR_S = 3600.0


def turned(at: float) -> Record:
    return structs.replace(turn("last"), at=AT + at)


def opened(at: float) -> Record:
    return Opened(at=AT + at, spec={})


def leased(at: float) -> Record:
    return Leased(at=AT + at, lease="l", sessions=("s",), until=AT + at)


JOURNALS: dict[str, tuple[list[Record], bool]] = {
    "nothing is behind it": ([turned(0)], True),
    "less than a minute is behind it": ([turned(0), opened(59)], True),
    "more than a minute is behind it": ([turned(0), opened(61)], False),
    "it is the sum that counts": ([turned(0), opened(40), opened(80)], False),
    "the clock was set back before it": ([opened(HOUR_S), turned(0), opened(1)], True),
    "the clock was set back right behind it": ([turned(HOUR_S), opened(1), opened(59)], True),
    "the clock was set back long behind it": ([turned(HOUR_S), opened(1), opened(62)], False),
    "the clock was set back a little before it": ([opened(30), turned(0), opened(1)], True),
    "writers that wait for one another wrote out of order": (
        [turned(0), *(opened(number % 2) for number in range(200))], True,
    ),
    "leases have times of another clock": (
        [turned(0), *(one for number in range(9) for one in (leased(-HOUR_S), opened(number)))], True,
    ),
    "what was written anew has times of long ago": (
        [turned(0), Acked(at=AT - HOUR_S, lease="l", sessions=()), opened(1),
         Retired(at=AT - HOUR_S, opened=0.0, schema=11), opened(2)], True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("records", "unsure"), JOURNALS.values(), ids=JOURNALS)
def test_a_turn_is_of_the_last_minute_if_less_than_one_is_behind_it(
    records: list[Record], unsure: bool
) -> None:
    minute = LastMinute()
    for record in records:
        minute.seen("s", record)
    assert minute.by_session() == ({"s": {"last"}} if unsure else {})


BEHIND: dict[str, tuple[list[Record], float | None]] = {
    "there is no lease": ([opened(0), opened(10)], 10.0),
    "nothing is behind it": ([opened(0), leased(HOUR_S)], None),
    "how long before the next record it was made is not known": ([opened(0), leased(HOUR_S), opened(HOUR_S)], 0.0),
    "what came behind that has passed": ([opened(0), leased(5), opened(10), opened(30)], 20.0),
    "the newest counts": ([leased(0), opened(0), opened(30), leased(30), opened(31), opened(33)], 2.0),
    "a clock that is set back takes no time away": ([leased(0), opened(0), opened(30), opened(-HOUR_S)], 30.0),
}  # fmt: skip


@pytest.mark.parametrize(("records", "passed"), BEHIND.values(), ids=BEHIND)
def test_no_more_time_is_counted_behind_a_lease_than_passed(
    records: list[Record], passed: float | None
) -> None:
    minute = LastMinute()
    for record in records:
        minute.seen("s", record)
    assert minute.behind_leases == passed


@pytest.mark.parametrize("ahead", [0.0, HOUR_S])
async def test_a_row_has_the_turn_right_before_a_kill_though_the_clock_was_once_ahead(ahead: float) -> None:
    """The answer was sent, and the kill came before the note of it."""
    disk, now = MemoryDisk(), [AT + ahead]
    sessions = Sessions(MemoryStore(disk), lambda: now[0])
    await sessions.open("earlier", {})
    now[0] = AT + 30
    one, _ = await sessions.open("one", {})
    await sessions.record(one, structs.replace(turn("t0"), at=now[0]), Delivered(at=now[0], turn="t0"))
    now[0] += 5
    await sessions.record(one, structs.replace(turn("t1", parent="t0"), at=now[0]))
    sessions.store.crash()  # type: ignore[attr-defined]
    now[0] += 1
    again = Sessions(MemoryStore(disk), lambda: now[0])
    again.replay()
    await again.keep_doubts()
    one = again.get("one")
    assert one.unsure == {"t1"}
    await again.record(one, Delivered(at=now[0], turn="t1"), Sealed(at=now[0], reward=1.0))
    full = again.restored(one)
    rows = rows_of(full.tree.turns, full.delivered, full.partly)
    assert [[step.id for step in rows.path(end)] for end in rows.ends] == [["t0", "t1"]]
