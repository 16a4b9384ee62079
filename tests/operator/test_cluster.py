"""The cluster driver whole: real gateways, pods that are coroutines, an API server in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.operator.cluster_rig import World, manifest, world
from tests.support.waiting import until


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        yield made


async def holds(up: World, kind: str, name: str = "shop", within_s: float = 20.0) -> None:
    async def so() -> bool:
        return up.condition(kind, name)[0] == "True"

    await until(so, what=f"{name} is {kind}: {up.job(name).get('status')}", within_s=within_s)


async def test_a_job_runs_commits_and_is_collected(up: World) -> None:
    up.operator_up()
    await up.kube.create(
        manifest(
            "a 1",
            "b 2",
            groupSize=2,
            reward={"source": "verifier", "verifier": {"container": {"image": "v:1"}}},
        )
    )
    await holds(up, "Complete")
    assert await up.train() == 4

    async def committed() -> bool:
        return up.job()["status"]["committed"] == 4 and not up.kube.named("Pod")

    await until(committed, what="all is committed and collected")
    assert len(up.sessions()) == 4
