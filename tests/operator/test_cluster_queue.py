"""A job whose tasks a trainer pushes, in a cluster with real gateways: nothing is lost and nothing is run twice,
whatever happens to the operator and to a gateway meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Overloaded
from sandgate.contract.job import Task
from sandgate.contract.keys import Key, Scope, mint
from sandgate.gateway.client import Retries
from sandgate.gateway.engine.scripted.script import Gate, Reply
from sandgate.trainer.client.fleet import AsyncFleet, fleet
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.test_cluster import is_so, so
from tests.support.gateway import SECRET
from tests.support.waiting import until

JOB = "shop"
KEY = mint(SECRET, Key(Scope.TRAINER, job=JOB))
CAPACITY = 2
TASKS = [Task(uid=f"q{number}", prompt=f"buy {number}") for number in range(16)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@asynccontextmanager
async def trainer(up: World) -> AsyncIterator[AsyncFleet]:
    """Of the gateways as they are now. It gives up at the first 429."""
    origins = {name: one.origin for name, one in up.gateways.items()}
    async with fleet(origins, KEY, job=JOB, retries=Retries(attempts=1)) as found:
        yield found


async def begin(up: World) -> None:
    queue = {"queue": {"capacity": CAPACITY}}
    up.operator_up()
    await up.kube.create(manifest("x", tasks=queue, gateway={"replicas": len(up.gateways)}, groupSize=2))
    await is_so(up, "Ready")


async def push(up: World, tasks: Sequence[Task]) -> int:
    """One after another, as places come free; how often there was none."""
    full = 0

    async def taken(task: Task) -> bool:
        nonlocal full
        try:
            async with trainer(up) as them:
                await them.push_tasks([task])
        except Overloaded:
            full += 1
            return False
        return True

    for task in tasks:
        await until(lambda task=task: taken(task), what=f"{task.uid} is taken")  # type: ignore[misc]
    return full


def ran(up: World) -> Counter[str]:
    """Turns told per task."""
    return Counter(up.sessions()[name]["spec"]["taskUid"] for name, _ in up.told)


async def test_what_a_trainer_pushes_is_run_once_whatever_dies(tmp_path: Path) -> None:
    async with world(tmp_path, gateways=2, limits={"tasks": CAPACITY}) as up:
        await begin(up)
        full = await push(up, TASKS[:6])
        await up.operator_down()
        async with trainer(up) as them:
            with pytest.raises(Overloaded, match="limit 2"):  # nobody is there who would work them off
                await them.push_tasks(TASKS[6:])
        up.operator_up()
        full += await push(up, TASKS[6:10])
        await up.gateway_down("shop-gateway-0")
        await up.gateway_up("shop-gateway-0")
        full += await push(up, TASKS[10:])
        await up.operator_down()
        up.operator_up()
        await push(up, TASKS)  # a trainer that restarts does not know what it has pushed
        assert full, "the queue was never full"
        await so(lambda: len(ran(up)) == len(TASKS), "all were run")
        assert up.condition("Complete")[0] == "False"
        async with trainer(up) as them:
            await them.push_tasks([], last=True)
        await is_so(up, "Complete")
        assert ran(up) == {task.uid: 2 for task in TASKS}
        assert sum(one.generations for one in up.engines.values()) <= 2 * len(TASKS)
        said = up.job()["status"]
        assert (said["sessions"], said["ended"]) == (2 * len(TASKS), 2 * len(TASKS))
        assert await up.train() == 2 * len(TASKS)
        assert up.broken == []


async def test_a_finished_task_that_is_pushed_again_is_said_and_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, gateways=1) as up:
        await begin(up)
        await push(up, TASKS[:1])
        await so(lambda: up.job()["status"].get("ended") == 2, "it ran")
        assert await up.train() == 2
        await until(lambda: _freed(up), what="the operator knows that it has finished")
        await so(lambda: up.job()["status"].get("committed") == 2, "and that a trainer has it")
        assert not _repeated(up), "so far all is well"
        async with trainer(up) as them:
            assert await them.push_tasks(TASKS[:2]) == ("q0",)
        assert "1 pushed tasks had finished before, and do not run anew (q0)" in caplog.text
        await so(lambda: bool(_repeated(up)), "people are told")
        (event,) = _repeated(up)
        assert event["type"] == "Warning"
        assert event["message"].startswith(
            "1 pushed tasks had finished before, and do not run anew (q0): each group was given already, or is offered"
        )
        await so(lambda: ran(up) == {"q0": 2, "q1": 2}, "the other one runs")
        assert f"job shop: {event['message']}" in caplog.text
        for number in (2, 3):  # what comes next shows that the operator has looked
            async with trainer(up) as them:
                await them.push_tasks([TASKS[0], TASKS[number]])
            await so(lambda number=number: ran(up)[f"q{number}"] == 2, "it runs")  # type: ignore[misc]
        assert caplog.text.count("job shop: 1 pushed tasks had finished") == len(_repeated(up)) == 1, (
            "it is told once"
        )


async def test_what_finished_and_no_trainer_has_yet_is_pushed_again_and_nobody_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that died before it leased anything pushes its tasks anew."""
    async with world(tmp_path, gateways=1) as up:
        await begin(up)
        await push(up, TASKS[:1])
        await until(lambda: _freed(up), what="the operator knows that it has finished")
        async with trainer(up) as them:
            assert await them.push_tasks(TASKS[:2]) == ()
        await so(lambda: ran(up) == {"q0": 2, "q1": 2}, "the other one runs")
        await until(lambda: _freed(up), what="that has finished, too")
        assert await up.train() == 4
        assert "had finished" not in caplog.text
        assert not _repeated(up)


async def _freed(up: World) -> bool:
    async with trainer(up) as them:
        (said,) = (await them.status()).values()
    return not said["tasks"]["held"]


def _repeated(up: World) -> list[Any]:
    events = (up.kube.objects["Event", NAMESPACE, name] for name in up.kube.named("Event"))
    return [one for one in events if one["reason"] == "TasksRepeated"]


async def test_the_end_waits_for_what_every_gateway_holds(tmp_path: Path) -> None:
    """The first gateway says that no more will come before the third was asked what has come."""
    async with world(tmp_path, gateways=3) as up:
        await begin(up)
        await up.operator_down()
        async with trainer(up) as them:
            await them.clients["shop-gateway-2"].push_tasks(TASKS[:1], job=JOB)
            await them.clients["shop-gateway-0"].push_tasks([], last=True, job=JOB)
        up.operator_up()
        await is_so(up, "Complete")
        assert ran(up) == {"q0": 2}


async def test_a_gateway_that_lost_its_volume_loses_no_task_of_the_others(tmp_path: Path) -> None:
    """All is looked at anew then; what was taken from a queue is taken again, and what runs is not begun again."""
    gate = Gate()
    script = lambda ids, number: Reply("done", gate=gate, gate_at=1)  # noqa: E731
    async with world(tmp_path, script, gateways=2) as up:
        await begin(up)
        async with trainer(up) as them:
            await them.clients["shop-gateway-0"].push_tasks(TASKS[:2], job=JOB)
        await so(lambda: len(up.pods) == 4, "they run")
        await up.gateway_down("shop-gateway-1")
        await up.gateway_up("shop-gateway-1", empty=True)
        async with trainer(up) as them:
            await them.clients["shop-gateway-1"].push_tasks(TASKS[2:4], last=True, job=JOB)
        gate.open.set()
        await is_so(up, "Complete")
        assert up.job()["status"]["sessions"] == 8
        assert set(ran(up)) == {"q0", "q1", "q2", "q3"}
        assert await up.train() == 8
