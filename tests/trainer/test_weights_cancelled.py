"""A trainer that is cancelled in a weight update."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.gateway.journal.memory import MemoryStore
from sandgate.trainer.client import weight_update
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from tests.support.gateway import Latch, admin_key, gateway
from tests.trainer.updated import Log
from tests.trainer.world import World


async def test_a_trainer_that_is_cancelled_while_an_engine_refuses_is_cancelled() -> None:
    log = Log(("e1", "refuses reload"))
    log.may_load.clear()

    async def step() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            with suppress(ExceptionGroup):  # a trainer that goes on with the others
                await found.reload("/weights")

    task = asyncio.create_task(step())
    await log.loading.wait()
    task.cancel()
    log.may_load.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.of("g0") == ["pause", "resume"], "the version is not told: not all of them have it"


async def test_a_trainer_that_is_cancelled_in_the_swap_leaves_nobody_on_hold() -> None:
    log, swapping = Log(), asyncio.Event()

    async def train() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines):
            swapping.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(train())
    await swapping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.of("g1") == ["pause", "resume"]
    assert log.of("e1") == ["pause=keep", "resume"]


@pytest.mark.parametrize("waits", [True, False], ids=["who waits for it", "who does not"])
async def test_weights_are_loaded_to_the_end_and_labelled_when_the_trainer_is_cancelled(
    *, waits: bool
) -> None:
    """An engine loads on without whoever asked, and would go on under the old version."""
    log = Log()
    log.may_load.clear()

    async def train() -> None:
        async with weight_update.weight_update(log.gateways, 7, engines=log.engines) as found:
            if not waits:  # as a thread that is interrupted, while the loop of its client goes on
                background.append(asyncio.ensure_future(found.reload("/weights")))
            await (found.reload("/weights") if waits else asyncio.Event().wait())

    background: list[asyncio.Future[None]] = []
    task = asyncio.ensure_future(train())
    await log.loading.wait()
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert log.of("e0") == ["pause=keep"]
    log.may_load.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.gather(*background)
    assert log.of("e0") == log.of("e1") == ["pause=keep", "reload", "label=7", "reset", "resume"]
    assert log.of("g0") == ["pause", "resume"]


HELD: dict[str, bool] = {
    "goes on where it went on before": False,
    "stays on hold where an update before had left it so": True,
}


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
async def test_a_single_gateway_whose_update_is_cancelled_while_its_pause_is_written(*, held: bool) -> None:
    latch = Latch()
    async with (
        gateway(["done"], store=MemoryStore(gate=latch)) as running,
        AsyncRolloutClient(running.origin, admin_key()) as client,
    ):
        if held:
            await client.pause()
        latch.shut()

        async def update() -> None:
            async with client.weight_update(1):
                pytest.fail("swapped")

        task = asyncio.ensure_future(update())
        await latch.reached.wait()
        task.cancel()
        latch.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        status = await client.status()
        assert (status["paused"], status["policy_version"]) == (held, 0)


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
async def test_a_single_gateway_whose_answer_to_the_pause_is_lost(*, held: bool) -> None:
    async with World() as world:
        client = world.admins["g0"]
        if held:
            await client.pause()
        world.sites["g0"].lose = ["/v1/pause"]
        with pytest.raises(Unavailable, match="connection reset"):
            async with client.weight_update(1):
                pytest.fail("swapped")
        assert (await client.status())["paused"] is held


async def test_what_a_single_gateways_block_raises_is_raised_as_it_is() -> None:
    async with World() as world:
        client = world.admins["g0"]
        with pytest.RaisesGroup(ZeroDivisionError):
            async with client.weight_update(1):
                raise ExceptionGroup("swap", [ZeroDivisionError()])
        assert (await client.status())["paused"] is False
