"""Groups that ended well, and whose gateway loses its journal before a trainer has them: nobody waits for them in vain,
and the job does not say that all is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.operator.cluster_rig import Box, World, buys, hurry, manifest, world
from tests.support.waiting import until

HOME = "shop-gateway-0"


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def is_so(up: World, kind: str, reason: str) -> None:
    async def holds() -> bool:
        return up.condition(kind) == ("True", reason)

    await until(holds, what=f"{kind} of {reason}", within_s=30.0)


async def loses_its_volume(up: World, whose: str) -> None:
    if whose == "a new operator":
        await up.operator_down()
    await up.gateway_down(HOME)
    await up.gateway_up(HOME, empty=True)
    if whose == "a new operator":
        up.operator_up()


async def told(up: World) -> dict[str, int]:
    """What a trainer is given until there is no more: task -> rows."""
    found: dict[str, int] = {}
    async with up.trainer(HOME) as client:
        while (lease := await client.lease(max_groups=1, ttl_s=60.0, job="shop")) is not None:
            found[lease.uid or lease.trajectories[0].uid] = len(lease.trajectories)
            await client.ack(lease.lease_id)
    return found


def events(up: World) -> list[tuple[str, str]]:
    return [
        (body["type"], body["reason"]) for (kind, _, _), body in up.kube.objects.items() if kind == "Event"
    ]


@pytest.mark.parametrize("whose", ["the operator that saw it", "a new operator"])
async def test_after_the_job_is_complete(up: World, whose: str) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", groupSize=2))
    await is_so(up, "Complete", "AllEnded")
    async with up.trainer(HOME) as client:
        lease = await client.lease(max_groups=1, ttl_s=60.0, job="shop")
        assert lease is not None
        had = lease.trajectories[0].uid
        await client.ack(lease.lease_id)

    async def committed() -> bool:
        return bool(up.job()["status"]["committed"] == 2)

    await until(committed, what="one group is the trainer's", within_s=30.0)
    turns = len(up.told)
    await loses_its_volume(up, whose)
    await is_so(up, "Complete", "GroupsLost")
    await is_so(up, "Collected", "GroupsLost")
    (other,) = {"a", "b"} - {had}
    assert await told(up) == {other: 0}, "whoever waits for that task learns that it is over"
    assert len(up.told) == turns, "a job that is over samples nothing"
    status = up.job()["status"]
    assert [status[name] for name in ("sessions", "ended", "failed", "committed")] == [4, 4, 2, 2]
    (said,) = (one["message"] for one in status["conditions"] if one["type"] == "Complete")
    assert said == "2 of 4 samples were lost with a gateway's journal before a trainer had them"
    assert status["reason"] == "GroupsLost"
    assert ("Warning", "GroupsLost") in events(up)
    since = collected_since(up)
    await up.operator_down()
    await up.gateways[HOME].core.sessions.retire(-1.0)
    hub = up.operator_up()

    async def loaded() -> bool:
        runs = list(hub.runs.values())
        return bool(runs) and runs[0].observed.loaded and len(runs[0].observed.settled) == 2

    await until(loaded, what="a new operator has looked at all", within_s=30.0)
    assert await told(up) == {}, "once, also where the gateway has retired it since"
    await is_so(up, "Complete", "GroupsLost")
    assert up.job()["status"]["failed"] == 2
    assert collected_since(up) == since, "what was collected stays so"


def collected_since(up: World) -> str:
    (found,) = (one for one in up.job()["status"]["conditions"] if one["type"] == "Collected")
    assert found["status"] == "True"
    return str(found["lastTransitionTime"])


async def test_of_a_queue_and_of_one_gateway_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other gateway has its groups as before."""
    hurry(monkeypatch)
    async with world(tmp_path, gateways=2) as up:
        up.operator_up()
        await up.kube.create(manifest(tasks={"queue": {}}, gateway={"replicas": 2}))
        tasks = [{"uid": uid, "prompt": uid} for uid in "abcd"]
        for gateway in up.gateways.values():
            body = {"job": "shop", "tasks": tasks if gateway is up.gateways[HOME] else [], "last": True}
            said = await gateway.admin.post("/v1/tasks", json=body)
            assert said.status_code == 200, said.text
        await is_so(up, "Complete", "AllEnded")
        there = {
            body["spec"]["taskUid"] for body in up.sessions().values() if body["spec"]["gateway"] == HOME
        }
        assert there, "siblings are spread"
        await loses_its_volume(up, "a new operator")
        await is_so(up, "Complete", "GroupsLost")
        assert up.condition("Collected")[0] == "False" or there == set("abcd")

        heard: list[tuple[str, int]] = []

        async def all_told() -> bool:
            heard.extend((await told(up)).items())
            return len(heard) >= len(there)

        await until(all_told, what="the lost ones are told", within_s=30.0)
        assert sorted(heard) == [(uid, 0) for uid in sorted(there)]
        async with up.trainer("shop-gateway-1") as client:
            lease = await client.lease(max_groups=8, ttl_s=60.0, job="shop")
        have = set() if lease is None else {row.uid for row in lease.trajectories}
        assert have == set("abcd") - there


async def test_before_it_is_complete_when_no_attempt_is_left(up: World) -> None:
    """A sample that had ended spends an attempt, and here there is none."""
    at_work = asyncio.Event()

    async def goes_on(box: Box) -> int:
        await at_work.wait()
        return await buys(box)

    up.agents = [("shop-b", goes_on)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", group={"retry": {"infra": 0}}))

    async def ended() -> bool:
        return (up.job().get("status") or {}).get("ended") == 1

    await until(ended, what="one has ended", within_s=30.0)
    await up.gateway_down(HOME)
    await up.gateway_up(HOME, empty=True)
    await is_so(up, "Failed", "AllFailed")
    at_work.set()
    assert await told(up) == {"a": 0, "b": 0}


async def test_a_job_past_its_deadline_tells_of_what_had_ended_well(up: World) -> None:
    """Such groups are the trainer's still."""

    async def hangs(box: Box) -> int:
        await asyncio.Event().wait()
        return 0

    up.agents = [("shop-b", hangs)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", activeDeadlineSeconds=2))
    await is_so(up, "Failed", "DeadlineExceeded")
    await loses_its_volume(up, "the operator that saw it")
    await is_so(up, "Collected", "GroupsLost")
    assert await told(up) == {"a": 0, "b": 0}
