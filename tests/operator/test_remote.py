"""Agents that run elsewhere: anybody applies an AgentSession, and finds in its Secret what the agent needs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandgate.contract.names import session_id
from sandgate.operator.cluster import orphans
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.support.gateway import WITHIN_S
from tests.support.waiting import until

Json = Any
QUEUE: dict[str, Any] = {"tasks": {"queue": {}}}
TRAINER = {"source": "trainer"}
VERIFIER = {"source": "verifier", "verifier": {"container": {"image": "v:1"}}}


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    monkeypatch.setattr(orphans, "SETTLE_S", 0.1)
    async with world(tmp_path) as made:
        yield made


@pytest.fixture
async def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path, gateways=2) as made:
        yield made


async def so(condition: Callable[[], object], what: str) -> None:
    async def holds() -> bool:
        return bool(condition())

    await until(holds, what=what, within_s=60.0)


def remote(name: str, uid: str = "elsewhere", **spec: Any) -> Json:
    """As a user applies it."""
    return {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "AgentSession",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"jobName": "shop", "taskUid": uid, "sampleIndex": 0, "attempt": 0, "remote": True, **spec},
    }


def says(up: World, name: str, kind: str) -> tuple[str, str, str]:
    """(status, reason, message) of a condition."""
    held = up.sessions().get(name) or {}
    for one in (held.get("status") or {}).get("conditions", ()):
        if one["type"] == kind:
            return one["status"], one["reason"], one.get("message", "")
    return "", "", ""


async def opened(up: World, name: str) -> None:
    await so(lambda: says(up, name, "Scheduled")[:2] == ("True", "Remote"), f"{name} is open")


def environment(up: World, name: str) -> dict[str, str]:
    """What its Secret holds."""
    data = up.kube.objects["Secret", NAMESPACE, f"{name}.keys"]["data"]
    return {one: base64.b64decode(value).decode() for one, value in data.items()}


async def turn(up: World, name: str) -> None:
    """The agent, somewhere: one turn, by what it was given alone."""
    env = environment(up, name)
    async with httpx.AsyncClient(timeout=WITHIN_S, verify=False) as http:
        answer = await http.post(
            up.resolve(env["OPENAI_BASE_URL"]) + "/chat/completions",
            json={"model": env["SANDGATE_MODEL"], "messages": [{"role": "user", "content": "hello"}]},
            headers={"authorization": f"Bearer {env['OPENAI_API_KEY']}"},
        )
        answer.raise_for_status()


async def completes(up: World, name: str, **body: Any) -> None:
    env = environment(up, name)
    async with httpx.AsyncClient(timeout=WITHIN_S, verify=False) as http:
        answer = await http.post(
            up.resolve(env["SANDGATE_COMPLETE_URL"]),
            json=body,
            headers={"authorization": f"Bearer {env['OPENAI_API_KEY']}"},
        )
        answer.raise_for_status()


async def test_a_remote_agent_is_served_its_session_sealed_leased_and_committed(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(reward={"source": "agent"}, **QUEUE))
    await up.kube.create(remote("laptop"))
    await opened(up, "laptop")
    status = up.sessions()["laptop"]["status"]
    assert status["baseURL"] == environment(up, "laptop")["OPENAI_BASE_URL"]
    assert says(up, "laptop", "Running")[0] == "True"
    await so(lambda: up.job()["status"]["running"] == 1, "the job counts it as running")
    await turn(up, "laptop")
    await completes(up, "laptop", reward_info={"reward": 0.5})
    await so(lambda: says(up, "laptop", "Finalized")[0] == "True", "it is sealed")
    assert up.sessions()["laptop"]["status"]["reward"] == 0.5
    assert await up.train() == 1
    await so(lambda: says(up, "laptop", "TrajectoryCommitted")[0] == "True", "it is committed")
    assert up.kube.named("Pod") == []
    assert up.job()["status"]["sessions"] == 0, "it is none of the job's samples"
    owners = up.kube.objects["Secret", NAMESPACE, "laptop.keys"]["metadata"]["ownerReferences"]
    assert [one["name"] for one in owners] == ["laptop"]
    await up.kube.delete("AgentSession", NAMESPACE, "laptop")
    await so(lambda: "laptop.keys" not in up.kube.named("Secret"), "its keys go with it")


async def test_an_agent_is_not_given_the_key_of_its_own_reward(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(reward=VERIFIER, **QUEUE))
    await up.kube.create(remote("laptop"))
    await opened(up, "laptop")
    assert set(environment(up, "laptop")) == {
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "OPENAI_API_KEY",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_API_KEY",
        "SANDGATE_SESSION_ID",
        "SANDGATE_COMPLETE_URL",
        "SANDGATE_MODEL",
    }
    await turn(up, "laptop")
    await completes(up, "laptop")
    await so(lambda: says(up, "laptop", "Finalized")[0] == "True", "its verifier has judged it")
    assert up.sessions()["laptop"]["status"]["reward"] == 1.0
    assert not up.broken


async def test_siblings_are_at_one_gateway_and_leased_together(two: World) -> None:
    two.operator_up()
    await two.kube.create(manifest(groupSize=4, gateway={"replicas": 2}, reward={"source": "agent"}, **QUEUE))
    names = [f"laptop-{index}" for index in range(4)]
    for index, name in enumerate(names):
        await two.kube.create(remote(name, sampleIndex=index))
    for name in names:
        await opened(two, name)
        await turn(two, name)
    homes = {environment(two, name)["OPENAI_BASE_URL"].split(".")[0] for name in names}
    assert len(homes) == 1
    for name in names[:3]:
        await completes(two, name, reward_info={"reward": 1.0})
    await so(lambda: says(two, "laptop-2", "Finalized")[0] == "True", "three are sealed")
    assert await two.train() == 0, "the group is not whole"
    await completes(two, names[3], reward_info={"reward": 1.0})
    await so(lambda: says(two, "laptop-3", "Finalized")[0] == "True", "the fourth is sealed")
    assert await two.train() == 4


async def test_the_gateway_that_is_named_has_it(two: World) -> None:
    two.operator_up()
    await two.kube.create(manifest(gateway={"replicas": 2}, reward=TRAINER, **QUEUE))
    await two.kube.create(remote("laptop", gateway="shop-gateway-1"))
    await opened(two, "laptop")
    assert environment(two, "laptop")["OPENAI_BASE_URL"].startswith("http://shop-gateway-1.")


async def test_it_survives_operators_and_is_opened_once(two: World) -> None:
    two.operator_up()
    await two.kube.create(manifest(gateway={"replicas": 2}, reward={"source": "agent"}, **QUEUE))
    await two.kube.create(remote("laptop"))
    await opened(two, "laptop")
    await turn(two, "laptop")
    before = environment(two, "laptop")
    for _ in range(2):
        await two.operator_down()
        two.operator_up()
        await so(lambda: two.job()["status"]["gateways"] == 2, "the new operator is at work")
    assert environment(two, "laptop") == before
    await two.operator_down()
    await completes(two, "laptop", reward_info={"reward": 1.0})  # while nobody looks
    two.operator_up()
    await so(lambda: says(two, "laptop", "Finalized")[0] == "True", "it is sealed")
    assert two.sessions()["laptop"]["status"]["turns"] == 1
    assert two.kube.made["Secret", "laptop.keys"] == 1


async def test_one_whose_operator_died_before_the_gateway_was_told_goes_where_its_secret_says(
    two: World,
) -> None:
    dead = asyncio.Event()

    def dies(verb: str, kind: str) -> None:
        if "laptop.keys" in two.kube.named("Secret") and not dead.is_set():
            dead.set()
            raise asyncio.CancelledError

    two.operator_up()
    await two.kube.create(manifest(gateway={"replicas": 2}, reward=TRAINER, **QUEUE))
    await two.kube.create(remote("other", "other", gateway="shop-gateway-0"))
    await opened(two, "other")
    await so(lambda: two.job()["status"]["gateways"] == 2, "both gateways are there")
    two.kube.lose = dies
    await two.kube.create(remote("laptop"))
    await asyncio.wait_for(dead.wait(), 20)
    await two.operator_down()
    claimed = environment(two, "laptop")["OPENAI_BASE_URL"]
    assert claimed.startswith("http://shop-gateway-1."), "the other one has a session"
    assert says(two, "laptop", "Scheduled") == ("", "", "")
    await two.kube.delete("AgentSession", NAMESPACE, "other")  # now the first one is as good
    two.operator_up()
    await opened(two, "laptop")
    assert two.sessions()["laptop"]["status"]["baseURL"] == claimed


async def test_its_time_ends_it(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(limits={"sessionSeconds": 5, "startSeconds": 5}, reward=TRAINER, **QUEUE))
    await up.kube.create(remote("laptop"))
    await opened(up, "laptop")
    await turn(up, "laptop")
    await so(lambda: says(up, "laptop", "Finished")[:2] == ("True", "SessionTimeout"), "its time is up")
    assert up.sessions()["laptop"]["status"]["failureReason"] == "SessionTimeout"


async def test_deleting_it_aborts_it_also_when_no_operator_sees_it(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(groupSize=2, reward=TRAINER, **QUEUE))
    for index, name in enumerate(("seen", "unseen")):
        await up.kube.create(remote(name, sampleIndex=index))
        await opened(up, name)
        await turn(up, name)
    await up.kube.delete("AgentSession", NAMESPACE, "seen")
    await so(lambda: up.job()["status"]["running"] == 1, "it does not run any more")
    await up.operator_down()
    await up.kube.delete("AgentSession", NAMESPACE, "unseen")
    up.operator_up()

    async def aborted() -> bool:
        said = [
            await up.gateways["shop-gateway-0"].admin.get(f"/v1/sessions/{name}")
            for name in ("seen", "unseen")
        ]
        return [one.json()["state"] for one in said] == ["aborted", "aborted"]

    await until(aborted, what="both were aborted", within_s=60.0)


async def test_a_suspended_job_stops_it_and_opens_others_when_it_goes_on(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(reward=TRAINER, **QUEUE))
    await up.kube.create(remote("early"))
    await opened(up, "early")
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": True}})
    await so(lambda: says(up, "early", "Finished")[:2] == ("True", "Aborted"), "it was stopped")
    await up.kube.create(remote("late", attempt=1))
    await so(
        lambda: says(up, "late", "Scheduled") == ("False", "OnHold", "the job is suspended"),
        "it says why it waits",
    )
    await up.kube.patch("RolloutJob", NAMESPACE, "shop", {"spec": {"suspend": False}})
    await opened(up, "late")


async def test_a_job_is_not_complete_while_a_remote_session_lives(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest("a 1", reward={"source": "agent"}))
    await up.kube.create(remote("laptop"))
    await opened(up, "laptop")
    await so(lambda: up.job()["status"]["ended"] == 1, "its own sample has ended")
    assert up.condition("Complete")[0] == "False"
    await completes(up, "laptop", reward_info={"reward": 1.0})
    await so(lambda: up.condition("Complete")[0] == "True", "then it is")
    await up.kube.create(remote("late", sampleIndex=0, attempt=1))
    await so(lambda: says(up, "late", "Scheduled")[1] == "Refused", "nothing is opened any more")
    assert says(up, "late", "Scheduled")[2] == "spec.jobName: shop is over"


async def test_a_gateway_that_lost_its_volume_ends_it_and_another_attempt_may_be_applied(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(reward={"source": "agent"}, **QUEUE))
    await up.kube.create(remote("first"))
    await opened(up, "first")
    await turn(up, "first")
    await up.gateway_down("shop-gateway-0")
    await up.gateway_up("shop-gateway-0", empty=True)
    await so(lambda: says(up, "first", "Finished")[:2] == ("True", "GatewayLost"), "it is lost")
    await up.kube.create(remote("second", attempt=1))
    await opened(up, "second")


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "a sample beyond the group": (
        "laptop",
        {"sampleIndex": 2},
        "spec.sampleIndex: 2 is beyond the job's groupSize 2",
    ),
    "a name that the driver gives": (
        session_id("shop", "b", 0, 0),
        {"taskUid": "b"},
        "metadata.name: names of this form are those of the job's own sessions; use another",
    ),
    "a task that the job runs": (
        "laptop",
        {"taskUid": "a"},
        "spec.taskUid: the job runs task 'a' itself; use one that it has not",
    ),
    "a gateway that there is not": (
        "laptop",
        {"gateway": "shop-gateway-7"},
        "spec.gateway: shop-gateway-7 is none of the job's gateways",
    ),
    "a sample that another one has": (
        "laptop",
        {"taskUid": "held", "attempt": 1},
        "spec.sampleIndex: AgentSession held is there for this sample of task 'held'",
    ),
    "a job that there is not": (
        "laptop",
        {"jobName": "nowhere"},
        "spec.jobName: no RolloutJob nowhere runs in this namespace",
    ),
}


@pytest.mark.parametrize(("name", "spec", "why"), BAD.values(), ids=BAD)
async def test_one_that_cannot_be_says_why_once(up: World, name: str, spec: dict[str, Any], why: str) -> None:
    hub = up.operator_up()
    await up.kube.create(manifest("a 1", groupSize=2, parallelism=1, reward=TRAINER))
    await up.kube.create(remote("held", "held"))
    await opened(up, "held")
    await up.kube.create(remote(name, **spec))
    await so(lambda: says(up, name, "Scheduled")[2] == why, "it says why")
    assert says(up, name, "Scheduled")[0] == "False"
    written = up.kube.touched[name]
    up.relist()
    await hub.sweep()
    await completes(up, "held")  # something else goes on
    await so(lambda: says(up, "held", "Finalized")[0] == "True", "the other one is sealed")
    assert up.kube.touched[name] == written
    assert f"{name}.keys" not in up.kube.named("Secret")


async def test_a_secret_of_somebody_else_is_left_alone(up: World) -> None:
    up.operator_up()
    theirs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "laptop.keys", "namespace": NAMESPACE},
    }
    await up.kube.create({**theirs, "data": {"mine": "eA=="}})
    await up.kube.create(manifest(reward=TRAINER, **QUEUE))
    await up.kube.create(remote("laptop"))
    await so(lambda: says(up, "laptop", "Scheduled")[1] == "Refused", "it is refused")
    assert environment(up, "laptop") == {"mine": "x"}


async def test_one_that_was_applied_before_its_job_waits_for_it(up: World) -> None:
    up.operator_up()
    await up.kube.create(remote("laptop"))
    await so(
        lambda: says(up, "laptop", "Scheduled")[:2] == ("False", "NoJob"), "it says that there is no job"
    )
    await up.kube.create(manifest(reward=TRAINER, **QUEUE))
    await opened(up, "laptop")
    await up.kube.delete("RolloutJob", NAMESPACE, "shop")
    await so(lambda: says(up, "laptop", "Scheduled")[:2] == ("False", "NoJob"), "its job is gone")


async def test_a_pushed_task_that_agents_elsewhere_do_is_not_run_a_second_time(up: World) -> None:
    up.operator_up()
    await up.kube.create(manifest(reward={"source": "agent"}, **QUEUE))
    await up.kube.create(remote("laptop"))
    await opened(up, "laptop")
    said = await up.gateways["shop-gateway-0"].admin.post(
        "/v1/tasks",
        json={
            "job": "shop",
            "tasks": [{"uid": "elsewhere", "prompt": "1"}, {"uid": "x", "prompt": "2"}],
            "last": True,
        },
    )
    assert said.status_code == 200, said.text
    await so(lambda: up.job()["status"]["ended"] == 1, "the other one was run")
    assert {one["spec"]["taskUid"] for one in up.sessions().values()} == {"elsewhere", "x"}
    assert len(up.sessions()) == 2
    await completes(up, "laptop", reward_info={"reward": 1.0})
    await so(lambda: up.condition("Complete")[0] == "True", "the job is complete")
