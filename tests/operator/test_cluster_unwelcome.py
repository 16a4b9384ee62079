"""A gateway that does not take a session: the job says so in its words, and the others go on without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.session import SessionSpec
from sandgate.gateway.client import GatewayClient
from tests.operator.cluster_rig import World, hurry, manifest, world
from tests.operator.test_cluster import is_so, so
from tests.operator.test_wrong_jobs import said
from tests.support.gateway import SECRET


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def stands_for(up: World, uid: str, sample: int) -> None:
    """A session of somebody else takes the place of one of the job's."""
    key = mint(SECRET, Key(Scope.ADMIN, job="shop"))
    async with GatewayClient(up.gateways["shop-gateway-0"].origin, key) as client:
        await client.create(
            SessionSpec(
                session_id=f"mine-{uid}-{sample}", uid=uid, sample_index=sample, group_size=2, job="shop"
            )
        )


TAKEN = [[("a", 0)], [("a", 0), ("a", 1)]]


@pytest.mark.parametrize("taken", TAKEN, ids=["one of a group", "a whole group"])
@pytest.mark.parametrize("parallelism", [1, 8])
async def test_a_session_that_its_gateway_refuses_keeps_no_other_waiting(
    up: World, parallelism: int, taken: list[tuple[str, int]]
) -> None:
    for uid, sample in taken:
        await stands_for(up, uid, sample)
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", "c 3", groupSize=2, parallelism=parallelism))
    ends = 6 - len(taken)
    await so(lambda: up.job().get("status", {}).get("ended") == ends, "all others end", up=up)
    await so(lambda: said(up)[0] == "PodsWait", "it says that something is waited for", up=up)
    assert "mine-a-" in said(up)[1], "in the words of the gateway"
    key = mint(SECRET, Key(Scope.ADMIN, job="shop"))
    async with GatewayClient(up.gateways["shop-gateway-0"].origin, key) as client:
        for uid, sample in taken:
            await client.abort(f"mine-{uid}-{sample}")
    await is_so(up, "Complete")
    assert "mine-a-" not in str(up.job()["status"])


@pytest.mark.parametrize("taken", TAKEN, ids=["one of a group", "a whole group"])
@pytest.mark.parametrize("parallelism", [1, 8])
async def test_the_next_operator_gives_up_what_its_gateway_refuses_and_tries_the_next_attempt(
    up: World, parallelism: int, taken: list[tuple[str, int]]
) -> None:
    """It cannot know that nothing of it ran; and which stands for that sample is the newer one."""
    for uid, sample in taken:
        await stands_for(up, uid, sample)
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", "c 3", groupSize=2, parallelism=parallelism))
    refused = {f"-{sample}-0" for _, sample in taken}

    def made() -> set[str]:
        return {end for end in refused if any("-a-" in name and name.endswith(end) for name in up.sessions())}

    await so(lambda: made() == refused, "something is made for each", up=up)
    await up.operator_down()
    up.operator_up()
    await is_so(up, "Complete")
    status = up.job()["status"]
    assert (status["ended"], status["failed"]) == (6, 0)
    gone = {name: one["status"].get("failureReason") for name, one in up.sessions().items() if "-a-" in name}
    assert {name for name, reason in gone.items() if reason == "DriverLost"} >= {
        name for name in gone if any(name.endswith(end) for end in refused)
    }
    assert "mine-a-" not in str(status)
