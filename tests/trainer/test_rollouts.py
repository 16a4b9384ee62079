"""Groups on their way to a trainer, case by case: leased ahead within bounds, renewed, given back, too old, trained
before. Against the real gateway app on a clock that the test moves."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import Conflict, CorruptRecord, NewerRecord, Unavailable
from sandgate.contract.lease import Lease
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.lag import oldest
from sandgate.trainer.client.lease_renewal import Keeper, RenewedLease
from sandgate.trainer.client.streaming import Ahead, Groups
from sandgate.trainer.client.trained import Entry, TrainedGroups
from tests.support.gateway import NEVER_S
from tests.trainer.trajectories import trajectory
from tests.trainer.world import World

TTL_S = 90.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as found:
        yield found


def stream(fleet: AsyncFleet, ahead: Ahead = Ahead(), **more: object) -> Groups:  # noqa: B008
    return fleet.groups(ttl_s=TTL_S, idle_s=0.0, ahead=ahead, poll_s=NEVER_S, **more)  # type: ignore[arg-type]


async def left(world: World) -> int:
    """Groups that another trainer would get now."""
    found = [group async for group in stream(world.fleet())]
    for group in found:
        await group.nack()
    return len(found)


# -- ahead ------------------------------------------------------------------------------------------------------------


async def test_no_more_is_leased_ahead_than_was_allowed(world: World) -> None:
    for number in range(6):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    groups = stream(fleet, Ahead(groups=3))
    first = await anext(groups)
    await world.settle()
    assert fleet.counters.buffered == 3
    assert fleet.counters.buffered_bytes == 3 * first.nbytes
    assert await left(world) == 2
    await anext(groups)
    await world.settle()
    assert (fleet.counters.buffered, fleet.counters.leased, fleet.counters.given) == (3, 5, 2)
    await fleet.aclose()


async def test_bytes_bound_what_is_leased_ahead_to_one_group_beyond(world: World) -> None:
    for number in range(6):
        await world.roll("g0", f"q{number}", turns=2)
    fleet = world.fleet()
    groups = stream(fleet, Ahead(groups=100, nbytes=1))
    size = (await anext(groups)).nbytes
    await world.settle()
    assert (fleet.counters.buffered, fleet.counters.buffered_bytes) == (1, size)
    await fleet.aclose()


async def test_without_ahead_nothing_is_leased_that_was_not_asked_for(world: World) -> None:
    for number in range(3):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    await anext(stream(fleet))
    await world.settle()
    assert fleet.counters.leased == 1
    assert await left(world) == 2


async def test_closing_gives_back_what_was_leased_ahead_and_not_what_was_handed_out(world: World) -> None:
    for number in range(4):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    groups = stream(fleet, Ahead(groups=2))
    group = await anext(groups)
    await world.settle()
    assert await left(world) == 1
    await fleet.aclose()
    assert await left(world) == 3
    assert (fleet.counters.nacked, fleet.counters.buffered, fleet.counters.buffered_bytes) == (2, 0, 0)
    await group.ack()
    world.clock.now += 2 * TTL_S
    assert await left(world) == 3


async def test_a_stream_that_ended_stays_ended(world: World) -> None:
    groups = stream(world.fleet())
    assert [group async for group in groups] == []
    await world.roll("g0", "q1")
    assert [group async for group in groups] == []


async def test_what_the_gateways_say_is_raised_and_the_next_call_tries_again(world: World) -> None:
    await world.roll("g0", "q1")
    for site in world.sites.values():
        site.cut_off = True
    groups = stream(world.fleet())
    with pytest.raises(Unavailable, match="no gateway answers"):
        await anext(groups)
    for site in world.sites.values():
        site.cut_off = False
    assert (await anext(groups)).uid == "q1"


async def test_a_lease_whose_answer_was_lost_is_had_by_asking_again(world: World) -> None:
    await world.roll("g0", "q1")
    world.sites["g0"].lose.append("/v1/leases")
    groups = stream(world.fleet())
    assert (await anext(groups)).uid == "q1"


# -- renewal ----------------------------------------------------------------------------------------------------------


async def test_leases_are_renewed_in_the_buffer_and_in_the_trainers_hands(world: World) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    groups = stream(fleet, Ahead(groups=1))
    group = await anext(groups)
    await world.settle()
    for _ in range(5):
        world.clock.now += TTL_S / 2
        await fleet.keeper.renew_due()
        assert await left(world) == 0
    assert fleet.counters.renewals == 10
    await group.ack()
    world.clock.now += TTL_S / 2
    await fleet.keeper.renew_due()
    assert fleet.counters.renewals == 11, "what is acknowledged is not renewed"
    del groups  # it was held until here: who drops a stream lets what it had leased ahead run out
    await fleet.aclose()


async def test_a_group_that_nobody_holds_on_to_is_offered_again(world: World) -> None:
    await world.roll("g0", "q1")
    fleet = world.fleet()
    async for _ in stream(fleet):
        pass
    del _
    world.clock.now += TTL_S
    await fleet.keeper.renew_due()
    assert await left(world) == 1


async def test_a_trainer_that_slept_is_not_handed_what_another_has_now(world: World) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    slept, other = world.fleet(), world.fleet()
    groups = stream(slept, Ahead(groups=1))
    mine = await anext(groups)
    await world.settle()
    world.clock.now += TTL_S
    theirs = [await anext(stream(other)) for _ in range(2)]
    assert sorted(group.uid for group in theirs) == ["q0", "q1"]
    assert [group async for group in groups] == [], "the one in the buffer was lost"
    with pytest.raises(Conflict, match="another trainer may have it"):
        await mine.renew()
    assert mine.lost
    with pytest.raises(Conflict):
        slept.trained(mine)
    with pytest.raises(Conflict):
        await mine.ack()
    assert slept.counters.lost == 2


async def test_a_trainer_that_slept_keeps_what_nobody_else_took(world: World) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    groups = stream(fleet, Ahead(groups=1))
    first = await anext(groups)
    await world.settle()
    world.clock.now += 10 * TTL_S
    second = await anext(groups)
    await first.renew()
    assert await left(world) == 0
    assert (second.lost, fleet.counters.lost) == (False, 0)


async def test_a_gateway_that_does_not_answer_renews_nothing_and_a_group_past_its_end_is_not_handed_out(
    world: World,
) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    groups = stream(fleet, Ahead(groups=1))
    await anext(groups)
    await world.settle()
    world.clock.now += TTL_S / 2
    world.sites["g0"].cut_off = True
    assert await fleet.keeper.renew_due() == 1.0, "it is tried again soon"
    world.clock.now += TTL_S
    assert [group async for group in groups] == []
    assert (fleet.counters.lost, fleet.counters.renewals) == (1, 0)


async def test_a_lease_counts_from_when_it_was_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.roll("g0", "q0")
    fleet, began = world.fleet(), world.clock.now
    lease = fleet.lease

    async def slow(**how: Any) -> Lease | None:
        found = await lease(**how)
        world.clock.now += 5.0
        return found

    monkeypatch.setattr(fleet, "lease", slow)
    group = await anext(stream(fleet))
    assert group.hold.until == began + TTL_S


async def test_what_is_settled_is_not_renewed(world: World) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    acked, given_back = [await anext(stream(fleet)) for _ in range(2)]
    await acked.ack()
    await given_back.nack()
    world.clock.now += TTL_S / 2
    assert await fleet.keeper.renew_due() is None, "nothing is held"
    assert (fleet.counters.renewals, fleet.counters.lost) == (0, 0)


async def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    """As the gateway may have counted from then on."""
    now = 1000.0

    class Slow:
        async def renew(self, lease_id: str, ttl_s: float) -> None:
            nonlocal now
            now += 5.0

    keeper = Keeper(Slow(), lambda: now)
    hold = RenewedLease("l", TTL_S, until=now + 1.0)
    assert await keeper.renew(hold)
    assert hold.until == 1000.0 + TTL_S


# -- staleness --------------------------------------------------------------------------------------------------------

BEHIND: dict[str, tuple[int, int | None, list[str]]] = {
    "without a bound everything is handed out": (5, None, ["q0"]),
    "as old as the bound is fine": (1, 1, ["q0"]),
    "older than the bound is never handed out": (2, 1, []),
    "no lag at all": (0, 0, ["q0"]),
    "one behind where none is allowed": (1, 0, []),
}


@pytest.mark.parametrize(("version", "bound", "uids"), BEHIND.values(), ids=BEHIND)
async def test_staleness(world: World, version: int, bound: int | None, uids: list[str]) -> None:
    await world.roll("g0", "q0")
    fleet, dropped = world.fleet(), list[Group]()
    async with fleet.weight_update(version):
        pass
    found = [group async for group in stream(fleet, max_behind=bound, on_stale=dropped.append)]
    assert [group.uid for group in found] == uids
    assert (fleet.counters.stale, len(dropped)) == (1 - len(uids),) * 2
    world.clock.now += 2 * TTL_S
    assert await left(world) == len(uids), "what is dropped is acknowledged: it would come again for ever"
    assert fleet.counters.acked == 0, "and not counted as trained on"


async def test_a_group_that_grew_old_in_the_buffer_is_not_handed_out(world: World) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    groups = stream(fleet, Ahead(groups=1), max_behind=0)
    assert (await anext(groups)).uid == "q0"
    await world.settle()
    async with fleet.weight_update(1):
        pass
    assert [group async for group in groups] == []


async def test_a_group_that_is_too_old_and_another_trainers_by_now_is_passed_over(world: World) -> None:
    """Its gateway counted the lease as shorter: it keeps a lease over so many starts only."""
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet, dropped = world.fleet(), list[Group]()
    groups = stream(fleet, Ahead(groups=1), max_behind=0, on_stale=dropped.append)
    assert (await anext(groups)).uid == "q0"
    await world.settle()
    for hold in fleet.keeper.holds:
        hold.until += 9 * TTL_S
    world.clock.now += 2 * TTL_S
    for group in [one async for one in stream(world.fleet())]:
        await group.ack()
    async with fleet.weight_update(1):
        pass
    assert [group async for group in groups] == []
    assert (dropped, fleet.counters.stale, fleet.counters.lost) == ([], 0, 1)


async def test_a_rank_that_updates_nothing_is_told(world: World) -> None:
    await world.roll("g0", "q0")
    one, two = world.fleet(), world.fleet()
    assert await two.version() == 0
    async with one.weight_update(7):
        pass
    assert await two.version() == 0
    two.told_version(7)
    assert [group async for group in stream(two, max_behind=6)] == []
    assert await world.fleet().version() == 7, "one that comes later asks the gateways"


def test_the_oldest_version_is_that_of_sampled_tokens() -> None:
    row = trajectory(0)
    assert oldest([]) is None
    assert oldest([row, replace(row, versions=array("i", [-1] * len(row.versions)))]) == min(
        version for version in row.versions if version >= 0
    )
    empty = array("i")
    bare = replace(
        row, response_ids=empty, versions=empty, response_logprobs=array("f"), loss_mask=array("b"),
        turn_ids=(), turn_ends=(), turn_rewards=(),
    )  # fmt: skip
    assert oldest([bare]) is None


# -- what was trained on ----------------------------------------------------------------------------------------------


async def trained(world: World, fleet: AsyncFleet, count: int = 1) -> list[Group]:
    groups = stream(fleet)
    found = [await anext(groups) for _ in range(count)]
    fleet.trained(*found)
    return found


async def test_a_group_that_is_settled_cannot_be_kept_for_a_checkpoint(world: World) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    groups = stream(fleet)
    first, second = [await anext(groups) for _ in range(2)]
    await second.ack()
    with pytest.raises(Conflict, match="group q1 was acknowledged or given back already"):
        fleet.trained(first, second)
    assert (await fleet.checkpoint())["trained"] == [], "none of them is noted"


async def test_a_crash_between_checkpoint_and_acknowledgement_trains_nothing_twice(world: World) -> None:
    await world.roll("g0", "q0")
    await world.roll("g1", "q1")
    first = world.fleet()
    await trained(world, first, 2)
    note = await first.checkpoint()
    restarted = world.fleet()
    await restarted.resume_from(note)
    assert (restarted.counters.acked, restarted.counters.repeated) == (0, 2)
    world.clock.now += 2 * TTL_S
    assert [group async for group in stream(restarted)] == []


async def test_a_crash_before_the_checkpoint_loses_nothing(world: World) -> None:
    await world.roll("g0", "q0")
    first = world.fleet()
    note = await first.checkpoint()
    await trained(world, first)
    world.clock.now += TTL_S
    restarted = world.fleet()
    await restarted.resume_from(note)
    assert [group.uid async for group in stream(restarted)] == ["q0"]


async def test_a_commit_acknowledges_what_its_checkpoint_has_and_no_more(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        await world.roll("g0", f"q{number}")
    fleet = world.fleet()
    await trained(world, fleet)
    note = await fleet.checkpoint()
    await trained(world, fleet)
    await fleet.commit(note)
    await fleet.commit(note)
    assert fleet.counters.acked == 1
    assert "is not here" not in caplog.text, "once more says nothing"
    assert [one["sessions"] for one in (await fleet.checkpoint())["trained"]] == [["q1-0", "q1-1"]]
    world.clock.now += TTL_S
    assert await left(world) == 1


async def test_what_was_trained_on_is_renewed_until_it_is_acknowledged(world: World) -> None:
    await world.roll("g0", "q0")
    fleet = world.fleet()
    await trained(world, fleet)
    for _ in range(3):
        world.clock.now += TTL_S / 2
        await fleet.keeper.renew_due()
    assert await left(world) == 0
    await fleet.commit(await fleet.checkpoint())
    world.clock.now += 2 * TTL_S
    assert await left(world) == 0


async def test_a_gateway_that_was_away_is_acknowledged_when_it_offers_the_group_again(world: World) -> None:
    await world.roll("g0", "q0")
    first = world.fleet()
    await trained(world, first)
    note = await first.checkpoint()
    world.sites["g0"].cut_off = True
    restarted = world.fleet()
    await restarted.resume_from(note)
    assert (await world.fleet_of("g1").version(), restarted.counters.acked) == (0, 0)
    world.sites["g0"].cut_off = False
    world.clock.now += TTL_S
    assert [group async for group in stream(restarted)] == []
    assert restarted.counters.repeated == 1
    assert (await restarted.checkpoint())["trained"] == [], "and there is nothing more to remember"
    world.clock.now += 2 * TTL_S
    assert await left(world) == 0


async def test_a_checkpoint_with_what_another_trainer_has_is_refused(world: World) -> None:
    await world.roll("g0", "q0")
    slept, other = world.fleet(), world.fleet()
    await trained(world, slept)
    world.clock.now += TTL_S
    await trained(world, other)
    with pytest.raises(Conflict, match="another trainer may have trained"):
        await slept.checkpoint()
    await other.commit(await other.checkpoint())


async def test_a_checkpoint_whose_group_another_trainer_took_since_is_said_and_not_forgotten(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.roll("g0", "q0")
    slept, other = world.fleet(), world.fleet()
    await trained(world, slept)
    note = await slept.checkpoint()
    world.clock.now += TTL_S
    (group,) = [await anext(stream(other))]
    await slept.commit(note)
    assert "was trained on, but is not acknowledged" in caplog.text
    later = await slept.checkpoint()  # what a written checkpoint holds cannot be taken back
    assert [one["sessions"] for one in later["trained"]] == [["q0-0", "q0-1"]]
    await group.nack()
    assert [group async for group in stream(slept)] == [], "it is not trained on here again"
    assert await left(world) == 0


async def test_a_group_of_which_nothing_was_sampled_is_handed_out_and_not_taken_for_an_old_one(
    world: World,
) -> None:
    await world.roll("g0", "q0", turns=0)
    fleet = world.fleet()
    (group,) = [group async for group in stream(fleet)]
    assert (group.trajectories, fleet.counters.repeated) == ((), 0)


async def test_only_the_attempt_that_is_new_is_handed_out_of_a_group_that_was_trained_on(
    world: World,
) -> None:
    await world.roll("g0", "q0")
    fleet = world.fleet()
    await fleet.resume_from(
        {"format": 1, "version": 0, "trained": [{"gateway": "g0", "lease": "old", "sessions": ["q0-0"]}]}
    )
    assert [one["sessions"] for one in (await fleet.checkpoint())["trained"]] == [], "g0 forgot that lease"
    fleet = world.fleet()
    await fleet.resume_from(
        {"format": 1, "version": 0, "trained": [{"gateway": "gone", "lease": "old", "sessions": ["q0-0"]}]}
    )
    (group,) = [group async for group in stream(fleet)]
    assert {row.session_id for row in group.trajectories} == {"q0-1"}


SESSIONS = st.sampled_from([f"q{number}" for number in range(5)])
PUT_OR_DROP = st.tuples(st.booleans(), st.sampled_from("lmn"), st.lists(SESSIONS, max_size=4))


@given(st.lists(PUT_OR_DROP, max_size=12))
def test_a_ledger_knows_each_session_that_one_of_its_entries_has(
    steps: list[tuple[bool, str, list[str]]],
) -> None:
    ledger = TrainedGroups()
    for put, lease, sessions in steps:
        if put:
            ledger.put(Entry("g0", lease, tuple(sessions)))
        else:
            ledger.drop(lease)
        known = {session for entry in ledger.entries.values() for session in entry.sessions}
        assert ledger.sessions.keys() == known
        assert ledger == TrainedGroups(dict(ledger.entries))


class NotRead(dict[str, Entry]):
    def values(self) -> Any:
        raise AssertionError("what a group costs grows with what is not acknowledged")


def test_whether_a_group_is_new_is_known_without_a_look_at_all_the_others() -> None:
    ledger = TrainedGroups({"l": Entry("g0", "l", ("q0-0",))})
    ledger.entries = NotRead(ledger.entries)
    row = trajectory(session_id="q0-0")
    assert ledger.fresh([row, replace(row, session_id="q1-0")]) == (replace(row, session_id="q1-0"),)


def test_a_ledger_forgets_what_is_acknowledged_elsewhere_only_when_all_of_it_is() -> None:
    ledger = TrainedGroups({"l": Entry("g0", "l", ("q0-0", "q0-1"))})
    ledger.note(version=1)
    ledger.forget(["q0-0", "q9-0"])
    row = trajectory(session_id="q0-1")
    assert ledger.fresh([row]) == ()
    ledger.forget(["q0-0", "q0-1", "q9-0"])
    assert ledger == TrainedGroups(), "a trainer may run for months"
    assert ledger.fresh([row]) == (row,)


NOTES: dict[str, tuple[object, type[Exception]]] = {
    "nothing": ({}, CorruptRecord),
    "a list": ([], CorruptRecord),
    "of a newer program": ({"format": 2, "trained": []}, NewerRecord),
    "without sessions": ({"format": 1, "trained": [{"gateway": "g", "lease": "l"}]}, CorruptRecord),
}


@pytest.mark.parametrize(("note", "error"), NOTES.values(), ids=NOTES)
async def test_a_note_that_is_none_is_refused(world: World, note: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        await world.fleet().resume_from(note)  # type: ignore[arg-type]
