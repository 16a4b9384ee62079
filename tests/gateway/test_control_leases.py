"""The control API: groups of rows, leased, acknowledged, given back, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.keys import Scope
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import (
    Running,
    admin_key,
    bearer,
    gateway,
)


@pytest.fixture
async def g() -> Any:
    async with gateway(lambda ids, number: f"answer {number}") as running:
        yield running


async def _group(g: Running, uid: str, size: int = 2) -> list[str]:
    agents = [await g.session(uid=uid, sample_index=index, group_size=size) for index in range(size)]
    for agent in agents:
        await agent.ask("hi")
        await g.finalize(agent, reward=1.0)
    return [agent.id for agent in agents]


async def test_whole_groups_are_leased_once_and_acked_for_good(g: Running) -> None:
    first, second = await _group(g, "q1"), await _group(g, "q2")
    half = await g.session(uid="q3", group_size=2)
    await half.ask("hi")
    await g.finalize(half)
    lease = (await g.admin.post("/v1/leases", json={"max_groups": 10})).json()
    assert lease["sessions"] == first + second
    assert {row["uid"] for row in lease["trajectories"]} == {"q1", "q2"}
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
    for _ in range(2):
        assert (await g.admin.post(f"/v1/leases/{lease['lease_id']}/ack")).status_code == 200
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
    assert (await g.admin.post("/v1/leases/unknown/ack")).status_code == 404


async def test_a_nacked_lease_is_offered_again_with_the_same_rows(g: Running) -> None:
    await _group(g, "q1")
    first = (await g.admin.post("/v1/leases", json={})).json()
    for _ in range(2):
        assert (await g.admin.post(f"/v1/leases/{first['lease_id']}/nack")).status_code == 200
    again = (await g.admin.post("/v1/leases", json={})).json()
    assert again["lease_id"] != first["lease_id"]
    assert again["trajectories"] == first["trajectories"]
    assert (await g.admin.post(f"/v1/leases/{first['lease_id']}/ack")).status_code == 409


async def test_a_lease_that_expires_is_offered_again() -> None:
    clock = [1000.0]
    async with gateway(lambda ids, number: "x", now=lambda: clock[0]) as g:
        await _group(g, "q1")
        assert (await g.admin.post("/v1/leases", json={"ttl_s": 10})).json()["lease_id"]
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
        clock[0] += 11
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"]


async def test_a_renewed_lease_is_offered_again_only_after_its_new_end() -> None:
    clock = [1000.0]
    async with gateway(lambda ids, number: "x", now=lambda: clock[0]) as g:
        await _group(g, "q1")
        lease = (await g.admin.post("/v1/leases", json={"ttl_s": 10})).json()["lease_id"]
        clock[0] += 9
        renewed = (await g.admin.post(f"/v1/leases/{lease}/renew", json={"ttl_s": 10})).json()
        assert renewed == {"lease_id": lease, "state": "leased", "until": clock[0] + 10}
        clock[0] += 9
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
        clock[0] += 1
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"]
        late = await g.admin.post(f"/v1/leases/{lease}/renew", json={"ttl_s": 10})
        assert late.status_code == 409


async def test_a_lease_whose_answer_was_lost_is_asked_for_again_by_its_id(g: Running) -> None:
    await _group(g, "q1")
    said = [(await g.admin.post("/v1/leases", json={"lease_id": "mine"})).json() for _ in range(2)]
    assert said[0] == said[1]
    assert said[0]["lease_id"] == "mine"
    other = bearer(admin_key(Scope.TRAINER, job="another"))
    refused = await g.admin.post("/v1/leases", json={"lease_id": "mine"}, headers=other)
    assert refused.status_code == 403, "and a trainer of another job gets nothing by it"


async def test_a_closed_group_is_leased_as_it_is(g: Running) -> None:
    agent = await g.session(uid="q1", group_size=4)
    await agent.ask("hi")
    await g.finalize(agent)
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
    for _ in range(2):
        closed = await g.admin.post("/v1/groups/close", json={"uid": "q1"})
        assert (closed.status_code, closed.json()["state"]) == (200, "closed")
    assert (await g.admin.post("/v1/leases", json={})).json()["sessions"] == [agent.id]


async def test_leases_and_rows_survive_a_restart() -> None:
    disk = MemoryDisk()
    async with gateway(lambda ids, number: f"a{number}", store=MemoryStore(disk)) as g:
        await _group(g, "q1")
        lease = (await g.admin.post("/v1/leases", json={})).json()
        assert isinstance(g.store, MemoryStore)
        g.store.crash()
    async with gateway(store=MemoryStore(disk)) as g:
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
        assert (await g.admin.post(f"/v1/leases/{lease['lease_id']}/nack")).status_code == 200
        again = (await g.admin.post("/v1/leases", json={})).json()
        assert again["trajectories"] == lease["trajectories"]
