"""A job in a queue of Kueue, whose part is scripted: what the operator makes, when, and what it tells Kueue.

The real Kueue is in tests/cluster/e2e/test_kueue.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import NotFound
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.labels import PRIORITY_CLASS, QUEUE
from sandgate.contract.names import workload_name
from sandgate.gateway.client import GatewayClient
from tests.operator.cluster_rig import NAMESPACE, SETTINGS, Box, World, follow, hurry, manifest, world
from tests.support.gateway import SECRET
from tests.support.waiting import until

Json = Any
WITHIN_S = 20.0
GPUS = {"metadata": {"name": "gpus"}, "spec": {"nodeLabels": {"pool": "gpus"}}}
KUEUE = {"apiVersion": "kueue.x-k8s.io/v1beta2"}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Nothing of the job stands before it is made."""
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        made.settings = replace(SETTINGS, kueue=True)
        await made.gateway_down("shop-gateway-0")
        made.kube.watchers.append(lambda kind, event, body: follow(made, kind, body))
        await made.kube.create({**KUEUE, "kind": "ResourceFlavor", **GPUS})
        yield made


async def submit(up: World, *tasks: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
    body = manifest(*tasks, **{"gateway": {"idleSeconds": 1}, **spec})
    body["metadata"]["labels"] = {QUEUE: "team"} if labels is None else labels
    await up.kube.create(body)


def workload(up: World) -> Json:
    name = workload_name("shop", up.job()["metadata"]["uid"])
    return up.kube.objects.get(("Workload", NAMESPACE, name))


def conditions(body: Json) -> dict[str, str]:
    return {one["type"]: one["status"] for one in body.get("status", {}).get("conditions", ())}


async def kueue_says(up: World, admission: Json, **says: tuple[str, str]) -> None:
    """`says`: condition -> (status, message)."""
    body = workload(up)
    told = {one["type"]: one for one in body.get("status", {}).get("conditions", ())}
    for kind, (value, message) in says.items():
        told[kind] = {"type": kind, "status": value, "reason": "Preempted", "message": message}
    status = {"conditions": list(told.values()), "admission": admission}
    await up.kube.patch_status("Workload", NAMESPACE, body["metadata"]["name"], {"status": status})


async def admit(up: World) -> None:
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    sets = workload(up)["spec"]["podSets"]
    given = [{"name": one["name"], "count": one["count"], "flavors": {"cpu": "gpus"}} for one in sets]
    admission = {"clusterQueue": "all", "podSetAssignments": given}
    await kueue_says(up, admission, QuotaReserved=("True", ""), Admitted=("True", ""), Evicted=("False", ""))


async def evict(up: World) -> None:
    admission = workload(up)["status"]["admission"]
    await kueue_says(up, admission, Evicted=("True", "to make room for another"))


async def eventually(so: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return so()

    await until(holds, what=what, within_s=WITHIN_S)


async def suspended(up: World, reason: str) -> str:
    """The message, once the job is suspended so."""
    await eventually(lambda: up.condition("Suspended") == ("True", reason), f"it is suspended: {reason}")
    found = up.job()["status"]["conditions"]
    return next(str(one["message"]) for one in found if one["type"] == "Suspended")


async def goes_on(up: World) -> None:
    await eventually(lambda: up.condition("Suspended")[0] == "False", "it is not suspended")


async def turns(up: World, session: str) -> int:
    """That its gateway keeps."""
    key = mint(SECRET, Key(Scope.ADMIN, job="shop"))
    async with GatewayClient(up.gateways["shop-gateway-0"].origin, key) as client:
        return (await client.get(session)).turns


def replicas(up: World) -> int | None:
    found = up.kube.objects.get(("StatefulSet", NAMESPACE, "shop-gateway"))
    return None if found is None else int(found["spec"]["replicas"])


async def test_a_job_that_waits_costs_nothing_and_says_what_kueue_says(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1")
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    await kueue_says(up, None, QuotaReserved=("False", "insufficient unused quota for cpu in flavor gpus"))
    words = "insufficient unused quota for cpu in flavor gpus"

    async def told() -> bool:
        return await suspended(up, "QueuedByKueue") == words

    await until(told, what="its words are Kueue's", within_s=WITHIN_S)
    assert up.job()["status"]["reason"] == "QueuedByKueue"
    assert not up.job()["status"].get("startTime")
    made = {kind for kind, _ in up.kube.made}
    assert made <= {"RolloutJob", "Workload", "ResourceFlavor", "Event"}
    assert up.kube.made["Workload", workload(up)["metadata"]["name"]] == 1


async def test_admitted_it_runs_where_its_flavor_is_and_gives_all_back_at_the_end(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1", "b 1", parallelism=2)
    await admit(up)
    await goes_on(up)
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")
    template = up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]["spec"]["template"]["spec"]
    assert template["nodeSelector"] == {"pool": "gpus"}
    await eventually(lambda: bool(workload(up)["status"].get("reclaimablePods")), "sandboxes are given back")
    assert {"name": "sandboxes", "count": 2} in workload(up)["status"]["reclaimablePods"]
    assert conditions(workload(up)).get("Finished") is None, "its gateways hold what no trainer has"
    assert await up.train() == 2
    await eventually(lambda: conditions(workload(up)).get("Finished") == "True", "its Workload is finished")
    assert replicas(up) == 0
    assert up.condition("Suspended")[0] == "False"


async def test_an_evicted_job_goes_and_comes_back_with_every_told_turn(up: World) -> None:
    gate = asyncio.Event()

    async def waits(box: Box) -> int:
        await box.ask("first")
        if box.name.endswith("-0-0"):  # its first attempt
            await gate.wait()
        return 0

    up.agents = [("shop-b", waits)]
    up.operator_up()
    await submit(up, "a 1", "b 1", parallelism=2)
    await admit(up)
    await eventually(lambda: len(up.told) == 2, "both agents were told a turn")
    told = list(up.told)
    await eventually(lambda: up.job()["status"]["ended"] == 1, "one session ended")
    await evict(up)
    assert await suspended(up, "QueuedByKueue") == "Preempted: to make room for another"
    await eventually(lambda: conditions(workload(up))["QuotaReserved"] == "False", "its quota is free")
    assert replicas(up) == 0
    running = [
        body["metadata"]["name"]
        for (kind, _, _), body in up.kube.objects.items()
        if kind == "Pod" and body["status"]["phase"] in ("Pending", "Running")
    ]
    assert running == []
    assert conditions(workload(up))["Requeued"] == "True"
    assert workload(up)["status"].get("admission") is None
    await admit(up)
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")
    for name, _ in told:
        assert await turns(up, name) == 1, f"the turn that {name} was told is kept"
    assert [name for name, _ in up.told if name.startswith("shop-a")] == [
        name for name, _ in told if name.startswith("shop-a")
    ], "what had ended is not done again"
    assert up.job()["status"]["ended"] == 2


async def test_an_operator_that_starts_anew_stops_and_doubles_nothing(up: World) -> None:
    gate = asyncio.Event()

    async def waits(box: Box) -> int:
        await box.ask("first")
        await gate.wait()
        return 0

    up.agents = [("shop-a", waits)]
    up.operator_up()
    await submit(up, "a 1")
    await admit(up)
    await eventually(lambda: len(up.told) == 1, "the agent was told a turn")
    before = workload(up)["metadata"]["uid"]
    await up.operator_down()
    up.operator_up()
    await eventually(lambda: up.condition("Progressing") == ("True", "Running"), "it runs")
    gate.set()
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")
    assert len(up.told) == 1
    assert workload(up)["metadata"]["uid"] == before
    assert {name: count for (kind, name), count in up.kube.made.items() if count > 1} == {}


async def test_without_kueue_it_does_not_run_and_says_so_and_runs_once_kueue_is_there(up: World) -> None:
    def no_kueue(verb: str, kind: str) -> None:
        if kind == "Workload":
            raise NotFound("404: page not found")

    up.kube.fail = no_kueue
    up.operator_up()
    await submit(up, "a 1")
    assert "install Kueue" in await suspended(up, "KueueMissing")
    assert replicas(up) is None
    assert ("create", "Event") in up.kube.writes
    up.kube.fail = lambda verb, kind: None
    await admit(up)
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")


async def test_an_operator_that_does_not_work_with_kueue_does_not_run_it_past_its_queue(up: World) -> None:
    up.settings = SETTINGS
    up.operator_up()
    await submit(up, "a 1")
    assert "kueue.enabled" in await suspended(up, "KueueMissing")
    assert replicas(up) is None
    assert not up.kube.named("Workload")


async def test_a_label_that_is_taken_away_takes_the_job_out_of_its_queue(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1")
    await suspended(up, "QueuedByKueue")
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"metadata": {"labels": {QUEUE: None}}})
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")
    assert workload(up) is None


async def test_a_label_that_was_taken_away_while_no_operator_ran_does_too(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1")
    await suspended(up, "QueuedByKueue")
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    await up.operator_down()
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"metadata": {"labels": {QUEUE: None}}})
    up.operator_up()
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")
    await eventually(lambda: workload(up) is None, "its Workload is gone")


async def test_a_manifest_that_changes_while_it_waits_asks_anew(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1", "b 1", "c 1", parallelism=1)
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"parallelism": 3}})

    def counts() -> dict[str, int]:
        return {one["name"]: one["count"] for one in workload(up)["spec"]["podSets"]}

    await eventually(lambda: counts() == {"gateways": 1, "sandboxes": 3}, "it asks for three sandboxes")
    assert up.kube.made["Workload", workload(up)["metadata"]["name"]] == 1


async def test_a_suspended_job_wants_no_quota_and_wants_it_again_when_it_goes_on(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1", suspend=True)
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    assert workload(up)["spec"]["active"] is False
    await suspended(up, "SpecSuspend")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await eventually(lambda: workload(up)["spec"]["active"], "its Workload is active")
    await admit(up)
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")


async def test_its_priority_is_its_classs_and_a_class_that_is_not_there_is_said(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1", labels={QUEUE: "team", PRIORITY_CLASS: "high"})
    await eventually(lambda: workload(up) is None and "WorkloadPriorityClass high" in said(up), "it is said")
    await up.kube.create({**KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 7})
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"parallelism": 3}})
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    assert workload(up)["spec"]["priority"] == 7


def said(up: World) -> str:
    found = (up.job().get("status") or {}).get("conditions", ())
    return next((str(one["message"]) for one in found if one["type"] == "Suspended"), "")


async def test_a_job_that_another_runs_is_left_alone(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", name="theirs", managedBy="example.com/other"))
    nothing_of_ours = {"groupSize": "none of our business"}
    await up.kube.create(manifest("a 1", name="wrong", managedBy="example.com/other", **nothing_of_ours))
    await submit(up, "a 1", managedBy="sandgate.dev/operator")
    await admit(up)
    await eventually(lambda: up.condition("Complete")[0] == "True", "the job that is ours is complete")
    assert "status" not in up.job("theirs")
    assert "status" not in up.job("wrong")
    assert len(up.kube.named("Workload")) == 1


async def test_a_job_that_is_deleted_takes_its_workload_along(up: World) -> None:
    up.operator_up()
    await submit(up, "a 1")
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    await up.kube.delete("RolloutJob", NAMESPACE, "shop")
    await eventually(lambda: not up.kube.named("Workload"), "its Workload is gone")


async def switched(up: World, *, suspend: bool) -> None:
    """A user's word, and what the operator made of it."""
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": suspend}})
    reason = "SpecSuspend" if suspend else "QueuedByKueue"
    await suspended(up, reason)
    noted = "sandgate.dev/stopped"
    await eventually(lambda: (noted in workload(up)["metadata"]["annotations"]) is suspend, "it is told")


@pytest.mark.parametrize("again", [False, True], ids=["once", "and once more"])
async def test_what_an_administrator_stopped_a_user_does_not_start(up: World, *, again: bool) -> None:
    up.operator_up()
    await submit(up, "a 1")
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    name = workload(up)["metadata"]["name"]
    await up.kube.patch("Workload", NAMESPACE, name, {"spec": {"active": False}})
    for _ in range(1 + again):
        await switched(up, suspend=True)
        await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"parallelism": 3 + again}})
        await switched(up, suspend=False)
        assert workload(up)["spec"]["active"] is False
    await up.kube.patch("Workload", NAMESPACE, name, {"spec": {"active": True}})
    await admit(up)
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")


async def test_what_a_user_stopped_an_administrator_does_not_start(up: World) -> None:
    """A job that is suspended wants no quota; its user's word then still counts when he lets go on."""
    up.operator_up()
    await submit(up, "a 1")
    await eventually(lambda: workload(up) is not None, "a Workload is there")
    name = workload(up)["metadata"]["name"]
    await switched(up, suspend=True)
    await up.kube.patch("Workload", NAMESPACE, name, {"spec": {"active": True}})
    await eventually(lambda: workload(up)["spec"]["active"] is False, "it is stopped again")
    await switched(up, suspend=False)
    assert workload(up)["spec"]["active"] is True


def cpu(body: Json) -> str:
    return str(body["spec"]["containers"][0]["resources"]["requests"]["cpu"])


async def test_an_upgrade_that_gives_sandboxes_more_stops_no_job_and_starts_nothing_larger(
    up: World,
) -> None:
    gate = asyncio.Event()

    async def waits(box: Box) -> int:
        await box.ask("first")
        await gate.wait()
        return 0

    up.agents = [("shop-", waits)]
    up.operator_up()
    await submit(up, "a 1", "b 1", parallelism=1)
    await admit(up)
    await eventually(lambda: len(up.told) == 1, "one agent runs")
    template = up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]["spec"]["template"]
    made = workload(up)["metadata"]["uid"]
    await up.operator_down()
    sizes: list[str] = []
    up.kube.watchers.append(
        lambda kind, event, body: sizes.append(cpu(body)) if (kind, event) == ("Pod", "ADDED") else None
    )
    more = {"requests": {"cpu": "9"}}
    up.settings = replace(up.settings, sandbox_resources=more, gateway_resources=more)
    up.operator_up()
    await eventually(lambda: up.condition("Progressing") == ("True", "Running"), "it runs on")
    gate.set()
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")
    assert sizes == [SETTINGS.sandbox_resources["requests"]["cpu"]]
    assert up.kube.objects["StatefulSet", NAMESPACE, "shop-gateway"]["spec"]["template"] == template
    assert workload(up)["metadata"]["uid"] == made


async def test_a_job_that_got_larger_pods_while_kueue_was_away_waits_for_quota_for_them(up: World) -> None:
    """Kueue took back nothing while the job was suspended, and gave nothing for what it asks now."""
    gate = asyncio.Event()

    async def waits(box: Box) -> int:
        await box.ask("first")
        await gate.wait()
        return 0

    up.agents = [("shop-", waits)]
    up.operator_up()
    await submit(up, "a 1", gateway={"idleSeconds": 1_000_000})
    await admit(up)
    await eventually(lambda: len(up.told) == 1, "its agent runs")
    before = workload(up)["metadata"]["uid"]
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await suspended(up, "SpecSuspend")
    container = {"name": "agent", "image": "agent:1", "command": ["agent"]}
    large = {"spec": {"containers": [{**container, "resources": {"requests": {"cpu": "8"}}}]}}
    changes = {"suspend": False, "agent": {"template": large}}
    gate.set()
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": changes})
    await eventually(lambda: workload(up) is not None and workload(up)["metadata"]["uid"] != before, "anew")
    asked = next(one for one in workload(up)["spec"]["podSets"] if one["name"] == "sandboxes")
    assert cpu(asked["template"]) == "8"
    sizes = [cpu(body) for (kind, _, _), body in up.kube.objects.items() if kind == "Pod"]
    assert "8" not in sizes
    await admit(up)
    await eventually(lambda: up.condition("Complete")[0] == "True", "it is complete")
