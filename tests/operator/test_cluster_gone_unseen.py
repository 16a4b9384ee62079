"""Pods that somebody deletes while no operator looks. Their containers may run on for as long as their grace, or longer
where their node is cut off: no second agent is ever let into a session that may have had one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.operator.cluster_rig import NAMESPACE, Box, hurry, manifest, world
from tests.support.waiting import until

TURNS = 3


async def so(what: Callable[[], bool], words: str) -> None:
    async def holds() -> bool:
        return what()

    await until(holds, what=words, within_s=30.0)


class Outlives:
    """Agents whose first turn comes when it may. What deletes their pod does not end them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.free = asyncio.Event()
        self.lives: list[asyncio.Task[None]] = []

    async def __call__(self, box: Box) -> int:
        self.begun.append(box.env["SANDGATE_SESSION_ID"])
        life = asyncio.ensure_future(self.live(box))
        self.lives.append(life)
        await asyncio.shield(life)
        return 0

    async def live(self, box: Box) -> None:
        await self.free.wait()
        with suppress(httpx.HTTPError):
            for number in range(TURNS):
                await box.ask(*(f"turn {one}" for one in range(number + 1)))


async def test_a_session_whose_pod_is_gone_before_its_first_turn_gets_no_second_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    agents = Outlives()
    async with world(tmp_path) as up:
        up.agents = [("shop-", agents)]
        up.operator_up()
        await up.kube.create(manifest("a say", "b say"))
        await so(lambda: len(agents.begun) == 1, "the first agent runs")
        (session,) = agents.begun
        (pod,) = up.pods
        await up.operator_down()
        await up.kube.delete("Pod", NAMESPACE, pod, grace_s=0)
        up.operator_up()
        await so(lambda: len(agents.begun) == 2, "another runs")
        agents.free.set()
        await so(lambda: up.condition("Complete")[0] == "True", "all ended")
        await asyncio.gather(*agents.lives)
        assert Counter(agents.begun).most_common(1)[0][1] == 1, f"two agents in one session: {agents.begun}"
        status = {name: body["status"] for name, body in up.sessions().items()}
        assert status[session]["failureReason"] == "DriverLost"
        rest = {name: one for name, one in status.items() if name != session}
        assert {(one.get("failureReason"), one["turns"]) for one in rest.values()} == {(None, TURNS)}
        assert up.job()["status"]["retries"] == 1
        assert await up.train() == 2
