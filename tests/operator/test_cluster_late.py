"""What is right in ten minutes and was wrong after hours: late news, gateways that are away, jobs made anew."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from sandgate.contract.errors import Unavailable
from sandgate.contract.labels import AGENT, JOB, MANAGED_BY, ROLE, SESSION
from sandgate.contract.names import session_id
from tests.operator import cluster_rig
from tests.operator.cluster_rig import NAMESPACE, Box, World, buys, hurry, manifest, world
from tests.operator.test_cluster import is_so, so
from tests.support.waiting import paced


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def test_an_agent_that_ended_well_is_right_though_its_end_was_seen_after_its_time(up: World) -> None:
    """The watch lagged from before its end until after its deadline."""
    ran = asyncio.Event()

    async def agent(box: Box) -> int:
        await box.ask("hi")
        up.deaf = True
        ran.set()
        return 0

    up.agents = [("shop", agent)]
    up.operator_up()
    await up.kube.create(manifest("a 1", limits={"sessionSeconds": 3, "startSeconds": 30}))
    await asyncio.wait_for(ran.wait(), 20)

    def stopped() -> bool:
        (pod,) = (body for (kind, _, _), body in up.kube.objects.items() if kind == "Pod")
        return bool(pod["spec"].get("activeDeadlineSeconds") == 1)

    await so(stopped, "its operator stops what it takes for running")
    up.relist()
    await is_so(up, "Complete")
    (session,) = up.sessions().values()
    assert (session["status"]["reward"], session["status"].get("failureReason")) == (1.0, None)


async def posts_its_word(box: Box) -> int:
    """A verifier that tells its reward to the gateway and leaves no message."""
    async with httpx.AsyncClient(timeout=20.0, verify=False) as http:
        posted = await http.post(
            box.world.resolve(box.env["SANDGATE_REWARD_URL"]),
            json={"reward": 0.5},
            headers={"authorization": f"Bearer {box.env['SANDGATE_REWARD_KEY']}"},
        )
    posted.raise_for_status()
    return 0


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
async def test_a_node_s_clock_that_is_wrong_keeps_nobody_waiting_and_costs_no_reward(
    up: World, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    monkeypatch.setattr(cluster_rig, "time", SimpleNamespace(time=lambda: time.time() + ahead_s))
    up.agents = [("-0-v", posts_its_word), ("shop", buys)]
    up.operator_up()
    reward = {"source": "verifier", "verifier": {"container": {"image": "v"}, "seconds": 50}}
    await up.kube.create(manifest("a 1", reward=reward))
    await is_so(up, "Complete")
    (session,) = up.sessions().values()
    assert (session["status"]["reward"], session["status"].get("failureReason")) == (0.5, None)


async def test_a_pod_of_an_earlier_job_of_that_name_is_no_agent_of_this_one(up: World) -> None:
    """It is collected later than its AgentSession, and its session had the same name."""
    name = session_id("shop", "a", 0, 0)
    over = {"exitCode": 0, "startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:09Z"}
    up.kube.objects["Pod", NAMESPACE, name] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": "pod-before",
            "resourceVersion": "1",
            "labels": {MANAGED_BY: "sandgate", JOB: "shop", ROLE: AGENT, SESSION: name},
            "ownerReferences": [{"kind": "AgentSession", "name": name, "uid": "before", "controller": True}],
        },
        "spec": {"containers": [{"name": "agent"}]},
        "status": {
            "phase": "Succeeded",
            "containerStatuses": [{"name": "agent", "state": {"terminated": over}}],
        },
    }
    up.agents = [("shop", buys)]
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await is_so(up, "Complete")
    (session,) = up.sessions().values()
    assert (session["status"]["turns"], session["status"]["reward"]) == (1, 1.0)


async def test_a_trainer_is_not_lost_while_there_is_no_gateway_to_hear_it(up: World) -> None:
    go = asyncio.Event()

    async def agent(box: Box) -> int:
        await box.ask("hi")
        await go.wait()
        return 0

    up.agents = [("-b-", agent)]
    up.operator_up()
    block = {"heartbeatSeconds": 2, "collectSeconds": 3}
    async with beating(up):
        await up.kube.create(manifest("a 1", "b 2", "c 3", parallelism=1, trainer=block))
        await so(lambda: len(up.sessions()) >= 2, "the second has begun")
    await up.gateway_down("shop-gateway-0")
    await passes(4.5)
    await up.gateway_up("shop-gateway-0")
    await passes(1.0)  # the trainer's next call may be to come
    assert up.condition("Failed")[0] != "True"
    async with beating(up):
        go.set()
        await is_so(up, "Complete")
    assert up.condition("Failed")[0] == "False"


async def passes(seconds: float) -> None:
    await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=seconds)


@asynccontextmanager
async def beating(up: World) -> AsyncIterator[None]:
    task = asyncio.ensure_future(beats(up))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def beats(up: World) -> None:
    """A trainer that lives, and says so to whoever listens."""
    async for _ in paced(0.1):
        try:
            async with up.trainer("shop-gateway-0") as trainer:
                await trainer.heartbeat()
        except (KeyError, Unavailable):
            continue


async def test_a_job_that_is_made_anew_takes_no_session_of_the_one_before_for_its_own(up: World) -> None:
    """What it left waits for garbage collection, which begins anywhere."""
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", "c 3"))
    await is_so(up, "Complete")
    assert await up.train() == 3
    await is_so(up, "Collected")
    left = {key: copy.deepcopy(body) for key, body in up.kube.objects.items() if key[0] == "AgentSession"}
    before, body = len(up.told), up.job()
    assert len(left) == before == 3
    watchers, up.kube.watchers = up.kube.watchers, []
    up.kube.objects.clear()
    up.kube.objects.update(left)
    up.kube.watchers = watchers
    assert up.hub is not None
    up.hub.saw("RolloutJob", "DELETED", body)
    await up.gateway_down("shop-gateway-0")
    await up.gateway_up("shop-gateway-0", empty=True)
    await up.kube.create(manifest("a 1", "b 2", "c 3"))
    await so(lambda: any("shop-a" in one for one in up.kube.named("Secret")), "it begins")
    assert up.condition("Complete")[0] != "True"
    for _, _, name in left:
        up.kube.remove("AgentSession", NAMESPACE, name)
    await is_so(up, "Complete")
    assert len(up.told) == before + 3, "each has its turn"
    assert await up.train() == 3
