"""In a cluster too: nothing of an agent's pod runs any more when what it left is judged, and when it is sealed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sandgate.operator.plan import session as plan
from tests.operator.cluster_rig import NAMESPACE, Box, World, hurry, judges, manifest, world
from tests.operator.pods import Json
from tests.operator.test_cluster import is_so, so

CONTAINERS = [
    {"name": "agent", "image": "agent:1", "command": ["agent"]},
    {"name": "tool", "image": "tool:1"},
]
REWARDS: dict[str, Json] = {
    "by exit code": {"source": "exitCode"},
    "by a verifier": {
        "source": "verifier",
        "verifier": {"container": {"image": "v", "command": ["judge"]}, "seconds": 30},
    },
}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


def job(reward: Json) -> Json:
    made: Json = manifest("a 1", agent={"template": {"spec": {"containers": CONTAINERS}}}, reward=reward)
    return made


def agents_end(box: Box, code: int = 0) -> None:
    """Its agent ended; the side-car runs on."""
    body = box.world.kube.objects["Pod", NAMESPACE, box.name]
    (main,) = body["status"]["containerStatuses"]
    begun = main["state"]["running"]
    states = [
        main | {"state": {"terminated": {"exitCode": code, "reason": "Completed", **begun}}},
        {"name": "tool", "state": {"running": begun}},
    ]
    box.world.kube.pod_status(box.name, NAMESPACE, {"containerStatuses": states})


def lingers(told: Callable[[Box], Awaitable[None]], code: int = 0) -> Callable[[Box], Awaitable[int]]:
    """An agent that ends, beside a side-car that runs on until its kubelet is `told` to end the pod."""

    async def run(box: Box) -> int:
        await box.ask("one")
        agents_end(box, code)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await told(box)
        return 0

    return run


@pytest.mark.parametrize("reward", REWARDS.values(), ids=REWARDS)
async def test_a_side_car_is_stopped_before_its_session_is_judged_and_sealed(up: World, reward: Json) -> None:
    stands: list[object] = []

    async def told(box: Box) -> None:
        (session,) = up.sessions().values()
        stands.append(session.get("status", {}).get("reward"))
        stands.extend(name for name in up.kube.named("Pod") if name != box.name)

    up.agents = [("-v", judges), ("shop", lingers(told))]
    up.operator_up()
    await up.kube.create(job(reward))
    await is_so(up, "Complete")
    assert stands == [None], "nothing was judged or sealed until then"
    (session,) = up.sessions().values()
    assert (session["status"]["reward"], session["status"].get("failureReason")) == (1.0, None)


@pytest.mark.parametrize("reward", REWARDS.values(), ids=REWARDS)
async def test_one_whose_node_does_not_answer_is_ended_by_force_and_the_agents_own_end_counts(
    up: World, reward: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FORCE_S", 0.3)

    async def told(box: Box) -> None:
        await so(lambda: box.name not in up.kube.named("Pod"), "it is deleted by force")

    up.agents = [("-v", judges), ("shop", lingers(told))]
    up.operator_up()
    await up.kube.create(job(reward))
    await is_so(up, "Complete")
    (session,) = up.sessions().values()
    assert (session["status"]["reward"], session["status"].get("failureReason")) == (1.0, None)


@pytest.mark.parametrize(("code", "ends", "why"), [(0, "Complete", None), (3, "Failed", "AgentExit")])
async def test_an_operator_that_comes_while_its_verifier_runs_judges_it_once(
    up: World, code: int, ends: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod is gone, by force: it must not count as evicted, or a side-car that does not end were a second try."""
    monkeypatch.setattr(plan, "FORCE_S", 0.3)
    judging, on = asyncio.Event(), asyncio.Event()

    async def told(box: Box) -> None:
        await so(lambda: box.name not in up.kube.named("Pod"), "it is deleted by force")

    async def slowly(box: Box) -> int:
        judging.set()
        await on.wait()
        return await judges(box)

    up.agents = [("-v", slowly), ("shop", lingers(told, code))]
    up.operator_up()
    await up.kube.create(job(REWARDS["by a verifier"]))
    await asyncio.wait_for(judging.wait(), 20)
    await up.operator_down()
    up.operator_up()
    on.set()
    await is_so(up, ends)
    (session,) = up.sessions().values()
    status = session["status"]
    assert (status["reward"], status.get("failureReason")) == (1.0, why)
    assert "agentEnd" not in status


async def test_an_operator_that_comes_meanwhile_goes_on_with_it(up: World) -> None:
    stopped, over = asyncio.Event(), asyncio.Event()

    async def told(box: Box) -> None:
        stopped.set()
        await over.wait()

    up.agents = [("shop", lingers(told))]
    up.operator_up()
    await up.kube.create(job(REWARDS["by exit code"]))
    await asyncio.wait_for(stopped.wait(), 20)
    await up.operator_down()
    up.operator_up()
    over.set()
    await is_so(up, "Complete")
    (session,) = up.sessions().values()
    assert (session["status"]["reward"], session["status"].get("failureReason")) == (1.0, None)
