"""The operator learns what the trainer has for good, and that a trainer lives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sandgate.contract.errors import NotFound
from sandgate.contract.keys import Scope
from sandgate.contract.lease import Lease
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import Running, admin_key, bearer, gateway


@asynccontextmanager
async def serving(
    disk: MemoryDisk | None = None, now: Callable[[], float] | None = None
) -> AsyncIterator[tuple[Running, GatewayClient]]:
    store = MemoryStore(disk)
    async with (
        gateway(lambda ids, number: f"answer {number}", store=store, now=now) as g,
        GatewayClient(g.origin, admin_key(), deadline_s=0.0) as admin,
    ):
        yield g, admin
    await store.aclose()


async def group(g: Running, uid: str, size: int = 2) -> list[str]:
    """All its sessions, ended well after a turn each."""
    names = []
    for index in range(size):
        agent = await g.session(session_id=f"{uid}-{index}", uid=uid, sample_index=index, group_size=size)
        await agent.ask("hi")
        await g.finalize(agent)
        names.append(agent.id)
    return names


async def lease(admin: GatewayClient) -> Lease:
    found = await admin.lease(max_groups=1, ttl_s=60.0)
    assert found is not None
    return found


async def committed(admin: GatewayClient) -> dict[str, bool]:
    return {one.session_id: one.committed async for one in admin.sessions()}


async def test_the_status_counts_groups_that_no_trainer_has_for_good() -> None:
    clock = [1_000_000.0]
    async with serving(now=lambda: clock[0]) as (g, admin):

        async def standing() -> dict[str, int]:
            found: dict[str, int] = (await admin.status())["groups"]
            return found

        assert await standing() == {"owed": 0, "leased": 0}
        for uid in ("q1", "q2"):
            await group(g, uid)
        await g.session(session_id="q3-0", uid="q3", sample_index=0, group_size=2)  # not whole
        taken = await lease(admin)
        assert await standing() == {"owed": 2, "leased": 1}
        clock[0] += 60.0
        assert await standing() == {"owed": 2, "leased": 0}, "the lease is over"
        await admin.ack(taken.lease_id)
        assert await standing() == {"owed": 1, "leased": 0}


async def test_an_ack_is_an_event_of_each_session_and_stands_in_its_summary() -> None:
    async with serving() as (g, admin):
        mine, other = await group(g, "q1"), await group(g, "q2")
        cursor = (await admin.events(0, wait_s=0.0)).cursor
        taken = await lease(admin)
        assert (await admin.events(cursor, wait_s=0.0)).sessions == (), "a lease commits nothing"
        await admin.ack(taken.lease_id)
        await admin.ack(taken.lease_id)
        seen = await admin.events(cursor, wait_s=0.0)
        assert seen.sessions == tuple((name, "committed") for name in mine), "once, though acked twice"
        assert await committed(admin) == dict.fromkeys(mine, True) | dict.fromkeys(other, False)
        assert (await admin.get(mine[0])).committed
        assert (await admin.get(mine[0])).state == "finalized", "its state is what it was"


async def test_what_was_given_back_is_not_committed() -> None:
    async with serving() as (g, admin):
        mine = await group(g, "q1")
        taken = await lease(admin)
        await admin.nack(taken.lease_id)
        assert await committed(admin) == dict.fromkeys(mine, False)


async def test_an_attempt_that_does_not_count_is_never_committed() -> None:
    async with serving() as (g, admin):
        lost = await g.session(session_id="q-0-0", uid="q", group_size=1)
        await g.finalize(lost, outcome={"failure_class": "infra", "complete": False})
        again = await g.session(session_id="q-0-1", uid="q", group_size=1, attempt=1)
        await g.finalize(again)
        await admin.ack((await lease(admin)).lease_id)
        assert await committed(admin) == {"q-0-0": False, "q-0-1": True}


async def test_a_restart_still_knows_what_was_committed() -> None:
    disk = MemoryDisk()
    async with serving(disk) as (g, admin):
        mine, other = await group(g, "q1"), await group(g, "q2")
        await admin.ack((await lease(admin)).lease_id)
    async with serving(disk) as (_, admin):
        assert await committed(admin) == dict.fromkeys(mine, True) | dict.fromkeys(other, False)


# -- does a trainer live? -------------------------------------------------------------------------------------------


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


CALLS: dict[str, tuple[Scope, str, str, bool]] = {
    "a trainer's lease": (Scope.TRAINER, "POST", "/v1/leases", True),
    "a trainer's heartbeat": (Scope.TRAINER, "POST", "/v1/heartbeat", True),
    "a trainer's look": (Scope.TRAINER, "GET", "/v1/status", True),
    "a trainer's refused call": (Scope.TRAINER, "PUT", "/v1/engines", True),
    "a heartbeat with an admin's key": (Scope.ADMIN, "POST", "/v1/heartbeat", True),
    "an admin's look": (Scope.ADMIN, "GET", "/v1/status", False),
    "an agent's heartbeat": (Scope.AGENT, "POST", "/v1/heartbeat", False),
}


@pytest.mark.parametrize(("scope", "method", "path", "counts"), CALLS.values(), ids=CALLS)
async def test_a_trainer_was_seen(scope: Scope, method: str, path: str, counts: bool) -> None:
    clock = Clock()
    async with serving(now=clock) as (g, admin):
        said = await admin.status()
        assert (said["trainer_seen_at"], said["trainer_age_s"]) == (None, None)
        clock.now = 1_234.5
        await g.admin.request(method, path, json={}, headers=bearer(admin_key(scope, session="s")))
        clock.now = 2_000.0
        said = await admin.status()
        assert (said["trainer_seen_at"], said["trainer_age_s"]) == (
            (1_234.5, 765.5) if counts else (None, None)
        )


async def test_how_long_ago_a_trainer_was_seen_is_told_by_a_clock_that_nobody_sets() -> None:
    wall, steady = [1_000.0], [5.0]
    async with gateway(now=lambda: wall[0], steady=lambda: steady[0]) as g:
        assert (await g.admin.post("/v1/heartbeat", json={})).status_code == 200
        wall[0], steady[0] = wall[0] + 7_200.0, steady[0] + 3.0
        said = (await g.admin.get("/v1/status")).json()
        assert (said["trainer_seen_at"], said["trainer_age_s"]) == (1_000.0, 3.0)


async def test_a_heartbeat_says_when_it_was_heard() -> None:
    async with serving(now=Clock()) as (g, _), GatewayClient(g.origin, admin_key(Scope.TRAINER)) as trainer:
        assert await trainer.heartbeat() == 1_000.0


# -- the task document ----------------------------------------------------------------------------------------------

DOCUMENT: Any = {
    "uid": "q",
    "prompt": [{"role": "user", "content": "купи"}],
    "data": {"n": 7},
    "sample_index": 1,
}


async def test_the_sandbox_reads_its_task_as_it_was_given() -> None:
    disk = MemoryDisk()
    async with serving(disk) as (g, admin):
        agent = await g.session(session_id="s1", task=DOCUMENT)
        url = "/v1/sessions/s1/task"
        for key, seen in (("api_key", {**DOCUMENT, "data": None}), ("reward_key", DOCUMENT)):
            answer = await g.admin.get(url, headers=bearer(agent.handle[key]))
            assert (answer.status_code, answer.json()) == (200, seen)
        assert await admin.task("s1") == DOCUMENT
        await g.finalize(agent)
    async with serving(disk) as (_, admin):
        assert await admin.task("s1") == DOCUMENT, "after its end and a restart, too: a verifier may need it"


async def test_no_task_is_404_and_another_sessions_key_403() -> None:
    async with serving() as (g, admin):
        mine, other = await g.session(task=DOCUMENT), await g.session()
        with pytest.raises(NotFound, match="without a task"):
            await admin.task(other.id)
        for key in ("api_key", "reward_key"):
            answer = await g.admin.get(f"/v1/sessions/{mine.id}/task", headers=bearer(other.handle[key]))
            assert answer.status_code == 403
