"""Operator, gateways and the API server die in any order, while agents talk and a trainer takes groups: in the end
every object says what its gateway does.

The order comes from a seed. What one blow broke is often not mended when the next one falls.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from tests.operator.cluster_rig import World, hurry, world
from tests.operator.test_cluster_gateway_deaths import (
    GATEWAYS,
    SAMPLES,
    TASKS,
    WITHIN_S,
    begun,
    more,
    stands,
)
from tests.support.waiting import until

pytestmark = pytest.mark.slow

BLOWS = 6
LONG = 400
"""Turns of the loop that something is away at most: agents have given up by then."""


class Deaths:
    """What is away now."""

    def __init__(self, up: World, rng: random.Random) -> None:
        self.up, self.rng = up, rng
        self.told: list[str] = []
        up.kube.lose = self.lose

    def lose(self, verb: str, kind: str) -> None:
        """An answer in ten."""
        if self.rng.random() < 0.1:
            raise Unavailable("the connection broke", retry_after=0.0)

    async def strike(self) -> None:
        """One blow; what it breaks is mended when it returns."""
        kind = self.rng.choice(("operator", "gateway", "both", "both", "api"))
        self.told.append(kind)
        if kind == "api":
            self.up.kube.fail = self._away
            await self._lasts()
            self.up.kube.fail = lambda verb, kind: None
            return
        parts = {"operator": [self._operator], "gateway": [self._gateway]}
        both = parts.get(kind, [self._operator, self._gateway])
        async with asyncio.TaskGroup() as tasks:
            for one in both:
                tasks.create_task(one())

    def _away(self, verb: str, kind: str) -> None:
        raise Unavailable("the API server is away", retry_after=0.0)

    async def _lasts(self) -> None:
        for _ in range(self.rng.randrange(LONG)):
            await asyncio.sleep(0)

    async def _operator(self) -> None:
        await self._lasts()
        await self.up.operator_down()
        await self._lasts()
        self.up.operator_up()

    async def _gateway(self) -> None:
        await self._lasts()
        name = self.rng.choice(sorted(self.up.gateways))
        await self.up.gateway_down(name)
        await self._lasts()
        await self.up.gateway_up(name)


@pytest.mark.parametrize("seed", range(8))
async def test_in_the_end_every_object_says_what_its_gateway_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    hurry(monkeypatch)
    rng = random.Random(seed)
    async with world(tmp_path, gateways=GATEWAYS) as up:
        trainer = await begun(up)
        deaths = Deaths(up, rng)
        try:
            for _ in range(BLOWS):
                await more(up, rng.randrange(6))
                await deaths.strike()
            await judge(up, deaths)
            assert not trainer.done()
        finally:
            trainer.cancel()
            await asyncio.gather(trainer, return_exceptions=True)


async def judge(up: World, deaths: Deaths) -> None:
    """All samples are committed, by every book."""

    async def settled() -> bool:
        """The gateway may say that a session is committed before the operator, whose call to seal it was cut off, asks
        again and knows that it ended."""
        job = up.job().get("status", {})
        good = [one for one in up.sessions().values() if well(one)]
        whole = len(good) == TASKS * SAMPLES and job.get("committed") == len(good)
        return whole and up.condition("Complete")[0] == "True"

    try:
        await until(settled, what="every sample has a committed session", within_s=WITHIN_S)
    except AssertionError as error:
        objects = "\n".join(f"{name}: {one.get('status')}" for name, one in sorted(up.sessions().items()))
        raise AssertionError(f"{error} after {deaths.told}: {await stands(up)}\n{objects}") from None
    status = up.job()["status"]
    assert (status["ended"], status["failed"]) == (TASKS * SAMPLES, 0)
    assert status["retries"] == len(up.sessions()) - TASKS * SAMPLES


def well(session: Any) -> bool:
    """A trainer has it, and it did not fail."""
    status = session.get("status", {})
    said = {one["type"]: one["status"] for one in status.get("conditions", ())}
    return said.get("TrajectoryCommitted") == "True" and not status.get("failureReason")
