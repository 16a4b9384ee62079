"""The operator dies at any moment, watches repeat news, pods are taken away: nothing is run twice, nothing is lost.

A seed decides what happens; a checker that knows nothing of the driver judges what is there at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from tests.operator.cluster_rig import NAMESPACE, Box, Crash, World, hurry, manifest, world
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TASKS = 4
DEATHS = 5
WRITES_MAX = 6
"""API writes that are about one session, where nothing went wrong."""


class Chaos:
    """What happens to the operator."""

    def __init__(self, up: World, seed: int) -> None:
        self.up, self.rng = up, random.Random(seed)
        self.deaths = 0
        self.left = self.rng.randrange(3, 30)
        self.dead = asyncio.Event()
        self.seen: list[tuple[str, Any]] = []
        up.kube.fail, up.kube.lose = self.before, self.after
        up.kube.watchers.append(self.remember)

    def before(self, verb: str, kind: str) -> None:
        """A dead operator makes no calls."""
        if self.dead.is_set():
            raise Unavailable("dead", retry_after=0.0)
        self.left -= 1
        if self.left <= 0 and self.deaths < DEATHS and self.rng.random() < 0.5:
            self.dead.set()
            raise Unavailable("dies before the write", retry_after=0.0)

    def after(self, verb: str, kind: str) -> None:
        if self.left <= 0 and self.deaths < DEATHS and not self.dead.is_set():
            self.dead.set()
            raise Unavailable("dies after the write", retry_after=0.0)

    def remember(self, kind: str, event: str, body: Any) -> None:
        """For news that come again, late."""
        if kind in ("AgentSession", "Pod"):
            self.seen.append((kind, body))
            if self.up.hub is not None and self.rng.random() < 0.3:
                self.up.hub.saw(*self._again())

    def _again(self) -> tuple[str, str, Any]:
        kind, body = self.rng.choice(self.seen)
        return kind, "MODIFIED", body

    async def run(self) -> None:
        while True:
            await self.dead.wait()
            await self.up.operator_down()
            await self._meanwhile()
            self.deaths += 1
            self.left = self.rng.randrange(3, 30)
            self.dead.clear()
            hub = self.up.operator_up()
            with suppress(Unavailable):  # it died of the sweep
                await hub.sweep()

    async def _meanwhile(self) -> None:
        """Nobody watches: a pod may be taken away, before its first turn too."""
        self.up.kube.fail = lambda verb, kind: None
        if (there := list(self.up.pods)) and self.rng.random() < 0.5:
            await take(self.up, self.rng.choice(there))
        for _ in range(self.rng.randrange(200)):
            await asyncio.sleep(0)
        self.up.kube.fail = self.before


async def take(up: World, name: str) -> None:
    """As a node that drains does; what has ended by then is not hurt."""
    up.taken.add(name)
    await up.kube.delete("Pod", NAMESPACE, name, grace_s=0)


def agent(rng: random.Random) -> Any:
    async def run(box: Box) -> int:
        for _ in range(rng.randrange(1, 4)):
            await box.ask(f"turn {rng.random()}")
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
        if rng.random() < 0.15:
            raise Crash
        if rng.random() < 0.15:
            await take(box.world, box.name)
            await asyncio.Event().wait()
        return 0

    return run


@pytest.mark.parametrize("seed", [*range(11), 238])
async def test_nothing_is_run_twice_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    hurry(monkeypatch)
    rng = random.Random(seed)
    size = rng.randrange(1, 4)
    async with world(tmp_path, gateways=2) as up:
        up.agents = [("shop", agent(rng))]
        chaos = Chaos(up, seed)
        up.operator_up()
        killer = asyncio.ensure_future(chaos.run())
        chaos.left += 10
        tasks = [f"t{number} say" for number in range(TASKS)]
        up.kube.fail = lambda verb, kind: None
        body = manifest(
            *tasks, groupSize=size, parallelism=4, gateway={"replicas": 2}, group={"retry": {"infra": 50}}
        )
        await up.kube.create(body)
        up.kube.fail = chaos.before
        try:
            await _finish(up)
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
            up.kube.fail = up.kube.lose = lambda verb, kind: None
            if up.hub is None:
                up.operator_up()
        await _judge(up, size, chaos.deaths)
        assert chaos.deaths, "nothing was tried"


async def _finish(up: World) -> None:
    async def complete() -> bool:
        return up.condition("Complete")[0] == "True"

    await until(complete, what="the job is complete", within_s=30.0)


async def _judge(up: World, size: int, deaths: int) -> None:
    samples = TASKS * size
    listed: dict[str, Any] = {}
    for one in up.gateways.values():
        page = (await one.admin.get("/v1/sessions")).json()["sessions"]
        listed |= {said["session_id"]: said for said in page}
    assert up.broken == []
    _attempts_are_in_order(listed, samples)
    lost = {name for name, said in listed.items() if said["failure_class"] == "infra"}
    pods = Counter({name: count for (kind, name), count in up.kube.made.items() if kind == "Pod"})
    assert lost & set(pods) <= up.taken, "what runs goes on when the operator dies"
    assert {listed[name]["failure_reason"] for name in lost - set(pods)} <= {"DriverLost"}
    assert set(pods.values()) <= {1}, "no attempt's pod is made twice"
    told = Counter(session for session, _ in up.told)
    for session, count in told.items():
        assert listed[session]["turns"] >= count, f"{session} lost a turn that was told"
    turns = sum(said["turns"] for said in listed.values())
    generations = sum(one.generations for one in up.engines.values())
    assert turns <= generations <= turns + len(listed)
    assert await up.train() == samples, "every group is whole"

    async def settled() -> bool:
        secrets = [name for name in up.kube.named("Secret") if "-keys-" in name]
        return up.job()["status"].get("committed") == samples and not up.kube.named("Pod") and not secrets

    await until(settled, what=f"all is committed and collected: {up.job()['status']}", within_s=60.0)
    most = max(up.kube.touched.values())
    assert most <= WRITES_MAX + deaths, up.kube.touched.most_common(3)
    assert sum(up.kube.touched.values()) / len(listed) <= WRITES_MAX


def _attempts_are_in_order(listed: dict[str, Any], samples: int) -> None:
    by_sample: dict[tuple[str, int], list[Any]] = {}
    for said in listed.values():
        by_sample.setdefault((said["uid"], said["sample_index"]), []).append(said)
    assert len(by_sample) == samples
    for key, attempts in by_sample.items():
        attempts.sort(key=lambda said: said["attempt"])
        assert [said["attempt"] for said in attempts] == list(range(len(attempts))), key
        assert all(said["state"] in ("finalized", "aborted") for said in attempts), key
        before, last = attempts[:-1], attempts[-1]
        assert all(said["failure_class"] == "infra" or said["state"] == "aborted" for said in before), key
        assert last["failure_class"] != "infra", key
        assert all(said.get("reward") is None for said in before), key
