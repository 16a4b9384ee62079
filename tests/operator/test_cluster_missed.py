"""A commit that no event tells: its gateway died in between. Its list does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandgate.operator.cluster import doors
from tests.operator.cluster_rig import hurry, manifest, world
from tests.support.waiting import until

GATEWAY = "shop-gateway-0"


async def test_what_a_trainer_acknowledged_while_the_operator_did_not_hear_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    heard = asyncio.Event()
    heard.set()
    ready = doors.Door._ready

    async def deaf(door: doors.Door) -> bool:
        await heard.wait()
        return await ready(door)

    monkeypatch.setattr(doors.Door, "_ready", deaf)
    async with world(tmp_path) as up:
        up.operator_up()
        await up.kube.create(manifest("a 1"))

        async def ended() -> bool:
            return bool(up.job().get("status", {}).get("ended") == 1)

        await until(ended, what="the session is over", within_s=20)
        heard.clear()
        await up.gateway_down(GATEWAY)
        await up.gateway_up(GATEWAY)
        assert await up.train() == 1
        heard.set()

        async def committed() -> bool:
            return bool(up.job()["status"]["committed"] == 1)

        await until(committed, what="the operator knows", within_s=20)
