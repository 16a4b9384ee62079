"""Groups by several at once, from several gateways at once; and what becomes of them when something breaks."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pytest
import uvloop

from sandgate.contract.errors import Conflict, NotFound, Unavailable
from sandgate.contract.lease import Lease
from sandgate.trainer.client import lease_call, streaming
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.lease_renewal import Keeper
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import Ahead, Groups, Wanted
from tests.support.cancelled_at import cancelled_at
from tests.support.gateway import NEVER_S, eventually
from tests.trainer.world import JOB, World

TTL_S = 90.0
EIGHT = Ahead(8)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        yield made


def stream(fleet: AsyncFleet, ahead: Ahead = EIGHT) -> Groups:
    return fleet.groups(ttl_s=TTL_S, idle_s=0.0, ahead=ahead, poll_s=NEVER_S)


async def rolled(world: World, gateway: str, *uids: str) -> None:
    for uid in uids:
        await world.roll(gateway, uid, size=1)


async def rest(world: World) -> list[str]:
    """What another trainer would get now, in order; it is given back."""
    uids = []
    for name in world.sites:
        client = world.fleet_of(name)
        if (lease := await client.lease(max_groups=100)) is not None:
            uids += [row.uid for row in lease.trajectories]
            await client.nack(lease)
    return uids


async def taken(groups: Groups, count: int) -> list[Group]:
    return [await anext(groups) for _ in range(count)]


async def test_one_request_brings_several_groups_and_each_is_settled_by_itself(world: World) -> None:
    await rolled(world, "g0", "q0", "q1", "q2", "q3")
    fleet = world.fleet_of("g0")
    a, b, c, d = await taken(groups := stream(fleet), 4)
    await world.settle()
    assert world.sites["g0"].seen.count("/v1/leases") <= 2, "the second finds no more"
    assert len({one.lease.lease_id for one in (a, b, c, d)}) == 4
    await a.ack()
    await b.nack()
    await c.renew()
    assert await rest(world) == ["q1"], "at once, and the others are not touched"
    world.clock.now += 2 * TTL_S
    assert await rest(world) == ["q1", "q2", "q3"], "q0 never again"
    await groups.aclose()


async def test_a_group_that_is_lost_comes_once_with_its_name_and_without_rows(world: World) -> None:
    """Who pushed its task waits for it, and would wait for ever."""
    client = world.sites["g0"].client()
    for sample in range(2):
        session = await client.create_session(uid="lost", sample_index=sample, group_size=2, job=JOB)
        await client.finalize(
            session.session_id,
            outcome={"failure_class": "infra", "failure_reason": "ImageError"},
            trajectories=False,
        )
    await client.close_group("lost", job=JOB)
    await rolled(world, "g0", "q0")
    groups = stream(world.fleet_of("g0"))
    found = await taken(groups, 2)
    assert [(one.job, one.uid, len(one.trajectories)) for one in found] == [(JOB, "lost", 0), (JOB, "q0", 1)]
    for one in found:
        await one.ack()
    await groups.aclose()
    assert sorted([(one["uid"], one["committed"]) async for one in client.sessions()]) == [
        ("lost", False),
        ("lost", False),
        ("q0", True),
    ]
    assert await client.lease(max_groups=100) is None
    await client.aclose()


async def test_a_gateway_that_is_slow_keeps_nobody_from_the_groups_of_another(world: World) -> None:
    await rolled(world, "g0", "slow")
    await rolled(world, "g1", "quick0", "quick1")
    world.sites["g0"].slow = asyncio.Event()
    fleet = world.fleet()
    async with asyncio.timeout(10):
        found = await taken(groups := stream(fleet), 2)
    assert [one.uid for one in found] == ["quick0", "quick1"]
    world.sites["g0"].slow.set()
    assert (await anext(groups)).uid == "slow"
    await groups.aclose()


async def test_gateways_take_turns(world: World) -> None:
    await rolled(world, "g0", "a0", "a1", "a2")
    await rolled(world, "g1", "b0", "b1", "b2")
    groups = stream(world.fleet(), Ahead(0))
    assert [one.uid for one in await taken(groups, 6)] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    await groups.aclose()


async def test_an_empty_gateway_beside_a_full_one_is_not_asked_each_time(world: World) -> None:
    await rolled(world, "g1", *(f"q{number}" for number in range(12)))
    groups = stream(world.fleet(), Ahead(2))
    assert [one.uid for one in await taken(groups, 12)] == [f"q{number}" for number in range(12)]
    assert world.sites["g0"].seen.count("/v1/leases") <= 3
    await groups.aclose()


async def test_two_consumers_of_two_gateways_have_each_group_once(world: World) -> None:
    for gateway in ("g0", "g1"):
        await rolled(world, gateway, *(f"{gateway}-q{number}" for number in range(6)))
    seen: Counter[str] = Counter()

    async def consume() -> None:
        async for group in stream(world.fleet(), Ahead(3)):
            async with group:
                seen[group.uid] += 1

    await asyncio.gather(consume(), consume())
    assert seen == Counter(f"{gateway}-q{number}" for gateway in ("g0", "g1") for number in range(6))
    world.clock.now += 2 * TTL_S
    assert await rest(world) == []


async def test_who_leaves_the_loop_gives_back_at_once_what_was_leased_ahead(world: World) -> None:
    await rolled(world, "g0", *(f"q{number}" for number in range(6)))
    fleet = world.fleet()
    async for group in stream(fleet):
        await world.settle()
        assert fleet.counters.buffered == 5
        await group.ack()
        break
    gc.collect()
    await world.settle()
    assert fleet.counters.buffered == 0
    assert await rest(world) == [f"q{number}" for number in range(1, 6)]


async def test_a_call_that_is_cancelled_loses_no_group(world: World) -> None:
    await rolled(world, "g0", "q0", "q1")
    world.sites["g0"].slow = asyncio.Event()
    fleet = world.fleet_of("g0")
    groups = fleet.groups(ttl_s=TTL_S, ahead=Ahead(0), poll_s=NEVER_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(groups)
    world.sites["g0"].slow.set()
    assert [one.uid for one in await taken(groups, 2)] == ["q0", "q1"]
    await groups.aclose()


async def bounded(world: World, told: list[str]) -> tuple[AsyncFleet, Groups]:
    """A fleet that goes on from a checkpoint, and has not asked for the version: `again` is in the checkpoint, `stale`
    is too old, `good` is to be handed out."""
    await rolled(world, "g0", "again")
    before = world.fleet_of("g0")
    before.trained(*await taken(stream(before), 1))
    note = await before.checkpoint()
    await before.aclose()
    world.clock.now += TTL_S
    await rolled(world, "g0", "stale")
    async with world.fleet_of("g0").weight_update(5):
        pass
    await rolled(world, "g0", "good")
    fleet = world.fleet_of("g0")
    world.sites["g0"].cut_off = True
    await fleet.resume_from(note)
    world.sites["g0"].cut_off = False
    return fleet, fleet.groups(
        ttl_s=TTL_S,
        idle_s=0.0,
        ahead=EIGHT,
        poll_s=NEVER_S,
        max_behind=1,
        on_stale=lambda group: told.append(group.uid),
    )


@pytest.mark.parametrize("late", [False, True])
async def test_a_call_with_a_bound_that_is_cancelled_loses_no_group_wherever_it_is(*, late: bool) -> None:
    ended = False
    for wait in count(1):
        async with World(1) as world:
            told: list[str] = []
            fleet, groups = await bounded(world, told)
            found: list[Group] = []
            try:
                found = [await cancelled_at(groups.__anext__(), wait, late=late)]
                ended = True
            except asyncio.CancelledError:
                found = [group async for group in groups]
            said = fleet.counters
            assert ([one.uid for one in found], told) == (["good"], ["stale"]), wait
            assert (said.given, said.stale, said.repeated, said.lost, said.buffered) == (1, 1, 1, 0, 0), wait
            assert (await fleet.checkpoint())["trained"] == [], wait
            for one in found:
                await one.ack()
            await groups.aclose()
            assert said.acked == 1, wait
            world.clock.now += 2 * TTL_S
            assert await rest(world) == [], wait
        if ended:
            break
    assert wait > 5, "it waits for leases, acknowledgements and the version"


async def test_a_call_that_is_cancelled_while_a_group_is_acknowledged_waits_for_no_gateway(
    world: World,
) -> None:
    """Nor does the group, which is told of as soon as it is acknowledged."""
    told: list[str] = []
    fleet, groups = await bounded(world, told)
    site = world.sites["g0"]
    site.slow = answer = asyncio.Event()
    asking = asyncio.ensure_future(anext(groups))
    await world.settle()
    for path in ("/ack", "/v1/status", "/ack"):
        before, site.slow = answer, (answer := asyncio.Event())
        before.set()
        await world.settle()
        assert site.seen[-1].endswith(path)
    asking.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert told == []
    answer.set()
    await world.settle()
    assert (told, fleet.counters.stale) == (["stale"], 1)
    assert [group.uid for group in await taken(groups, 1)] == ["good"]
    await groups.aclose()


async def test_a_stale_group_whose_ack_is_not_answered_is_the_next_calls(world: World) -> None:
    told: list[str] = []
    fleet, groups = await bounded(world, told)
    world.sites["g0"].slow = asyncio.Event()
    asking = asyncio.ensure_future(anext(groups))
    await world.settle()
    world.sites["g0"].slow.set()
    world.sites["g0"].refuse = [503, 503]
    with pytest.raises(Unavailable):
        await asking
    world.sites["g0"].refuse = []
    assert [group.uid async for group in groups] == ["good"]
    assert (told, fleet.counters.repeated) == (["stale"], 1)
    await groups.aclose()


async def test_a_call_that_is_cancelled_in_a_stream_that_is_closed_gives_its_group_back(world: World) -> None:
    """Nobody calls again, and its lease would be renewed for as long as somebody holds the stream."""
    await rolled(world, "g0", "q0")
    site = world.sites["g0"]
    groups = world.fleet_of("g0").groups(ttl_s=TTL_S, poll_s=NEVER_S, max_behind=1)
    site.slow = leased = asyncio.Event()
    asking = asyncio.ensure_future(anext(groups))
    await world.settle()
    site.slow = version = asyncio.Event()
    leased.set()
    await world.settle()
    assert site.seen[-1] == "/v1/status"
    await groups.aclose()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    version.set()
    await world.settle()
    assert await rest(world) == ["q0"]


async def test_a_gateway_that_dies_between_lease_and_ack_takes_the_ack_when_it_is_back(world: World) -> None:
    await rolled(world, "g0", "q0", "q1")
    await rolled(world, "g1", "p0")
    groups = stream(world.fleet(), Ahead(0))
    found = {one.uid: one for one in await taken(groups, 3)}
    await world.sites["g0"].stop()
    with pytest.raises(Unavailable):
        await found["q0"].ack()
    await found["p0"].ack()
    await world.restart("g0")
    await found["q0"].ack()
    world.clock.now += 2 * TTL_S
    assert await rest(world) == ["q1"], "the journal knows both"
    await groups.aclose()


async def test_an_ack_whose_answer_is_lost_is_sent_again_and_counts_once(world: World) -> None:
    await rolled(world, "g0", "q0", "q1")
    fleet = world.fleet_of("g0")
    first, second = await taken(groups := stream(fleet), 2)
    world.sites["g0"].lose.append(f"/v1/leases/{first.lease.lease_id}/ack")
    with pytest.raises(Unavailable):
        await first.ack()
    await first.ack()
    assert fleet.counters.acked == 1
    fleet.trained(second)
    note = await fleet.checkpoint()
    world.sites["g0"].lose.append("/v1/leases/ack")
    with pytest.raises(Unavailable):
        await fleet.commit(note)
    await fleet.commit(note)
    assert fleet.counters.acked == 2
    world.clock.now += 2 * TTL_S
    assert await rest(world) == []
    await groups.aclose()


async def test_a_lease_whose_answer_is_lost_is_offered_again_and_nothing_is_lost(world: World) -> None:
    await rolled(world, "g0", "q0", "q1")
    world.sites["g0"].lose += ["/v1/leases"] * 2
    groups = stream(world.fleet_of("g0"))
    with pytest.raises(Unavailable):
        await anext(groups)
    assert await rest(world) == [], "the gateway cannot know"
    world.clock.now += 2 * TTL_S
    assert [one.uid for one in await taken(groups, 2)] == ["q0", "q1"]
    await groups.aclose()


async def test_a_lease_whose_answer_was_lost_is_the_next_answer_for_as_long_as_it_lasts(world: World) -> None:
    await rolled(world, "g0", "q0", "q1")
    site = world.sites["g0"]
    site.lose += ["/v1/leases"] * 2
    groups = stream(fleet := world.fleet_of("g0"))
    with pytest.raises(Unavailable):
        await anext(groups)
    await site.stop()
    await site.start()
    world.clock.now += TTL_S / 2
    first, second = await taken(groups, 2)
    assert [first.uid, second.uid] == ["q0", "q1"]
    assert first.hold.until == world.clock.now + TTL_S / 2, "counted from when it was asked for first"
    await first.ack()
    await second.ack()
    assert fleet.counters.lost == 0
    assert await rest(world) == []
    await groups.aclose()


async def test_groups_whose_answer_was_lost_all_come_though_others_left_room_for_one_only(
    world: World,
) -> None:
    await rolled(world, "g0", "p0", "p1", "p2")
    await rolled(world, "g1", *(f"q{number}" for number in range(6)))
    site = world.sites["g0"]
    site.lose += ["/v1/leases"] * 2
    groups = world.fleet().groups(ttl_s=TTL_S, ahead=Ahead(6), poll_s=0.001)
    async with asyncio.timeout(10):
        first = await anext(groups)
        await eventually(lambda: not site.lose, "it gave groups, and nobody heard of it")
        site.cut_off = True
        await eventually(lambda: len(groups.supply.buffer) == 5, "the other's leave room for one")
        site.cut_off = False
        found = [first, *await taken(groups, 8)]
    assert sorted(one.uid for one in found) == ["p0", "p1", "p2", *(f"q{number}" for number in range(6))]
    for one in found:
        await one.ack()
    await groups.aclose()
    world.clock.now += 2 * TTL_S
    assert await rest(world) == []


@pytest.mark.parametrize("status", [429, 502, 504])
async def test_a_gateway_that_somebody_between_answers_for_is_passed_over(world: World, status: int) -> None:
    await rolled(world, "g0", "q0")
    await rolled(world, "g1", "q1")
    world.sites["g0"].refuse += [status] * 2
    groups = world.fleet().groups(ttl_s=TTL_S, poll_s=0.001)
    async with asyncio.timeout(10):
        assert {one.uid for one in await taken(groups, 2)} == {"q0", "q1"}
    await groups.aclose()
    world.sites["g0"].refuse += [status] * 2
    lease = await world.fleet().lease(ttl_s=TTL_S)
    assert lease is None, "nothing is left, and nothing is raised"


async def test_a_gateway_that_hangs_after_it_was_away_delays_no_group_of_another(world: World) -> None:
    await rolled(world, "g1", *(f"q{number}" for number in range(6)))
    site = world.sites["g0"]
    site.cut_off = True
    groups = world.fleet().groups(ttl_s=TTL_S, poll_s=0.001)
    assert (await anext(groups)).uid == "q0"
    site.cut_off, site.slow = False, asyncio.Event()
    async with asyncio.timeout(10):
        assert [one.uid for one in await taken(groups, 5)] == [f"q{number}" for number in range(1, 6)]
    site.slow.set()
    await groups.aclose()


async def test_a_gateway_that_hangs_keeps_no_stream_from_being_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "CLOSE_S", 0.1)
    await rolled(world, "g0", "q0", "q1", "q2")
    groups = stream(world.fleet_of("g0"))
    await anext(groups)
    world.sites["g0"].slow = asyncio.Event()
    async with asyncio.timeout(10):
        await groups.aclose()


async def test_a_request_that_is_sent_again_gives_the_same_leases(world: World) -> None:
    await rolled(world, "g0", "q0", "q1", "q2")
    world.sites["g0"].lose.append("/v1/leases")
    found = await taken(groups := stream(world.fleet_of("g0")), 3)
    assert [one.uid for one in found] == ["q0", "q1", "q2"]
    assert [one.lease.lease_id.partition(".")[2] for one in found] == ["", "1", "2"]
    await groups.aclose()


async def test_a_checkpoint_of_many_groups_is_one_acknowledgement_at_each_gateway(world: World) -> None:
    for gateway in ("g0", "g1"):
        await rolled(world, gateway, *(f"{gateway}-q{number}" for number in range(5)))
    fleet = world.fleet()
    fleet.trained(*await taken(groups := stream(fleet), 10))
    await fleet.commit(await fleet.checkpoint())
    assert fleet.counters.acked == 10
    for site in world.sites.values():
        assert [path for path in site.seen if path.endswith("/ack")] == ["/v1/leases/ack"]
        assert [path for path in site.seen if path.endswith("/renew")] == ["/v1/leases/renew"]
    assert fleet.counters.renewals == 10
    await groups.aclose()


async def test_a_checkpoint_renews_at_a_gateway_that_renews_one_lease_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(self: AsyncRolloutClient, lease_ids: Sequence[str], ttl_s: float) -> dict[str, str]:
        raise NotFound("no such path")

    monkeypatch.setattr(AsyncRolloutClient, "renew_leases", unknown)
    await rolled(world, "g0", "q0", "q1")
    fleet = world.fleet_of("g0")
    fleet.trained(*await taken(groups := stream(fleet), 2))
    await fleet.commit(await fleet.checkpoint())
    assert (fleet.counters.renewals, fleet.counters.acked) == (2, 2)
    await groups.aclose()


async def test_no_checkpoint_is_written_if_one_lease_of_many_was_lost(world: World) -> None:
    await rolled(world, "g0", "q0", "q1", "q2")
    fleet, other = world.fleet_of("g0"), world.fleet_of("g0")
    fleet.trained(*await taken(groups := stream(fleet), 3))
    await groups.aclose()  # or it would lease them again itself
    world.clock.now += 2 * TTL_S
    lease = await other.lease(max_groups=1)
    assert lease is not None
    with pytest.raises(Conflict, match="was lost"):
        await fleet.checkpoint()
    assert (fleet.counters.renewals, fleet.counters.lost) == (2, 1)


async def test_a_group_larger_than_the_budget_comes_alone(world: World) -> None:
    await world.roll("g0", "large", size=1, turns=6)
    await rolled(world, "g0", "q1", "q2")
    fleet = world.fleet_of("g0")
    asked = lease_call.several(Wanted(8, 10, TTL_S, None))
    (alone,) = await world.admins["g0"].call(asked)
    assert [row.uid for row in alone.trajectories] == ["large"]
    await world.admins["g0"].nack(alone)
    groups = stream(fleet, Ahead(groups=8, nbytes=100))
    assert [one.uid for one in await taken(groups, 3)] == ["large", "q1", "q2"]
    await groups.aclose()


def test_an_older_gateway_that_gives_one_lease_is_understood() -> None:
    assert Lease.several_of({"lease_id": None}) == []
    one = {"lease_id": "l1", "until": 5.0, "sessions": ["s"], "trajectories": []}
    assert Lease.several_of(one) == [Lease("l1", 5.0, ("s",), ())]


class Ready:
    """A gateway that has a group when it is asked for the tenth time."""

    asked = 0

    async def ask(self, _: Wanted, _lease_id: str) -> list[Lease]:
        self.asked += 1
        return [Lease(f"l{self.asked}", 0.0, (), ())] if self.asked == 10 else []

    async def lease(self, **_: object) -> Lease | None:
        raise AssertionError("it is asked for several")

    async def renew(self, lease_id: str, ttl_s: float) -> None: ...
    async def ack(self, lease: Lease) -> None: ...
    async def nack(self, lease: Lease) -> None: ...


class Away(Ready):
    """A gateway that is away: each question takes some time of the loop's clock, and comes to nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: float) -> None:
        self.ahead_s, self.takes_s = 0.0, takes_s
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self.ahead_s)
        self.time = loop.time

    async def ask(self, _: Wanted, _lease_id: str) -> list[Lease]:
        self.asked += 1
        self.ahead_s += self.takes_s
        raise Unavailable("no answer")

    def groups(self, away_s: float, ahead: Ahead = EIGHT) -> Groups:
        keeper = Keeper(self, self.time)
        return Groups(
            self,
            keeper,
            lambda: {"g0": self.ask},
            job=JOB,
            ttl_s=TTL_S,
            idle_s=5.0,
            ahead=ahead,
            away_s=away_s,
        )


@pytest.mark.parametrize(("takes_s", "asked"), [(60.0, 1), (49.0, 2)], ids=["hangs", "hangs shorter"])
async def test_a_gateway_that_hangs_is_away_since_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, asked: int
) -> None:
    gateway = Away(monkeypatch, takes_s)
    began = gateway.time()
    monkeypatch.setattr(streaming, "AWAY_REST_S", 0.0)
    async with asyncio.timeout(300), gateway.groups(away_s=50.0) as groups:
        with pytest.raises(Unavailable, match="no gateway answers: g0: no answer"):
            await anext(groups)
    assert gateway.asked == asked
    assert gateway.time() - began < 50.0 + takes_s


async def test_nobody_is_away_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that gave up waiting, and comes back after a long step, does not meet with an error of long ago."""
    gateway = Away(monkeypatch, 0.0)
    async with gateway.groups(50.0, Ahead()) as groups:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(groups)
            gateway.ahead_s += 600.0
    assert gateway.asked >= 2


IDLE = {
    "for ever": (None, 90.0),
    "five seconds": (5.0, 50.0),
    "what is there": (0.0, 45.0),
    "long": (60.0, 90.0),
}


@pytest.mark.parametrize(("idle_s", "away_s"), IDLE.values(), ids=IDLE)
async def test_a_stream_that_ends_when_idle_waits_little_longer_for_gateways(
    idle_s: float | None, away_s: float
) -> None:
    async with AsyncRolloutClient("http://127.0.0.1:9", "key") as client:
        groups = AsyncFleet({"g0": client}).groups(idle_s=idle_s)
    assert groups.supply.away_s == away_s


def test_a_stream_that_waits_goes_on_asking_on_a_loop_whose_clock_is_coarse() -> None:
    """Ray's async actors run on uvloop, whose clock has whole milliseconds: it may say that a gateway still rests just
    before the moment at which it has rested, and no other timer comes."""

    async def one() -> None:
        gateway = Ready()
        async with streaming.groups(
            gateway, ttl_s=TTL_S, idle_s=None, poll_s=0.004, ask=gateway.ask
        ) as found:
            await (await anext(found)).ack()
        assert gateway.asked == 10

    async def all_of_them() -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*(one() for _ in range(300)))

    uvloop.run(all_of_them())
