"""Gateways die at any moment while agents talk and a trainer takes groups: nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from sandgate.contract.errors import SandgateError
from sandgate.contract.keys import Key, Scope, mint
from sandgate.gateway.client import GatewayClient
from tests.operator.cluster_rig import Box, World, hurry, manifest, world
from tests.support.gateway import SECRET
from tests.support.waiting import paced, until

pytestmark = pytest.mark.slow

TASKS, SAMPLES, GATEWAYS = 5, 3, 2
DEATHS = 4
WITHIN_S = 40.0
LEASE_S = 2.0
"""Of a lease whose grant died with its gateway on the way to the trainer: then it is offered again."""


async def talks(box: Box) -> int:
    """Three turns; a model call that fails is the end of it."""
    for turn in range(3):
        await box.ask(f"turn {turn} of {box.name}")
        for _ in range(20):
            await asyncio.sleep(0)
    return 0


async def trains(up: World) -> None:
    """Takes whatever there is, from whichever gateway answers. An ack whose answer is lost may still count."""
    key = mint(SECRET, Key(Scope.TRAINER, job="shop"))
    async for _ in paced():
        for name in list(up.gateways):
            with suppress(SandgateError, KeyError):
                origin = up.gateways[name].origin
                async with GatewayClient(origin, key, deadline_s=0.0) as client:
                    while (lease := await client.lease(max_groups=1, ttl_s=LEASE_S, job="shop")) is not None:
                        await client.ack(lease.lease_id)


async def begun(up: World) -> asyncio.Future[None]:
    """A job whose agents talk, and the trainer that takes its groups."""
    up.agents = [("shop", talks)]
    up.operator_up()
    await up.kube.create(
        manifest(
            *(f"t{number} say" for number in range(TASKS)),
            groupSize=SAMPLES,
            parallelism=6,
            gateway={"replicas": GATEWAYS},
            group={"retry": {"infra": 50}},
        )
    )
    return asyncio.ensure_future(trains(up))


async def more(up: World, turns: int) -> None:
    """Wait until agents were told so many more, or all is over."""
    due = len(up.told) + turns

    async def enough() -> bool:
        return len(up.told) >= due or up.condition("Complete")[0] == "True"

    await until(enough, what="agents talk", within_s=WITHIN_S)


@pytest.mark.parametrize("seed", range(8))
async def test_gateways_may_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    hurry(monkeypatch)
    rng = random.Random(seed)
    async with world(tmp_path, gateways=GATEWAYS) as up:
        trainer = await begun(up)
        for _ in range(DEATHS):
            await more(up, rng.randrange(1, 8))
            name = rng.choice(sorted(up.gateways))
            await up.gateway_down(name)
            for _ in range(rng.randrange(50)):
                await asyncio.sleep(0)
            await up.gateway_up(name)
        try:
            await judge(up)
        finally:
            trainer.cancel()
            await asyncio.gather(trainer, return_exceptions=True)


async def judge(up: World) -> None:
    async def settled() -> bool:
        secrets = [name for name in up.kube.named("Secret") if "-keys-" in name]
        committed = up.job().get("status", {}).get("committed")
        complete = up.condition("Complete")[0] == "True"
        return complete and committed == TASKS * SAMPLES and not up.kube.named("Pod") and not secrets

    try:
        await until(settled, what="all is committed and collected", within_s=WITHIN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {await stands(up)}") from None
    status = up.job()["status"]
    assert (status["ended"], status["failed"]) == (TASKS * SAMPLES, 0), await stands(up)
    sessions = up.sessions().values()
    assert status["retries"] == len(sessions) - TASKS * SAMPLES
    for one in sessions:
        said = one["status"]
        assert said.get("failureReason") in (None, "GatewayLost"), said
        assert ("reward" in said) == ("failureReason" not in said), said


async def stands(up: World) -> str:
    """For people."""
    lines = [str(up.job()["status"]), str(up.kube.named("Pod"))]
    for name, one in up.gateways.items():
        listed = (await one.admin.get("/v1/sessions")).json()["sessions"]
        lines += [
            f"{name} {said['session_id']} {said['state']} {said['failure_reason']} {said['turns']}"
            f"{' committed' if said['committed'] else ''}"
            for said in listed
        ]
    return "\n".join(lines)
