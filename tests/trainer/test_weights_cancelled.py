"""A trainer that is cancelled in a weight update."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from sandgate.trainer.client import weight_update
from tests.trainer.updated import Log


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
