"""The cluster driver whole: real gateways, pods that are coroutines, an API server in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Forbidden, InvalidBody, Unavailable
from sandgate.operator.cluster import garbage_collection, pod_events
from sandgate.operator.settings import Settings
from tests.operator.cluster_rig import NAMESPACE, Box, World, buys, engine_pod, hurry, manifest, world
from tests.support.waiting import paced, until

VERIFIER = {"source": "verifier", "verifier": {"container": {"image": "v:1"}}}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


@pytest.fixture
async def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path, gateways=2) as made:
        yield made


async def so(condition: Callable[[], object], what: str, within_s: float = 20.0, up: Any = None) -> None:
    async def holds() -> bool:
        return bool(condition())

    try:
        await until(holds, what=what, within_s=within_s)
    except AssertionError:
        if up is not None:
            print(
                json.dumps(up.kube.objects.get(("RolloutJob", NAMESPACE, "shop"), {}).get("status"), indent=1)
            )
        raise


async def is_so(up: World, kind: str, name: str = "shop", reason: str = "") -> None:
    """The job's condition is True (and has that reason)."""

    def holds() -> bool:
        status, why = up.condition(kind, name)
        return status == "True" and why.startswith(reason)

    await so(holds, f"{name} is {kind} {reason}")


def attempts(up: World) -> dict[tuple[str, int, int], str]:
    """(task, sample, attempt) -> its failure reason, of all AgentSessions."""
    found = {}
    for one in up.sessions().values():
        spec = one["spec"]
        key = spec["taskUid"], spec["sampleIndex"], spec["attempt"]
        found[key] = (one.get("status") or {}).get("failureReason", "")
    return found


def conditions(body: Any) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in body["status"]["conditions"]}


class Slow:
    """An agent that has its first turn, then waits to be let go (or stopped)."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, box: Box) -> int:
        await box.ask("one")
        self.reached.set()
        await self.go.wait()
        return 0


async def crashes(box: Box) -> int:
    await box.ask("one")
    return 3


async def test_a_job_runs_commits_and_is_collected(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", groupSize=2, reward=VERIFIER))
    await is_so(up, "Complete")
    assert up.job()["status"]["running"] == 0
    assert await up.train() == 4
    await so(lambda: up.job()["status"]["committed"] == 4, "all is committed")
    await so(lambda: not up.kube.named("Pod"), "pods are collected")
    await so(lambda: not [one for one in up.kube.named("Secret") if "-keys-" in one], "keys are collected")
    assert up.kube.named("Secret") == ["shop-signing", "shop-trainer"]
    for one in up.sessions().values():
        assert {kind for kind, (status, _) in conditions(one).items() if status == "True"} == {
            "Scheduled",
            "Finished",
            "Finalized",
            "TrajectoryCommitted",
        }
        assert one["status"]["reward"] == 1.0
        assert one["status"]["turns"] == 1
        assert one["status"]["podName"] == one["metadata"]["name"]
    assert max(up.kube.touched.values()) <= 5
    secrets = up.kube.writes["create", "Secret"] - 1
    assert secrets == 2, "one Secret of keys for the siblings of a group"
    assert set(up.kube.made.values()) == {1}


async def test_infra_failures_are_tried_again_and_an_agents_own_are_not(up: World) -> None:
    up.agents = [("shop-lost", _evicted_once(up)), ("shop-bad", crashes)]
    up.operator_up()
    await up.kube.create(manifest("lost 1", "bad 2"))
    await is_so(up, "Complete")
    assert attempts(up) == {("lost", 0, 0): "Evicted", ("lost", 0, 1): "", ("bad", 0, 0): "AgentExit"}
    lost = next(one for one in up.sessions().values() if one["status"].get("failureReason") == "Evicted")
    assert "reward" not in lost["status"]
    assert lost["status"]["failureClass"] == "infra"
    assert (up.job()["status"]["failed"], up.job()["status"]["retries"]) == (1, 1)


PSA = '403: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged'


@pytest.mark.parametrize("error", [Forbidden(PSA), InvalidBody('422: Pod "x" is invalid: no such field')])
async def test_a_job_whose_pods_are_refused_fails_in_its_words_and_makes_one_group(
    up: World, error: Exception
) -> None:
    tries = 0

    def refuse(verb: str, kind: str) -> None:
        nonlocal tries
        if (verb, kind) == ("create", "Pod"):
            tries += 1
            raise error

    up.kube.fail = refuse
    up.operator_up()
    await up.kube.create(manifest(*(f"t{number} 1" for number in range(20)), groupSize=4, parallelism=80))
    await is_so(up, "Failed")
    (failed,) = [one for one in up.job()["status"]["conditions"] if one["type"] == "Failed"]
    assert (failed["reason"], failed["message"]) == ("PodRefused", f"agent: {error}")
    assert up.condition("Complete")[0] == "False"
    assert tries <= 4
    assert len(up.sessions()) <= 4


async def test_a_full_quota_is_waited_for(up: World) -> None:
    room, words = False, '403: pods "x" is forbidden: exceeded quota: pods'

    def full(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod") and not room:
            raise Forbidden(words)

    up.kube.fail = full
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", groupSize=2))
    await so(lambda: where(up) == ("PodsWait", 0), "it says that pods wait, and counts none as running")
    assert words in str(up.job()["status"]["conditions"])
    assert len(up.sessions()) == 2, "one group waits, whatever the job's parallelism"
    room = True
    await is_so(up, "Complete")
    assert attempts(up).keys() == {(uid, sample, 0) for uid in "ab" for sample in (0, 1)}, "none was used up"


async def test_a_pod_that_is_made_for_long_says_what_its_events_say(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_events, "LOOK_S", 0.05)
    monkeypatch.setattr(pod_events, "AFTER_S", 0.0)
    up.nodes = False
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", groupSize=2))
    await so(lambda: len(up.kube.named("Pod")) == 2, "the first group's pods are made")
    words = 'MountVolume.SetUp failed for volume "keys": secret "x" not found'
    for name in up.kube.named("Pod"):
        uid = (await up.kube.get("Pod", NAMESPACE, name))["metadata"]["uid"]
        await up.kube.create(
            {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.1", "namespace": NAMESPACE},
             "involvedObject": {"uid": uid}, "type": "Warning", "reason": "FailedMount", "message": words}
        )  # fmt: skip
    await so(lambda: where(up) == ("PodsWait", 0), "it says that pods wait")
    assert f"FailedMount: {words}" in str(up.job()["status"]["conditions"])
    await so(lambda: "PodsWait" in told(up), "in an Event too")
    assert len(up.kube.named("Pod")) == 2, "and no other group was begun"


def told(up: World) -> set[str]:
    """Reasons of the job's Events."""
    found = [up.kube.objects["Event", NAMESPACE, name] for name in up.kube.named("Event")]
    return {one["reason"] for one in found if one["involvedObject"].get("name") == "shop"}


def where(up: World) -> tuple[str, int]:
    """Where the job stands, in a word, and how many agents run."""
    status = up.job().get("status") or {}
    return status.get("reason", ""), status.get("running", -1)


def _evicted_once(up: World) -> Any:
    async def run(box: Box) -> int:
        if box.name.endswith("-0"):
            await up.kube.delete("Pod", NAMESPACE, box.name)
            await asyncio.Event().wait()
        return await buys(box)

    return run


async def test_a_job_that_cannot_run_says_so_and_the_others_run(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", name="wrong", tasks={"file": "/data/tasks.jsonl"}))
    await up.kube.create(manifest("a 1", name="worse", groupSize="many"))
    await up.kube.create(manifest("a 1"))
    await is_so(up, "Complete")
    await is_so(up, "Failed", "wrong", "BadManifest")
    await is_so(up, "Failed", "worse", "BadManifest")
    (said,) = [one for one in up.job("wrong")["status"]["conditions"] if one["type"] == "Ready"]
    assert (said["status"], "spec.tasks.file" in said["message"]) == ("False", True)
    assert all("shop" in name for name in up.kube.named("StatefulSet"))


async def test_a_job_that_was_refused_runs_when_it_is_mended(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", agent={"backend": "Process", "template": _template()}))
    await is_so(up, "Failed")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"agent": {"backend": "Pod"}}})
    await is_so(up, "Complete")
    assert up.condition("Failed")[0] == "False"


def _template() -> Any:
    return {"spec": {"containers": [{"image": "x", "command": ["agent"]}]}}


async def test_nothing_is_made_for_a_job_that_was_created_suspended_and_it_runs_when_it_is_let_go(
    up: World,
) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", suspend=True, engine={"managed": {"image": "e:1", "gpus": 0}}))
    await is_so(up, "Suspended", reason="SpecSuspend")
    assert (up.kube.named("StatefulSet"), up.kube.named("Deployment"), up.kube.named("Pod")) == ([], [], [])
    assert "startTime" not in up.job()["status"] or not up.job()["status"]["startTime"]
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await so(lambda: up.kube.named("Deployment"), "the engine is made")
    await is_so(up, "Progressing")


async def test_a_suspended_job_stops_lets_its_engine_go_and_resumes(up: World) -> None:
    slow = Slow()
    up.agents = [("-0-0", slow)]
    up.operator_up()
    await up.kube.create(manifest("a 1", engine={"managed": {"image": "e:1", "gpus": 0}}))
    await engine_pod(up)
    await asyncio.wait_for(slow.reached.wait(), 20)
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await is_so(up, "Suspended", reason="SpecSuspend")
    await so(lambda: up.job()["status"]["running"] == 0, "nothing runs")
    assert up.kube.objects["Deployment", NAMESPACE, "shop-engine"]["spec"]["replicas"] == 0
    assert attempts(up) == {("a", 0, 0): "Aborted"}
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await is_so(up, "Complete")
    assert attempts(up) == {("a", 0, 0): "Aborted", ("a", 0, 1): ""}
    assert up.job()["status"]["failed"] == 0


async def test_gateways_are_told_where_engines_are(two: World) -> None:
    two.operator_up()
    await two.kube.create(
        manifest("a 1", engine={"managed": {"image": "e:1", "gpus": 0}}, gateway={"replicas": 2})
    )
    await so(lambda: all(one.urls == () for one in two.engines.values()), "both know that there is none")
    await so(lambda: two.condition("Ready") == ("False", "NoEngine"), "a job without an engine is not ready")
    await engine_pod(two)
    await so(
        lambda: all(one.urls == ("http://10.1.2.3:8000",) for one in two.engines.values()),
        "both know the engine",
    )
    await so(lambda: two.condition("Ready")[0] == "True", "it is ready")
    on = {"http://10.1.2.3:8000": "gpu-1"}

    def told() -> bool:
        return all(one.core.turns.nodes.of == on for one in two.gateways.values())

    await so(told, "and on which node it is")
    await two.gateway_down("shop-gateway-0")
    await two.gateway_up("shop-gateway-0")
    await so(told, "one that starts anew is told again")
    await two.kube.delete("Pod", NAMESPACE, "shop-engine-x", grace_s=0)
    await so(lambda: all(one.urls == () for one in two.engines.values()), "both know that it is gone")


async def test_groups_are_spread_and_siblings_are_together(two: World) -> None:
    two.operator_up()
    await two.kube.create(manifest("a 1", "b 2", "c 3", "d 4", groupSize=2, gateway={"replicas": 2}))
    await is_so(two, "Complete")
    homes: dict[str, set[str]] = {}
    for one in two.sessions().values():
        homes.setdefault(one["spec"]["taskUid"], set()).add(one["spec"]["gateway"])
    assert all(len(found) == 1 for found in homes.values())
    assert {name for found in homes.values() for name in found} == {"shop-gateway-0", "shop-gateway-1"}


async def test_an_agentsession_that_a_user_deletes_is_tried_again(up: World) -> None:
    slow = Slow()
    up.agents = [("-0-0", slow)]
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await asyncio.wait_for(slow.reached.wait(), 20)
    (name,) = up.sessions()
    await up.kube.delete("AgentSession", NAMESPACE, name)
    await is_so(up, "Complete")
    assert attempts(up) == {("a", 0, 1): ""}
    said = await up.gateways["shop-gateway-0"].admin.get(f"/v1/sessions/{name}")
    assert said.json()["state"] == "aborted"
    await so(lambda: name not in up.kube.named("Pod"), "its pod went with it")


async def test_a_job_that_is_deleted_takes_everything_along_and_no_call_is_made_for_it(up: World) -> None:
    slow = Slow()
    up.agents = [("-0-0", slow)]
    hub = up.operator_up()
    await up.kube.create(manifest("a 1"))
    await asyncio.wait_for(slow.reached.wait(), 20)
    await up.kube.delete("RolloutJob", NAMESPACE, "shop")
    await so(lambda: not up.kube.named("Pod") and not up.sessions(), "everything went")
    assert hub.runs == {}
    assert up.kube.named("Secret") == []
    before = sum(up.kube.writes.values())
    await hub.sweep()
    assert sum(up.kube.writes.values()) == before


async def test_a_deletion_that_no_watch_told_is_noticed_by_a_sweep(up: World) -> None:
    slow = Slow()
    up.agents = [("-0-0", slow)]
    hub = up.operator_up()
    await up.kube.create(manifest("a 1"))
    await asyncio.wait_for(slow.reached.wait(), 20)
    up.deaf = True
    (name,) = up.sessions()
    await up.kube.delete("Pod", NAMESPACE, name, grace_s=0)
    up.relist()
    await hub.sweep()
    await is_so(up, "Complete")
    assert attempts(up) == {("a", 0, 0): "Evicted", ("a", 0, 1): ""}


async def test_an_agent_that_fails_while_its_gateway_is_away_is_not_to_blame(up: World) -> None:
    slow = Slow()

    async def asks_again(box: Box) -> int:
        await slow(box)
        await box.ask("two")
        return 0

    up.agents = [("-0-0", asks_again)]
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    await asyncio.wait_for(slow.reached.wait(), 20)
    await up.gateway_down("shop-gateway-0")
    slow.go.set()
    await so(lambda: not up.pods, "the agent has ended")
    await up.gateway_up("shop-gateway-0")
    await is_so(up, "Complete")
    assert attempts(up) == {("a", 0, 0): "GatewayLost", ("a", 0, 1): ""}


async def test_a_gateway_that_lost_its_volume_costs_an_attempt_and_no_sample(up: World) -> None:
    slow = Slow()
    up.agents = [("shop-b", slow)]
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2"))
    await asyncio.wait_for(slow.reached.wait(), 20)
    await so(lambda: up.job()["status"]["ended"] == 1, "the other one has ended")
    await up.gateway_down("shop-gateway-0")
    slow.go.set()
    await up.gateway_up("shop-gateway-0", empty=True)
    await is_so(up, "Complete")
    assert attempts(up) == {
        ("a", 0, 0): "GatewayLost",
        ("a", 0, 1): "",
        ("b", 0, 0): "GatewayLost",
        ("b", 0, 1): "",
    }
    assert await up.train() == 2
    await so(lambda: up.job()["status"]["committed"] == 2, "the new ones are committed")


@asynccontextmanager
async def heard(up: World) -> AsyncIterator[None]:
    """The trainer gives signs of life."""

    async def lives() -> None:
        async with up.trainer("shop-gateway-0") as trainer:
            async for _ in paced():
                await trainer.heartbeat()

    living = asyncio.ensure_future(lives())
    try:
        yield
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


async def test_a_silent_trainer_suspends_the_job_until_it_is_heard(up: World) -> None:
    slow = Slow()
    up.agents = [("-0-0", slow)]
    up.operator_up()
    await up.kube.create(manifest("a 1", trainer={"heartbeatSeconds": 2, "collectSeconds": 60}))
    async with heard(up):
        await asyncio.wait_for(slow.reached.wait(), 20)
    await is_so(up, "Suspended", reason="TrainerSilent")
    await so(lambda: attempts(up) == {("a", 0, 0): "Aborted"}, "what ran was stopped")
    async with heard(up):
        await is_so(up, "Complete")
    assert attempts(up) == {("a", 0, 0): "Aborted", ("a", 0, 1): ""}


async def test_a_trainer_that_is_gone_fails_the_job_and_its_ttl_collects_it(up: World) -> None:
    slow = Slow()
    up.agents = [("shop", slow)]
    up.operator_up()
    trainer = {"heartbeatSeconds": 2, "collectSeconds": 3}
    await up.kube.create(manifest("a 1", trainer=trainer, ttlSecondsAfterFinished=0))
    await so(lambda: not up.kube.named("RolloutJob"), "the job is collected", 20.0, up)
    assert not up.kube.named("Pod")


async def test_past_its_deadline_a_job_fails(up: World) -> None:
    slow = Slow()
    up.agents = [("shop", slow)]
    up.operator_up()
    await up.kube.create(manifest("a 1", activeDeadlineSeconds=6))
    await asyncio.wait_for(slow.reached.wait(), 20)
    await is_so(up, "Failed", reason="DeadlineExceeded")
    assert attempts(up) == {("a", 0, 0): "Aborted"}


async def test_stragglers_are_cut_after_the_quorum(up: World) -> None:
    slow = Slow()
    up.agents = [("-2-0", slow)]
    up.operator_up()
    group = {"quorum": 2, "stragglerSeconds": 1}
    await up.kube.create(manifest("a 1", groupSize=3, group=group))
    await is_so(up, "Complete")
    assert attempts(up) == {("a", 0, 0): "", ("a", 1, 0): "", ("a", 2, 0): "Straggler"}
    assert await up.train() == 3, "the straggler too, masked: nothing is cut in silence"


async def test_the_ttl_waits_for_trajectories_that_somebody_is_owed(up: World) -> None:
    hub = up.operator_up()
    await up.kube.create(manifest("a 1", ttlSecondsAfterFinished=0))
    await is_so(up, "Complete")
    await so(lambda: not hub.runs[up.job()["metadata"]["uid"]].plan("job"), "there is nothing to be done")
    assert up.kube.named("RolloutJob") == ["shop"]
    await up.train()
    await so(lambda: not up.kube.named("RolloutJob"), "it deletes itself")


async def test_only_the_newest_committed_sessions_are_kept(up: World) -> None:
    up.settings = Settings(history=2)
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2", "c 3", "d 4"))
    await is_so(up, "Complete")
    await up.train()
    await so(lambda: len(up.sessions()) == 2, "two are left")


async def test_pods_that_go_slowly_keep_neither_keys_nor_sessions(up: World) -> None:
    """A busy API server takes seconds for each dozen pods. What waits behind them would only make it slower."""
    up.settings = Settings(history=0)
    at_once, asked, rest = up.kube.delete_many, asyncio.Event(), asyncio.Event()

    async def delete_many(kind: str, namespace: str, *, labels: str) -> None:
        if kind == "Pod":
            asked.set()
            await rest.wait()
        await at_once(kind, namespace, labels=labels)

    up.kube.delete_many = delete_many  # type: ignore[method-assign]
    up.operator_up()
    await up.kube.create(manifest("a 1", parallelism=1, tasks={"queue": {}}))
    await is_so(up, "Ready")
    push = up.gateways["shop-gateway-0"].admin.post
    for uid in "xy":
        said = await push("/v1/tasks", json={"job": "shop", "tasks": [{"uid": uid, "prompt": "1"}]})
        assert said.status_code == 200, said.text
        async for _ in paced():
            if await up.train():
                break
        await asked.wait()

    def left() -> list[str]:
        return [*up.sessions(), *(name for name in up.kube.named("Secret") if "-keys-" in name)]

    await so(lambda: not left(), "their turn does not come behind pods")
    assert not rest.is_set()


async def test_no_group_begins_while_more_is_left_than_is_deleted_in_time(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object more makes a busy API server slower, and its next deletion too."""
    monkeypatch.setattr(garbage_collection, "BACKLOG", 0)
    at_once, refuses = up.kube.delete_many, True

    async def delete_many(kind: str, namespace: str, *, labels: str) -> None:
        if refuses:
            raise Forbidden("403: a webhook says no")
        await at_once(kind, namespace, labels=labels)

    up.kube.delete_many = delete_many  # type: ignore[method-assign]
    up.operator_up()
    await up.kube.create(manifest(*(f"{uid} 1" for uid in "abcdefghijkl"), parallelism=1))

    async def trained() -> bool:
        await up.train()
        return up.condition("Progressing") == ("True", "CleaningUp")

    await until(trained, what="it says what holds it up", within_s=20.0)
    begun = {task for task, _, _ in attempts(up)}
    (said,) = [one for one in up.job()["status"]["conditions"] if one["type"] == "Progressing"]
    assert "more pods of sessions that are over" in said["message"]
    looks = 0
    async for _ in paced():  # what runs ends, and none begins
        await up.train()
        if (looks := looks + 1) == 20:
            break
    assert {task for task, _, _ in attempts(up)} == begun < set("abcdefghijkl")
    refuses = False

    async def complete() -> bool:
        await up.train()
        return up.condition("Complete")[0] == "True"

    await until(complete, what="it goes on when they are gone", within_s=30.0)


async def test_tasks_may_come_from_a_config_map(up: World) -> None:
    up.operator_up()
    lines = '{"uid": "x", "prompt": "1"}\n{"uid": "y", "prompt": "2"}\n'
    await up.kube.create(manifest("a 1", tasks={"configMap": {"name": "set"}}))
    await so(lambda: up.condition("Progressing") == ("False", "NoTasks"), "it says what is missing")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "set", "namespace": NAMESPACE}}
    await up.kube.create(body | {"data": {"tasks.jsonl": lines}})
    await is_so(up, "Complete")
    assert sorted(attempts(up)) == [("x", 0, 0), ("y", 0, 0)]


async def test_a_trainer_pushes_tasks_until_it_says_that_these_are_all(two: World) -> None:
    two.operator_up()
    await two.kube.create(manifest("a 1", tasks={"queue": {}}, gateway={"replicas": 2}))
    await is_so(two, "Ready")
    assert two.condition("Complete")[0] == "False"
    for index, body in enumerate(
        ({"tasks": [{"uid": "x", "prompt": "1"}]}, {"tasks": [{"uid": "y", "prompt": "2"}]})
    ):
        said = await two.gateways[f"shop-gateway-{index}"].admin.post(
            "/v1/tasks", json={"job": "shop", **body}
        )
        assert said.status_code == 200, said.text
    await so(lambda: two.job()["status"]["ended"] == 2, "both were run")
    assert two.condition("Complete")[0] == "False"
    await two.gateways["shop-gateway-1"].admin.post(
        "/v1/tasks", json={"job": "shop", "tasks": [], "last": True}
    )
    await is_so(two, "Complete")


async def test_an_api_server_that_is_away_for_a_while_delays_and_loses_nothing(up: World) -> None:
    left = [40]

    def fail(verb: str, kind: str) -> None:
        if left[0] and kind in ("Pod", "AgentSession", "Secret"):
            left[0] -= 1
            raise Unavailable("the API server restarts", retry_after=0.0)

    up.kube.fail = fail
    up.operator_up()
    await up.kube.create(manifest("a 1", "b 2"))
    await is_so(up, "Complete")
    assert left == [0]
    assert set(attempts(up).values()) == {""}
