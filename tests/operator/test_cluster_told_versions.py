"""A gateway that lost its journal is told the policy version again, before a session begins there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandgate.operator.cluster.told_versions import PolicyTold, ToldVersions
from tests.operator.cluster_rig import Box, buys, hurry, manifest, world
from tests.support.waiting import until

HOME, OTHER = "shop-gateway-0", "shop-gateway-1"


@pytest.mark.parametrize("gateways", [1, 2])
async def test_its_tokens_are_of_the_version_that_the_trainer_told_before(
    gateways: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    async with world(tmp_path, gateways=gateways) as up:
        crashed: list[str] = []

        async def sees_its_gateway_go(box: Box) -> int:
            home = box.env["OPENAI_BASE_URL"]
            if not crashed and HOME in home:
                crashed.append(box.name)
                await box.ask("before")
                for gateway in up.gateways.values():
                    assert (await gateway.admin.put("/v1/policy-version", json={"version": 7})).is_success
                await said_by_all(7)
                await up.gateway_down(HOME)
                await up.gateway_up(HOME, empty=True)
            return await buys(box)

        async def said_by_all(version: int) -> None:
            async def told() -> bool:
                return bool(up.job()["status"].get("policyVersion") == version)

            await until(told, what=f"the operator heard of version {version}", within_s=30.0)

        up.agents = [("shop", sees_its_gateway_go)]
        up.operator_up()
        tasks = [f"{uid} 1" for uid in "abcdefgh"]
        await up.kube.create(manifest(*tasks, gateway={"replicas": gateways}, parallelism=1))

        async def complete() -> bool:
            return bool(up.condition("Complete")[0] == "True")

        await until(complete, what="all tasks are done", within_s=60.0)
        assert crashed
        async with up.trainer(HOME) as client:
            lease = await client.lease(max_groups=16, ttl_s=60.0, job="shop")
        assert lease is not None
        versions = {int(v) for row in lease.trajectories for v in row.versions if v >= 0}
        assert versions == {7}


def says(
    version: int, *, told: bool | None = True, adapter: str = "", labelled: bool = False
) -> dict[str, Any]:
    status = {"policy_version": version, "adapter": adapter, "labelled": labelled}
    return status if told is None else status | {"version_told": told}


UNTOLD = says(0, told=False)
OWED: dict[str, tuple[list[tuple[str, dict[str, Any]]], PolicyTold | None]] = {
    "nothing, where no gateway was told anything": ([(HOME, UNTOLD), (OTHER, UNTOLD)], None),
    "what it was told itself": ([(HOME, says(7))], PolicyTold(7)),
    "what the other was told": ([(OTHER, says(7))], PolicyTold(7)),
    "the newest, where an update was under way": ([(HOME, says(7)), (OTHER, says(8))], PolicyTold(8)),
    "a lower version, where the trainer began anew": ([(HOME, says(7)), (HOME, says(0))], PolicyTold(0)),
    "the adapter with its version": ([(OTHER, says(7, adapter="step-7"))], PolicyTold(7, "step-7")),
    "that labels carry versions": ([(OTHER, says(7, labelled=True))], PolicyTold(7, labelled=True)),
    "what it was told, after it was asked twice": ([(HOME, says(7)), (HOME, UNTOLD)], PolicyTold(7)),
    "what a gateway of a release before was told": ([(OTHER, says(7, told=None))], PolicyTold(7)),
}


@pytest.mark.parametrize(("heard", "owed"), OWED.values(), ids=OWED)
def test_a_gateway_that_was_told_nothing_is_owed(
    heard: list[tuple[str, dict[str, Any]]], owed: PolicyTold | None
) -> None:
    versions = ToldVersions()
    for gateway, status in heard:
        versions.owed(gateway, status)
    assert versions.owed(HOME, UNTOLD) == owed


def test_a_gateway_of_a_release_before_is_owed_nothing() -> None:
    versions = ToldVersions()
    versions.owed(OTHER, says(7))
    assert versions.owed(HOME, says(0, told=None)) is None
