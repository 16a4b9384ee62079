"""Several gateways as one: groups come from all of them, weight updates reach all of them or none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
from openai import AsyncOpenAI

from sandgate.contract.errors import Conflict, NotFound, SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.lease import Lease
from sandgate.gateway.client import GatewayClient, Retries
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.testing import RunningGateway, gateway
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(60)

AWAY = "http://127.0.0.1:9"
"""The discard port: nobody listens."""


@pytest.fixture
async def pair() -> AsyncIterator[dict[str, RunningGateway]]:
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(gateway(["hello"] * 20, job="shop"))
            for name in ("shop-gateway-0", "shop-gateway-1")
        }


def fleet_of(pair: dict[str, RunningGateway]) -> AsyncFleet:
    return AsyncFleet({name: one.client for name, one in pair.items()}, job="shop")


async def finished(one: RunningGateway, uid: str) -> None:
    """A group of one session with one turn."""
    handle = await one.client.create_session(uid=uid, job="shop")
    async with AsyncOpenAI(base_url=handle.base_url, api_key=handle.api_key) as agent:
        await agent.chat.completions.create(
            model=one.model, messages=[{"role": "user", "content": f"say {uid}"}]
        )
    await one.client.finalize(handle.session_id, reward=1.0)


async def test_of_groups_of_which_one_was_lost_none_is_noted(pair: dict[str, RunningGateway]) -> None:
    for uid in ("q0", "q1"):
        await finished(pair["shop-gateway-0"], uid)
    fleet = fleet_of(pair)
    groups = [group async for group in fleet.groups(idle_s=0.0)]
    groups[1].hold.lost = True  # the machine slept
    with pytest.raises(Conflict, match=groups[1].uid):
        fleet.trained(*groups)
    assert (await fleet.checkpoint())["trained"] == []
    await fleet.aclose()


async def test_groups_come_from_every_gateway_and_are_acknowledged_where_they_came_from(
    pair: dict[str, RunningGateway],
) -> None:
    for number, one in enumerate([*pair.values()] * 2):
        await finished(one, f"q{number}")
    fleet = fleet_of(pair)
    seen = []
    async for group in fleet.groups(idle_s=0.0):
        async with group:
            seen.append(group.uid)
    assert sorted(seen) == ["q0", "q1", "q2", "q3"]
    assert [await one.client.lease(job="shop") for one in pair.values()] == [None, None], "nothing is left"


async def test_a_gateway_that_is_away_is_passed_over_and_none_that_answers_is_an_error(
    pair: dict[str, RunningGateway],
) -> None:
    await finished(pair["shop-gateway-1"], "q1")
    async with AsyncRolloutClient(AWAY, "key", retries=Retries(attempts=1)) as away:
        fleet = AsyncFleet({"away": away, "here": pair["shop-gateway-1"].client}, job="shop")
        found = [await fleet.lease() for _ in range(2)]
        assert [one.trajectories[0].uid for one in found if one] == ["q1"]
        with pytest.raises(Unavailable, match="no gateway answers: away: "):
            await AsyncFleet({"away": away}, away_s=0.0).lease()


class Restarting(httpx.AsyncHTTPTransport):
    """To a gateway that is not there for the first requests."""

    refusals = 5

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.refusals:
            self.refusals -= 1
            raise httpx.ConnectError("connection refused")
        return await super().handle_async_request(request)


async def test_the_only_gateway_is_waited_for(pair: dict[str, RunningGateway]) -> None:
    one = pair["shop-gateway-0"]
    await finished(one, "q1")
    once, transport = Retries(attempts=1), Restarting()
    async with AsyncRolloutClient(one.origin, one.admin_key, retries=once, transport=transport) as client:
        lease = await AsyncFleet({"only": client}).lease()
    assert lease is not None
    assert [row.uid for row in lease.trajectories] == ["q1"]
    assert transport.refusals == 0


async def test_a_lease_of_somebody_else_is_not_settled() -> None:
    async with AsyncRolloutClient(AWAY, "key") as away:
        with pytest.raises(NotFound, match="not of this fleet"):
            await AsyncFleet({"away": away}).ack(Lease("l-1", 0.0, (), ()))


async def test_no_gateway_is_said() -> None:
    with pytest.raises(Unavailable, match="no gateway yet"):
        AsyncFleet({})


QUEUED = [Task(uid=f"q{number}", prompt=f"buy {number}") for number in range(12)]


async def held(one: RunningGateway) -> list[str]:
    """Uids of the tasks that wait at a gateway."""
    async with GatewayClient(one.origin, one.admin_key) as operator:
        return [task.uid for _, task in (await operator.tasks()).tasks]


async def test_tasks_are_spread_by_uid_and_the_end_is_told_to_all(pair: dict[str, RunningGateway]) -> None:
    fleet = fleet_of(pair)
    await fleet.push_tasks(QUEUED[:8])
    await fleet.push_tasks(QUEUED, last=True)
    parts = [await held(one) for one in pair.values()]
    assert all(parts), "every gateway has some"
    assert sorted(uid for part in parts for uid in part) == sorted(task.uid for task in QUEUED), (
        "each is at one of them, once"
    )
    assert all(one["tasks"]["last"] for one in (await fleet.status()).values())
    with pytest.raises(Conflict, match="came after the last"):
        await fleet.push_tasks([Task(uid="late")])


async def test_a_task_whose_group_came_is_pushed_in_vain_and_that_is_said(
    pair: dict[str, RunningGateway], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever knows it: the fleet that was given its group, before its operator freed its place, or a gateway, when
    that was long ago and of another trainer."""
    fleet = fleet_of(pair)
    assert await fleet.push_tasks(QUEUED[:8]) == ()
    assert await fleet.push_tasks(QUEUED[:8]) == (), "the repeat of a push whose answer was lost"
    await finished(pair["shop-gateway-0"], "q1")
    async for group in fleet.groups(idle_s=0.0):
        async with group:
            assert group.uid == "q1"
    assert not caplog.records
    assert await fleet.push_tasks(QUEUED[:2]) == ("q1",)
    assert (
        "1 pushed tasks had finished before, and do not run anew (q1): each group was given already"
        in caplog.text
    )
    for them in (fleet, fleet_of(pair)):
        await freed(pair)  # what is queued again is not told as finished
        caplog.clear()
        assert sorted(await them.push_tasks(QUEUED[:8])) == [f"q{number}" for number in range(8)]
        assert sum(int(one.getMessage().split()[0]) for one in caplog.records) == 8, "each is said once"


async def freed(pair: dict[str, RunningGateway]) -> None:
    """As the operator does once the groups are settled, whoever has them."""
    for one in pair.values():
        async with GatewayClient(one.origin, one.admin_key) as operator:
            if tasks := (await operator.tasks()).tasks:
                await operator.forget_tasks(max(number for number, _ in tasks))


async def test_a_trainer_that_died_before_it_acknowledged_is_not_warned_when_it_pushes_the_same_again(
    pair: dict[str, RunningGateway], caplog: pytest.LogCaptureFixture
) -> None:
    name = "shop-gateway-0"
    only = {name: pair[name]}
    await fleet_of(only).push_tasks(QUEUED[:2])
    for uid in ("q0", "q1"):
        await finished(only[name], uid)
    await freed(only)
    assert await only[name].client.lease(job="shop", ttl_s=0.05) is not None, (
        "q0 is leased, and its trainer dies"
    )
    again = fleet_of(only)
    assert (await again.push_tasks(QUEUED[:2]), caplog.records) == ((), [])
    seen = []
    async for group in again.groups(idle_s=1.0):
        async with group:
            seen.append(group.uid)
    assert sorted(seen) == ["q0", "q1"]
    await freed(only)
    assert sorted(await fleet_of(only).push_tasks(QUEUED[:2])) == ["q0", "q1"], "no group is owed now"
    assert "given already, or is offered again if it was not acknowledged" in caplog.text


async def test_tasks_that_one_gateway_cannot_take_do_not_end_the_queue_and_are_pushed_again(
    pair: dict[str, RunningGateway],
) -> None:
    here = pair["shop-gateway-0"].client
    async with AsyncRolloutClient(AWAY, "key", retries=Retries(attempts=1)) as away:
        with pytest.raises(Unavailable):
            await AsyncFleet({"shop-gateway-0": here, "shop-gateway-1": away}, job="shop").push_tasks(
                QUEUED, last=True
            )
    before = await held(pair["shop-gateway-0"])
    assert before
    assert not (await here.status())["tasks"]["last"]
    await fleet_of(pair).push_tasks(QUEUED, last=True)
    assert await held(pair["shop-gateway-0"]) == before
    assert len(before) + len(await held(pair["shop-gateway-1"])) == len(QUEUED)


async def test_a_weight_update_holds_all_gateways_and_all_carry_the_version(
    pair: dict[str, RunningGateway],
) -> None:
    fleet = fleet_of(pair)
    async with fleet.weight_update(7):
        assert [one["paused"] for one in (await fleet.status()).values()] == [True, True]
    assert [(one["paused"], one["policy_version"]) for one in (await fleet.status()).values()] == [
        (False, 7)
    ] * 2


async def test_an_adapter_is_told_with_its_version_and_ends_with_the_next_that_is_none(
    pair: dict[str, RunningGateway],
) -> None:
    fleet = fleet_of(pair)
    for version, adapter in ((7, "sandgate-shop-v7"), (8, "")):
        async with fleet.weight_update(version, adapter=adapter):
            pass
        said = [(one["policy_version"], one["adapter"]) for one in (await fleet.status()).values()]
        assert said == [(version, adapter)] * 2


async def test_a_weight_update_that_cannot_pause_one_gateway_lets_the_others_go(
    pair: dict[str, RunningGateway],
) -> None:
    here = pair["shop-gateway-0"].client
    async with AsyncRolloutClient(AWAY, "key", retries=Retries(attempts=1)) as away:
        fleet = AsyncFleet({"here": here, "away": away})
        with pytest.raises(BaseExceptionGroup) as caught:
            async with fleet.weight_update(8):
                pytest.fail("the weights must not be swapped")
        assert caught.group_contains(Unavailable)
    status = await here.status()
    assert (status["paused"], status["policy_version"]) == (False, 0)


async def test_a_weight_update_whose_swap_fails_leaves_version_and_turns_as_they_were(
    pair: dict[str, RunningGateway],
) -> None:
    fleet = fleet_of(pair)
    with pytest.raises(ZeroDivisionError):
        async with fleet.weight_update(9):
            raise ZeroDivisionError
    assert [(one["paused"], one["policy_version"]) for one in (await fleet.status()).values()] == [
        (False, 0)
    ] * 2


async def test_a_heartbeat_is_heard_by_every_gateway_while_the_block_runs(
    pair: dict[str, RunningGateway],
) -> None:
    fleet = fleet_of(pair)

    async def heard() -> bool:
        return all(one["trainer_seen_at"] for one in (await fleet.status()).values())

    async with fleet.beating(every_s=0.01):
        await until(heard, what="every gateway heard a heartbeat")
    async with AsyncRolloutClient(AWAY, "key", retries=Retries(attempts=1)) as away:
        with pytest.raises(SandgateError):
            await AsyncFleet({"away": away}).heartbeat()
        both = AsyncFleet({"away": away, "here": pair["shop-gateway-0"].client})
        await both.heartbeat()
        for asked in (both.status, both.version):  # as they promise, and no group of errors
            with pytest.raises(Unavailable):
                await asked()
