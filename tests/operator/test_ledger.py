"""What is done stays done: after its AgentSessions were collected, and its gateway lost its volume."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandgate.operator.cluster import finished_tasks
from sandgate.operator.settings import Settings
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.support.waiting import until


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    monkeypatch.setattr(finished_tasks, "PART", 3)
    async with world(tmp_path) as made:
        made.settings = Settings(history=3)
        yield made


async def so(condition: Callable[[], object], what: str) -> None:
    async def holds() -> bool:
        return bool(condition())

    await until(holds, what=what, within_s=60.0)


def entries(up: World) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in up.kube.named("ConfigMap"):
        if "-done-" in name:
            found |= dict(finished_tasks.parse(up.kube.objects["ConfigMap", NAMESPACE, name]["data"]))
    return found


async def done(up: World, count: int) -> None:
    """So many tasks of two samples are committed, and all but three AgentSessions are gone."""
    up.operator_up()
    await up.kube.create(
        manifest(
            *(f"t{index} x" for index in range(count)),
            "late 1",
            groupSize=2,
            tasks={"configMap": {"name": "set"}},
        )
    )
    lines = "".join(f'{{"uid": "t{index}", "prompt": "x"}}\n' for index in range(count))
    meta = {"name": "set", "namespace": NAMESPACE}
    await up.kube.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"tasks.jsonl": lines}}
    )
    await so(lambda: (up.job().get("status") or {}).get("ended") == 2 * count, "all have ended")
    assert await up.train() == 2 * count
    await so(lambda: len(up.sessions()) == 3, "three are left")


@pytest.mark.parametrize("whose", ["the operator that saw it", "a new operator"])
async def test_tasks_that_are_done_are_not_rolled_out_again(up: World, whose: str) -> None:
    await done(up, 5)
    before = len(up.told)
    assert before == 10
    assert sum(entries(up).values()) == 8, (
        "four whole tasks, and the fifth that has lost one of its two records"
    )
    if whose == "a new operator":
        await up.operator_down()
    await up.gateway_down("shop-gateway-0")
    await up.gateway_up("shop-gateway-0", empty=True)
    if whose == "a new operator":
        up.operator_up()
    held = up.hub
    assert held is not None
    run = held.runs[up.job()["metadata"]["uid"]]
    await so(lambda: run.observed.loaded and len(run.observed.settled) == 5, "all tasks are known to be done")
    await so(lambda: up.job()["status"]["gateways"] == 1, "the gateway takes sessions again")
    assert len(up.told) == before
    status = up.job()["status"]
    assert (status["ended"], status["committed"], status["sessions"], status["failed"]) == (10, 10, 10, 0)


async def test_what_cannot_be_remembered_is_not_collected(up: World) -> None:
    def fail(verb: str, kind: str) -> None:
        if (verb, kind) == ("patch", "ConfigMap"):
            raise OSError("no")

    up.kube.fail = fail
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", "c 3", "d 4", "e 5"))
    await so(lambda: (up.job().get("status") or {}).get("ended") == 5, "all have ended")
    await up.train()
    await so(lambda: up.job()["status"]["committed"] == 5, "all are committed")
    await so(lambda: "shop-done-0" in up.kube.named("ConfigMap"), "it tries")
    assert len(up.sessions()) == 5
    up.kube.fail = lambda verb, kind: None
    await so(lambda: len(up.sessions()) == 3, "then they go")
    assert sum(entries(up).values()) == 2


async def train(up: World, committed: int) -> None:
    await so(lambda: (up.job().get("status") or {}).get("ended") == committed, "all have ended")
    await up.train()
    await so(lambda: up.job()["status"]["committed"] == committed, "all are committed")


@pytest.mark.parametrize("back", [False, True], ids=["it stays away", "another operator made it meanwhile"])
async def test_a_map_that_somebody_deleted_is_made_anew_with_what_was_in_it(up: World, back: bool) -> None:
    up.settings = Settings(history=0)
    up.operator_up()
    await up.kube.create(manifest("a 1", tasks={"queue": {}}))

    async def roll_out(*uids: str) -> None:
        tasks = [{"uid": uid, "prompt": "x"} for uid in uids]
        await up.gateways["shop-gateway-0"].admin.post("/v1/tasks", json={"job": "shop", "tasks": tasks})

    await roll_out("a")
    await train(up, 1)
    await so(lambda: not up.sessions(), "its record is collected")
    before, place = entries(up), ("ConfigMap", NAMESPACE, "shop-done-0")
    assert len(before) == 1
    gone = up.kube.objects.pop(place)

    def made(verb: str, kind: str) -> None:
        if back and (verb, kind) == ("create", "ConfigMap"):
            up.kube.objects.setdefault(place, gone | {"data": {}})

    up.kube.fail = made
    await roll_out("b", "c")
    await train(up, 3)
    await so(lambda: not up.sessions(), "collection goes on")
    assert len(entries(up)) == 3
    assert entries(up).items() >= before.items(), "what was done before is still known"


async def test_a_task_that_failed_for_good_stays_so(up: World) -> None:
    up.settings = Settings(history=0)
    up.operator_up()

    async def lost(box: object) -> int:
        await up.kube.delete("Pod", NAMESPACE, getattr(box, "name", ""), grace_s=0)
        return 1

    up.agents = [("shop", lost)]
    await up.kube.create(manifest("a 1", group={"retry": {"infra": 0}}, tasks={"queue": {}}))
    await up.gateways["shop-gateway-0"].admin.post(
        "/v1/tasks", json={"job": "shop", "tasks": [{"uid": "a", "prompt": "1"}]}
    )
    await so(lambda: (up.job().get("status") or {}).get("failed") == 1, "it failed")
    await so(lambda: not up.sessions(), "its record is gone")
    assert list(entries(up).values()) == [0]


def test_an_entry_that_somebody_spoilt_is_left_out() -> None:
    assert dict(finished_tasks.parse({"x": "aaa=2 bbb ccc=x ddd=0"})) == {"aaa": 2, "ddd": 0}
