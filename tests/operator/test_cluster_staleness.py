"""spec.staleness through an operator's death: the next one admits as that would have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.operator.cluster_rig import World, hurry, manifest, world
from tests.support.waiting import until

HOME = "shop-gateway-0"


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def comes(up: World, holds: Callable[[], bool], what: str) -> None:
    async def it_does() -> bool:
        return holds()

    await until(it_does, what=what, within_s=30.0)


def begun(up: World) -> set[str]:
    return {str(one["spec"]["taskUid"]) for one in up.sessions().values()}


async def held(up: World, groups: int) -> None:
    """So many are begun, the trainer took all of them, and no more come before a version."""

    def looked() -> bool:
        assert up.hub is not None
        runs = list(up.hub.runs.values())
        return bool(runs) and runs[0].observed.pace.taken == groups == runs[0].observed.begun

    await comes(up, looked, f"{groups} groups are taken")
    await comes(up, lambda: _awaits_version(up), "the job is held")
    assert len(begun(up)) == groups


def _awaits_version(up: World) -> bool:
    """It is planned since, and has written what it wants."""
    assert up.hub is not None
    (run,) = up.hub.runs.values()
    status = run.observed.status
    settled = up.hub.reconciler.length == 0 and run.writer.written == status
    return settled and status is not None and status.reason == "AwaitsVersion"


async def publish(up: World, version: int) -> None:
    assert (await up.gateways[HOME].admin.put("/v1/policy-version", json={"version": version})).is_success


async def trained(up: World, groups: int) -> None:
    """So many groups more were leased and acknowledged."""
    had = 0

    async def all_of_them() -> bool:
        nonlocal had
        had += await up.train()
        return had >= groups

    await until(all_of_them, what=f"{groups} groups came", within_s=30.0)


async def started(up: World, *, behind: int) -> None:
    up.operator_up()
    limits = {"maxVersionsBehind": behind, "batchSize": 2}
    tasks = [f"t{number} say" for number in range(10)]
    await up.kube.create(manifest(*tasks, staleness=limits, parallelism=8))


async def test_what_was_acknowledged_since_the_last_version_admits_nothing(up: World) -> None:
    await started(up, behind=0)
    await trained(up, 2)
    await held(up, 2)
    for version, groups in ((1, 4), (2, 6)):
        await up.operator_down()
        up.operator_up()
        await held(up, groups - 2)
        await publish(up, version)
        await trained(up, 2)
        await held(up, groups)
    assert up.job()["status"]["acknowledgedAtVersion"] == 4


async def test_a_version_that_came_while_no_operator_ran_admits_one_batch(up: World) -> None:
    await started(up, behind=1)
    await comes(up, lambda: len(begun(up)) == 4, "two batches are begun")
    await comes(up, lambda: up.job()["status"].get("ended") == 4, "they ended")
    await up.operator_down()
    assert up.job()["status"]["acknowledgedAtVersion"] == 0
    await publish(up, 1)
    await trained(up, 4)  # the second half is of the next version, which is not published yet
    up.operator_up()
    await trained(up, 2)
    await held(up, 6)
    await publish(up, 2)
    await comes(up, lambda: len(begun(up)) > 6, "it goes on with the next version")
