"""Gateways with nothing to do go, and come back with all they held: a collected job's, and a suspended one's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from tests.operator.cluster_rig import NAMESPACE, Box, World, engine_pod, follow, hurry, manifest, world
from tests.support.waiting import paced, until

QUIET_S = 1.0
"""Twenty of the shortened periods in which a gateway or an engine is asked."""
MANAGED = {"managed": {"image": "e:1", "gpus": 0}}
SOON, NEVER = {"idleSeconds": 1}, {"idleSeconds": 1_000_000}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Its gateway comes and goes as its StatefulSet says."""
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        made.kube.watchers.append(lambda kind, event, body: follow(made, kind, body))
        yield made


def asked(up: World) -> list[str]:
    """From now on: what the API server and gateways are asked."""
    calls: list[str] = []
    resolve = up.resolve

    def resolved(url: str) -> str:
        calls.append(url)
        return resolve(url)

    up.kube.fail = lambda verb, kind: calls.append(f"{verb} {kind}")
    up.resolve = resolved  # type: ignore[method-assign]
    return calls


async def holds(up: World, kind: str, status: str, reason: str) -> None:
    async def so() -> bool:
        return up.condition(kind) == (status, reason)

    await until(so, what=f"{kind} is {status} {reason}: {up.job().get('status')}", within_s=60.0)


async def is_away(up: World) -> None:
    async def so() -> bool:
        return not up.gateways

    await until(so, what="no gateway is up", within_s=60.0)


async def quiet(calls: list[str]) -> list[str]:
    """What was asked, once all that was begun has ended."""

    async def settled() -> bool:
        before = len(calls)
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=QUIET_S / 4)
        return len(calls) == before

    await until(settled, what="nothing is asked any more", within_s=60.0)
    calls.clear()
    await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=QUIET_S)
    return list(calls)


async def collected(up: World, **spec: Any) -> None:
    """A job of one task, done and trained on."""
    up.operator_up()
    await up.kube.create(manifest("a 1", **{"gateway": SOON, **spec}))
    await engine_pod(up)
    await holds(up, "Complete", "True", "AllEnded")
    await holds(up, "Collected", "False", "NotAllAcknowledged")
    assert await up.train() == 1


async def test_a_job_that_is_collected_runs_nothing_and_asks_nothing(up: World) -> None:
    await collected(up, engine=MANAGED)
    await holds(up, "Ready", "False", "Idle")
    await is_away(up)
    assert up.kube.objects["Deployment", NAMESPACE, "shop-engine"]["spec"]["replicas"] == 0
    assert await quiet(asked(up)) == []
    status = up.job()["status"]
    assert (status["ended"], status["committed"], status["gateways"]) == (1, 1, 0)


async def test_not_before_it_is_collected_and_idle_seconds_have_passed(up: World) -> None:
    await collected(up, gateway=NEVER)
    await holds(up, "Collected", "True", "AllAcknowledged")
    assert list(up.gateways) == ["shop-gateway-0"]
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"gateway": SOON}})
    await is_away(up)


async def test_not_while_a_trainer_lives(up: World) -> None:
    """It may be in its last step, and have weights to tell of."""
    await collected(up, gateway=NEVER)
    async with up.trainer("shop-gateway-0") as trainer, asyncio.timeout(60):
        await trainer.heartbeat()
        await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"gateway": {"idleSeconds": 3}}})
        beats = 0
        async for _ in paced(0.2):
            await trainer.heartbeat()
            if up.condition("Collected")[0] == "True" and (beats := beats + 1) > 30:  # twice its idleSeconds
                break
    assert list(up.gateways) == ["shop-gateway-0"]
    await is_away(up)


async def test_a_new_operator_knows_that_it_is_idle_and_forgets_no_count(up: World) -> None:
    await collected(up)
    await holds(up, "Ready", "False", "Idle")
    await is_away(up)
    before = up.job()["status"]
    await up.operator_down()
    calls = asked(up)
    up.operator_up()
    assert await quiet(calls) == []
    assert up.job()["status"] == before
    assert not up.gateways


async def test_a_larger_idle_seconds_brings_them_back(up: World) -> None:
    await collected(up)
    await holds(up, "Ready", "False", "Idle")
    await up.operator_down()
    up.operator_up()
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"gateway": NEVER}})
    await holds(up, "Ready", "True", "GatewaysAndEnginesReady")
    async with up.trainer("shop-gateway-0") as client:
        assert [one.job async for one in client.sessions(job="shop")] == ["shop"]
    status = up.job()["status"]
    assert (status["ended"], status["committed"]) == (1, 1)


async def test_an_idle_job_still_deletes_itself(up: World) -> None:
    await collected(up, ttlSecondsAfterFinished=3)
    await holds(up, "Ready", "False", "Idle")
    await up.operator_down()
    up.operator_up()

    async def gone() -> bool:
        return not up.kube.named("RolloutJob")

    await until(gone, what="it deletes itself", within_s=60.0)


async def test_a_suspended_job_runs_nothing_and_goes_on_where_it_was(up: World) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def waits(box: Box) -> int:
        await box.ask("first")
        reached.set()
        await go.wait()
        return 0

    up.agents = [("shop-b", waits)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", engine=MANAGED, gateway=SOON, activeDeadlineSeconds=600))
    await engine_pod(up)
    await asyncio.wait_for(reached.wait(), 20)

    async def one_ended() -> bool:
        return bool((up.job().get("status") or {}).get("ended") == 1)

    await until(one_ended, what="the other one has ended", within_s=60.0)
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await holds(up, "Ready", "False", "Idle")
    await is_away(up)
    assert await quiet(asked(up)) == []
    assert up.job()["status"].get("startTime", "") == "", "its deadline does not run"
    go.set()
    await up.operator_down()
    up.operator_up()
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await holds(up, "Complete", "True", "AllEnded")
    assert up.job()["status"]["startTime"]
    assert await up.train() == 2
    assert len([name for name in up.sessions() if name.startswith("shop-a")]) == 1, "what was done stays done"


async def test_a_new_operator_lets_the_gateways_of_a_suspended_job_go(up: World) -> None:
    reached = asyncio.Event()

    async def waits(box: Box) -> int:
        reached.set()
        await asyncio.Event().wait()
        return 0

    up.agents = [("shop-a", waits)]
    up.operator_up()
    await up.kube.create(manifest("a 1", gateway=NEVER))
    await asyncio.wait_for(reached.wait(), 20)
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await holds(up, "Progressing", "False", "Suspended")
    await up.operator_down()
    up.operator_up()
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"gateway": SOON}})
    await holds(up, "Ready", "False", "Idle")
    await is_away(up)


async def test_for_a_job_that_was_created_suspended_nothing_is_made_by_a_new_operator_either(
    up: World,
) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", suspend=True))
    await holds(up, "Ready", "False", "NothingMade")
    await up.operator_down()
    calls = asked(up)
    up.operator_up()
    assert await quiet(calls) == []
    assert up.kube.named("StatefulSet") == []


async def test_what_an_agent_session_must_still_say_is_written_while_its_gateway_is_away(up: World) -> None:
    down = True

    def fail(verb: str, kind: str) -> None:
        if down and (verb, kind) == ("patch_status", "AgentSession"):
            raise Unavailable("the API server refuses", retry_after=0.0)

    up.operator_up()
    await up.kube.create(manifest("a 1", gateway=SOON))
    await holds(up, "Complete", "True", "AllEnded")
    up.kube.fail = fail
    assert await up.train() == 1
    await is_away(up)
    down = False
    (name,) = up.sessions()

    async def committed() -> bool:
        found = (up.sessions()[name].get("status") or {}).get("conditions", ())
        return any((one["type"], one["status"]) == ("TrajectoryCommitted", "True") for one in found)

    await until(committed, what="it says that it is committed", within_s=60.0)


async def test_a_job_that_gave_up_is_collected_though_a_group_of_it_never_became_whole(up: World) -> None:
    async def fails(box: Box) -> int:
        box.message = "no such thing"
        return 1

    up.agents = [("shop", fails)]
    up.operator_up()
    reward = {"source": "agent"}
    await up.kube.create(
        manifest("a 1", "b 2", "c 3", "d 4", gateway=SOON, groupSize=2, parallelism=1, reward=reward)
    )
    await holds(up, "Failed", "True", "AgentsFailAlike")
    await up.train()
    await holds(up, "Collected", "True", "AllAcknowledged")
    await is_away(up)


async def test_a_remote_session_of_an_idle_job_is_told_that_the_job_is_over(up: World) -> None:
    await collected(up)
    await holds(up, "Ready", "False", "Idle")
    await up.operator_down()
    up.operator_up()
    spec = {"jobName": "shop", "taskUid": "far", "remote": True}
    meta = {"name": "mine", "namespace": NAMESPACE}
    await up.kube.create(
        {"apiVersion": "sandgate.dev/v1alpha1", "kind": "AgentSession", "metadata": meta, "spec": spec}
    )

    async def told() -> bool:
        return "is over" in str(up.sessions()["mine"].get("status") or "")

    await until(told, what=f"it is refused: {up.sessions()['mine']}", within_s=60.0)
