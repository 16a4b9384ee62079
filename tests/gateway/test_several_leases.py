"""POST /v1/leases for several leases at once, and POST /v1/leases/ack for many."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract import control_api
from sandgate.contract.lease import ARROW, Lease
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.trainer.client import lease_call
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import Wanted
from tests.support.gateway import Running, admin_key, gateway


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
async def g(disk: MemoryDisk) -> Any:
    async with gateway(lambda ids, number: f"answer {number}", store=MemoryStore(disk)) as running:
        yield running


async def groups(g: Running) -> None:
    """q0 has two rows, q1 none, q2 one of two sessions."""
    for name, uid, size, turns in (
        ("a", "q0", 1, 2),
        ("b", "q1", 1, 0),
        ("c", "q2", 2, 1),
        ("d", "q2", 2, 0),
    ):
        agent = await g.session(
            session_id=name, uid=uid, job="j", group_size=size, sample_index=int(name == "d")
        )
        for turn in range(turns):
            await agent.ask(f"hi {turn}")
        await g.finalize(agent, reward=1.0)


async def post(g: Running, **body: Any) -> dict[str, Any]:
    answer = await g.admin.post("/v1/leases", json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def test_each_group_has_a_lease_of_its_own_in_json_and_in_arrow(g: Running) -> None:
    await groups(g)
    said = await post(g, leases=5, lease_id="mine")
    assert said["leases"] == [
        {"lease_id": "mine", "sessions": ["a"], "rows": 2},
        {"lease_id": "mine.1", "sessions": ["b"], "rows": 0},
        {"lease_id": "mine.2", "sessions": ["c", "d"], "rows": 1},
    ]
    assert [row["session_id"] for row in said["trajectories"]] == ["a", "a", "c"]
    answer = await g.admin.post(
        "/v1/leases", json={"leases": 5, "lease_id": "mine"}, headers={"accept": ARROW}
    )
    assert answer.headers["x-sandgate-leases"] == "2,0,1"
    async with AsyncRolloutClient(g.origin, admin_key()) as trainer:
        arrow = await trainer.call(lease_call.several(Wanted(5, None, 300.0, "j"), "mine"))
        plain = await trainer.call(control_api.leases(most=5, lease_id="mine"))
    assert [_said(one) for one in arrow] == [_said(one) for one in plain]
    assert [len(one.trajectories) for one in arrow] == [2, 0, 1]


async def test_a_lease_without_a_row_says_whose_it_is(g: Running) -> None:
    """Beside others and alone, in JSON and in Arrow; one that has rows is named by them."""
    await groups(g)
    found: list[Lease] = []
    async with AsyncRolloutClient(g.origin, admin_key()) as trainer:
        for call in (
            lease_call.several(Wanted(5, None, 300.0, "j"), "mine"),
            control_api.leases(most=5, lease_id="mine"),
        ):
            found = await trainer.call(call)
            assert [(one.job, one.uid) for one in found] == [("", ""), ("j", "q1"), ("", "")]
        await trainer.ack(found[0])
        await trainer.nack(found[1])
        for again in (
            lease_call.lease("alone", max_groups=1),
            control_api.lease(lease_id="alone", max_groups=1),
        ):
            alone = await trainer.call(again)
            assert alone is not None
            assert (alone.job, alone.uid, alone.trajectories) == ("j", "q1", ())


def _said(lease: Lease) -> tuple[str, list[tuple[Any, ...]]]:
    rows = [(row.session_id, row.prompt_ids, row.response_ids, row.versions) for row in lease.trajectories]
    return lease.lease_id, rows


@pytest.mark.parametrize("fewer", [1, 2])
async def test_all_leases_of_an_id_are_given_again_though_fewer_are_asked_for(g: Running, fewer: int) -> None:
    """Its trainer's room shrank meanwhile: the others would be nobody's until they end."""
    await groups(g)
    async with AsyncRolloutClient(g.origin, admin_key()) as trainer:
        first = await trainer.call(control_api.leases(most=3, lease_id="mine"))
        for again in (
            lease_call.several(Wanted(fewer, 1, 300.0, None), "mine"),
            control_api.leases(most=fewer, lease_id="mine"),
        ):
            assert [_said(one) for one in await trainer.call(again)] == [_said(one) for one in first]
        one = await trainer.call(control_api.lease(lease_id="mine"))
    assert one is not None
    assert _said(one) == _said(first[0]), "as it ever was for who reads one"


async def test_one_lease_is_said_as_it_ever_was(g: Running) -> None:
    await groups(g)
    said = await post(g)
    assert said.keys() == {"lease_id", "until", "sessions", "trajectories", "failed"}
    assert said["sessions"] == ["a"]


async def test_none_are_given_where_there_are_none(g: Running) -> None:
    said = await post(g, leases=2)
    assert (said["lease_id"], said["leases"], said["trajectories"]) == (None, [], [])


async def test_the_bound_on_tokens_is_of_all_leases_together(g: Running) -> None:
    await groups(g)
    assert [one["sessions"] for one in (await post(g, leases=3, max_tokens=1))["leases"]] == [["a"], ["b"]], (
        "b has no tokens"
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/leases", {"leases": 0}),
        ("/v1/leases", {"leases": 257}),
        ("/v1/leases/ack", {}),
        ("/v1/leases/ack", {"lease_ids": []}),
        ("/v1/leases/ack", {"lease_ids": ["l"] * 257}),
        ("/v1/leases/renew", {"lease_ids": []}),
        ("/v1/leases/renew", {"lease_ids": ["l"] * 257}),
    ],
)
async def test_what_makes_no_sense_is_a_400_that_names_the_field(
    g: Running, path: str, body: dict[str, Any]
) -> None:
    answer = await g.admin.post(path, json=body)
    assert answer.status_code == 400
    assert ("leases" if path == "/v1/leases" else "lease_ids") in answer.text


async def test_many_are_acknowledged_at_once_and_each_refusal_is_said(g: Running) -> None:
    await groups(g)
    await post(g, leases=3, lease_id="mine")
    await g.admin.post("/v1/leases/mine.2/nack")
    for _ in range(2):
        answer = await g.admin.post(
            "/v1/leases/ack", json={"lease_ids": ["mine", "mine.1", "mine.1", "mine.2", "other"]}
        )
        said = answer.json()
        assert said["acked"] == ["mine", "mine.1"]
        assert {name: why.split(":")[0] for name, why in said["refused"].items()} == {
            "mine.2": "Conflict",
            "other": "NotFound",
        }
    assert (await post(g, leases=3))["sessions"] == ["c", "d"]


async def test_many_are_renewed_at_once_and_each_refusal_is_said(g: Running) -> None:
    await groups(g)
    await post(g, leases=3, lease_id="mine", ttl_s=10)
    await g.admin.post("/v1/leases/mine.2/nack")
    body = {"lease_ids": ["mine", "mine.1", "mine.1", "mine.2", "other"], "ttl_s": 500}
    said = (await g.admin.post("/v1/leases/renew", json=body)).json()
    assert said["renewed"] == ["mine", "mine.1"]
    assert {name: why.split(":")[0] for name, why in said["refused"].items()} == {
        "mine.2": "Conflict",
        "other": "NotFound",
    }
    book = g.core.sessions.book
    assert [book.leases[one].until - book.leases["mine.2"].until > 400 for one in ("mine", "mine.1")] == [
        True,
        True,
    ]


async def test_renewals_that_cannot_be_written_did_not_happen(g: Running, disk: MemoryDisk) -> None:
    await groups(g)
    await post(g, leases=3, lease_id="mine")
    disk.failure = "database or disk is full"
    body = {"lease_ids": ["mine", "mine.1", "mine.2"], "ttl_s": 500}
    assert (await g.admin.post("/v1/leases/renew", json=body)).status_code == 503
    disk.failure = ""
    assert (await g.admin.get("/healthz")).status_code == 200
    assert not g.core.sessions.book.holds
    assert (await g.admin.post("/v1/leases/renew", json=body)).json()["renewed"] == body["lease_ids"]


async def test_leases_and_acks_that_cannot_be_written_did_not_happen(g: Running, disk: MemoryDisk) -> None:
    await groups(g)
    disk.failure = "database or disk is full"
    assert (await g.admin.post("/v1/leases", json={"leases": 3})).status_code == 503
    disk.failure = ""
    assert (await g.admin.get("/healthz")).status_code == 200
    assert len((await post(g, leases=3, lease_id="mine"))["leases"]) == 3
    disk.failure = "database or disk is full"
    acks = {"lease_ids": ["mine", "mine.1", "mine.2"]}
    assert (await g.admin.post("/v1/leases/ack", json=acks)).status_code == 503
    disk.failure = ""
    assert (await g.admin.get("/healthz")).status_code == 200
    assert not g.core.sessions.book.acking
    assert (await g.admin.post("/v1/leases/ack", json=acks)).json()["acked"] == acks["lease_ids"]
    assert (await post(g, leases=3))["leases"] == []


class Clocks:
    """The wall clock is set forward by a day; the other goes on."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0


@pytest.mark.parametrize("step", [86_400.0, -86_400.0], ids=["forward", "back"])
async def test_a_lease_lasts_as_long_as_it_was_given_for_whatever_the_wall_clock_says(step: float) -> None:
    clocks = Clocks()
    async with gateway(
        ["answer"], store=MemoryStore(), now=lambda: clocks.wall, steady=lambda: clocks.steady
    ) as g:
        agent = await g.session(session_id="a", uid="q0", job="j")
        await agent.ask("hi")
        await g.finalize(agent, reward=1.0)
        given = await post(g, lease_id="mine", ttl_s=60.0)
        assert (given["lease_id"], given["until"]) == ("mine", 1_000_060.0)
        clocks.wall, clocks.steady = clocks.wall + step, clocks.steady + 59.0
        assert (await post(g, lease_id="yours"))["lease_id"] is None
        assert (await g.admin.get("/v1/status")).json()["groups"] == {"owed": 1, "leased": 1}
        renewed = await g.admin.post("/v1/leases/mine/renew", json={"ttl_s": 60.0})
        assert renewed.json()["until"] == 1_000_119.0
        clocks.steady += 61.0
        assert (await g.admin.get("/v1/status")).json()["groups"] == {"owed": 1, "leased": 0}
        assert (await post(g, lease_id="yours"))["lease_id"] == "yours"
        assert (await g.admin.post("/v1/leases/yours/ack")).status_code == 200


RESTARTS: dict[str, tuple[float, float, float]] = {
    "nothing happens": (0.0, 0.0, 0.0),
    "its machine had slept": (86_400.0, 0.0, 0.0),
    "its clock had been set back": (-86_400.0, 0.0, 0.0),
    "the clock is set while it is away": (0.0, 86_400.0, 0.0),
    "the clock is set back while it is away": (0.0, -86_400.0, 0.0),
    "the clock is set between two restarts": (0.0, 0.0, 86_400.0),
}
"""Case -> steps of the wall clock: while the lease is held, before a restart, before the one after that."""


@pytest.mark.parametrize(("slept", "away", "again"), RESTARTS.values(), ids=RESTARTS)
async def test_a_gateway_that_starts_again_leaves_a_lease_the_time_that_it_had(
    disk: MemoryDisk, slept: float, away: float, again: float
) -> None:
    clocks = Clocks()

    def life(store: MemoryStore) -> Any:
        return gateway(["answer"], store=store, now=lambda: clocks.wall, steady=lambda: clocks.steady)

    async with MemoryStore(disk) as store, life(store) as g:
        for name in ("a", "b"):
            await g.finalize(await g.session(session_id=name, uid=name, job="j"), reward=1.0)
        await post(g, lease_id="mine", ttl_s=60.0)
        clocks.wall, clocks.steady = clocks.wall + slept + 50.0, clocks.steady + 50.0
        assert (await g.admin.post("/v1/leases/mine/renew", json={"ttl_s": 60.0})).status_code == 200
    clocks.wall, clocks.steady = (
        clocks.wall + away,
        clocks.steady - 7.0,
    )  # the host's clock may begin anew, too
    async with MemoryStore(disk) as store, life(store) as g:
        assert (await post(g, lease_id="yours", ttl_s=9.0))["sessions"] == ["b"]
    clocks.wall += again
    async with MemoryStore(disk) as store, life(store) as g:
        assert (await post(g, lease_id="others"))["lease_id"] is None
        clocks.steady += 59.0
        assert (await g.admin.get("/v1/status")).json()["groups"] == {"owed": 2, "leased": 1}
        clocks.steady += 2.0
        assert (await post(g, lease_id="others"))["sessions"] == ["a"]


async def test_a_lease_that_a_quiet_gateway_gave_outlives_its_restart(disk: MemoryDisk) -> None:
    """An hour without a record, then a lease, then a session: the hour is not behind the lease."""
    clocks = Clocks()

    def life(store: MemoryStore) -> Any:
        return gateway(["answer"], store=store, now=lambda: clocks.wall, steady=lambda: clocks.steady)

    async with MemoryStore(disk) as store, life(store) as g:
        await g.finalize(await g.session(session_id="a", uid="a", job="j"), reward=1.0)
        clocks.wall, clocks.steady = clocks.wall + 3600.0, clocks.steady + 3600.0
        await post(g, lease_id="mine", ttl_s=60.0)
        await g.session(session_id="b", uid="b", job="j")
    async with MemoryStore(disk) as store, life(store) as g:
        assert (await post(g, lease_id="others"))["lease_id"] is None
        clocks.steady += 61.0
        assert (await post(g, lease_id="others"))["sessions"] == ["a"]
