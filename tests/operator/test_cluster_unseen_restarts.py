"""A gateway that restarts unseen: the operator's polls hang on a connection whose other end lost its power."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandgate.gateway.client import GatewayClient
from sandgate.operator.cluster.resync import Resync
from tests.operator.cluster_rig import Box, World, buys, hurry, manifest, world
from tests.operator.test_cluster_late import posts_its_word
from tests.support.gateway import WITHIN_S
from tests.support.waiting import until

GATEWAY = "shop-gateway-0"
FIRST = "-0-0"
"""In the name of the pod of the first attempt."""


@dataclass
class Unheard(World):
    """Once it is `silent`, no poll of the operator is answered, or fails. Pods wait while there is no `room`."""

    silent: bool = False
    room: asyncio.Event = field(default_factory=asyncio.Event)

    def connect(self, origin: str, key: str, deadline_s: float) -> GatewayClient:
        client = super().connect(origin, key, deadline_s)
        if deadline_s:
            return client
        once = client._once

        async def hangs(*args: Any, **more: Any) -> Any:
            try:
                answer = await once(*args, **more)
            except Exception:
                if not self.silent:
                    raise
            else:
                if not self.silent:
                    return answer
            return await asyncio.Future()

        client._once = hangs  # type: ignore[method-assign]
        return client

    async def _run(self, body: Any) -> None:
        await self.room.wait()
        await super()._run(body)

    async def restart(self) -> None:
        await self.gateway_down(GATEWAY)
        await self.gateway_up(GATEWAY)

    async def reasons(self) -> list[str | None]:
        """Why its attempts failed, once the job is complete."""

        async def complete() -> bool:
            return self.condition("Complete")[0] == "True"

        await until(complete, what="the job is complete")
        return [one["status"].get("failureReason") for _, one in sorted(self.sessions().items())]


async def says_done(box: Box) -> None:
    async with httpx.AsyncClient(timeout=WITHIN_S, verify=False) as http:
        await http.post(
            box.world.resolve(box.env["SANDGATE_COMPLETE_URL"]),
            json={},
            headers={"authorization": f"Bearer {box.env['OPENAI_API_KEY']}"},
        )


async def test_an_agent_that_could_not_say_that_it_is_done_is_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    talked, restarted = asyncio.Event(), asyncio.Event()

    async def gives_up_well(box: Box) -> int:
        await box.ask("one")
        if FIRST not in box.name:
            await says_done(box)
            return 0
        talked.set()
        await restarted.wait()
        return 0

    async with world(tmp_path, kind=Unheard) as up:
        assert isinstance(up, Unheard)
        up.agents = [("shop", gives_up_well)]
        up.room.set()
        up.operator_up()
        agent = {
            "template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}},
            "completion": "Complete",
        }
        await up.kube.create(manifest("a 1", agent=agent, reward={"source": "agent"}))
        async with asyncio.timeout(WITHIN_S):
            await talked.wait()
        up.silent = True
        await up.restart()
        restarted.set()
        assert await up.reasons() == ["GatewayLost", None]


async def test_what_a_gateway_listed_before_it_died_again_judges_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent began after the list, and died with the gateway before the list was taken in."""
    hurry(monkeypatch)
    listed, taken_in, died = asyncio.Event(), asyncio.Event(), asyncio.Event()
    taken_in.set()
    take_in = Resync.arrived

    async def waits(intake: Resync, *args: Any) -> bool:
        listed.set()
        await taken_in.wait()
        return await take_in(intake, *args)

    async def frail(box: Box) -> int:
        if FIRST not in box.name:
            return await buys(box)
        try:
            await up.gateway_down(GATEWAY)
            return await buys(box)
        finally:
            died.set()

    monkeypatch.setattr(Resync, "arrived", waits)
    async with world(tmp_path, kind=Unheard) as up:
        assert isinstance(up, Unheard)
        up.agents = [("shop", frail)]
        up.operator_up()
        await up.kube.create(manifest("a 1"))

        async def made() -> bool:
            return bool(up.kube.named("Pod"))

        async def taken() -> bool:
            assert up.hub is not None
            return all(
                one.looked_at for run in up.hub.runs.values() for one in run.observed.sessions.values()
            )

        await until(made, what="its pod is made")
        taken_in.clear()
        listed.clear()
        await up.restart()
        async with asyncio.timeout(WITHIN_S):
            await listed.wait()
            up.silent = up.deaf = True  # its watch tells of the end later
            up.room.set()
            await died.wait()
        await up.gateway_up(GATEWAY)
        taken_in.set()
        await until(taken, what="the list is taken in")
        up.relist()
        assert await up.reasons() == ["GatewayLost", None]


async def test_a_verifier_that_could_not_post_its_word_for_a_restart_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)

    async def judges_once(box: Box) -> int:
        if FIRST in box.name:
            assert isinstance(up, Unheard)
            up.silent = True
            await up.gateway_down(GATEWAY)
            try:
                return await posts_its_word(box)
            finally:
                await up.gateway_up(GATEWAY)
        return await posts_its_word(box)

    async with world(tmp_path, kind=Unheard) as up:
        assert isinstance(up, Unheard)
        up.agents = [("-v", judges_once)]
        up.room.set()
        up.operator_up()
        reward = {"source": "verifier", "verifier": {"container": {"image": "v"}, "seconds": 50}}
        await up.kube.create(manifest("a 1", reward=reward))
        assert await up.reasons() == ["GatewayLost", None]
        assert [one["status"].get("reward") for _, one in sorted(up.sessions().items())] == [None, 0.5]
