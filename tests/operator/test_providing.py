"""What the API server refuses is asked again for certain, whatever else had the job planned meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.operator.cluster import providing
from sandgate.operator.cluster.providing import Providing
from sandgate.operator.cluster.provision import Refused
from sandgate.operator.driver.reconcile import Reconciler
from sandgate.operator.observed.job import JOB_KEY
from sandgate.operator.plan.actions import Action, CloseGroup, Provide, Provided

OTHER = CloseGroup("a", "g")


class Refusing:
    """A job whose API server refuses the first try."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.tries = 0
        self.planned: list[str] = []
        self.news = asyncio.Event()
        job = SimpleNamespace(metadata=SimpleNamespace(generation=1))
        at: Any = SimpleNamespace(
            job=job, places={}, secret=b"x", signed=lambda secret: None, changed=self.changed
        )
        self.providing = Providing(at, lambda taken, refused: None)
        patch.setattr(Providing, "_provide", self.provide)

    async def provide(self, what: Provided) -> str:
        self.tries += 1
        if self.tries == 1:
            raise Refused("a quota")
        return ""

    def changed(self, key: str) -> None:
        self.planned.append(key)
        self.news.set()


async def test_it_is_tried_again_though_what_failed_beside_it_had_the_shorter_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(providing, "AGAIN_S", 0.6)
    job, failures = Refusing(monkeypatch), [Unavailable("away", retry_after=0.0)]
    stands = asyncio.Event()

    async def carry_out(key: str, action: Action) -> None:
        if isinstance(action, Provide):
            if await job.providing.bring(action.what):
                stands.set()
        elif failures:
            raise failures.pop()

    plan: list[Action] = [OTHER, Provide(Provided.IDLE)]
    reconciler = Reconciler(lambda key: plan * (not stands.is_set()), carry_out)
    job.providing.at.changed = reconciler.touch
    reconciler.touch(JOB_KEY)
    running = asyncio.ensure_future(reconciler.run())
    try:
        async with asyncio.timeout(10):
            await stands.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert job.tries == 2


async def test_however_often_it_is_planned_before_it_is_planned_once_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(providing, "AGAIN_S", 0.3)
    job = Refusing(monkeypatch)
    with pytest.raises(Refused):
        await job.providing.bring(Provided.IDLE)
    for _ in range(100):
        assert not await job.providing.bring(Provided.IDLE)
    assert job.planned == []
    async with asyncio.timeout(10):
        await job.news.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert job.planned == [JOB_KEY]
    assert await job.providing.bring(Provided.IDLE)
