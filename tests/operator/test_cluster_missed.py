"""What dies between two steps that belong together: a commit and its event, the AgentSessions of one group."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.operator.cluster import gateway_monitor
from sandgate.operator.cluster import job as cluster_job
from sandgate.operator.observed import pod_failure
from sandgate.operator.plan import outcome
from sandgate.operator.plan.actions import OUTAGES_MAX
from tests.operator.cluster_rig import NAMESPACE, Box, Crash, buys, hurry, manifest, world
from tests.support.waiting import until

GATEWAY = "shop-gateway-0"


@pytest.mark.parametrize("failed_lists", [0, 2 * OUTAGES_MAX])
async def test_an_agent_that_died_of_its_gateway_while_no_operator_was_there_is_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed_lists: int
) -> None:
    """Also if the next operator cannot take in at once what it finds."""
    hurry(monkeypatch)
    talks, died = asyncio.Event(), asyncio.Event()

    async def frail(box: Box) -> int:
        if "-0-0" not in box.name:
            return await buys(box)
        await box.ask("one")
        talks.set()
        await died.wait()
        raise Crash

    monkeypatch.setattr(outcome, "SLACK_S", 0.0)  # what was away after its end does not count
    left = failed_lists

    def refuse(verb: str, kind: str) -> None:
        nonlocal left
        if (verb, kind) == ("list", "AgentSession") and left:
            left -= 1
            raise Unavailable("the API server is busy", retry_after=0.0)

    async with world(tmp_path) as up:
        up.agents = [("shop", frail)]
        up.operator_up()
        await up.kube.create(manifest("a 1"))
        async with asyncio.timeout(20):
            await talks.wait()
        await up.operator_down()
        await up.gateway_down(GATEWAY)
        died.set()
        await up.gateway_up(GATEWAY)
        up.kube.fail = refuse
        up.operator_up()

        async def complete() -> bool:
            return up.condition("Complete")[0] == "True"

        await until(complete, what="the job is complete", within_s=60.0)
        assert left == 0
        reasons = [one["status"].get("failureReason") for _, one in sorted(up.sessions().items())]
        assert reasons == ["GatewayLost", None]
        assert up.job()["status"]["failed"] == 0


async def test_siblings_share_a_gateway_though_it_dies_while_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a group could be leased nowhere: its other half would be at another gateway."""
    hurry(monkeypatch)
    made = 0

    async with world(tmp_path, gateways=2) as up:
        up.operator_up()
        resolve, away = up.resolve, set[str]()

        def the_second_waits(verb: str, kind: str) -> None:
            """Until the operator knows that the gateway of the first is away."""
            nonlocal made
            assert up.hub is not None
            takes = {name for run in up.hub.runs.values() for name in run.observed.gateways}
            if (verb, kind) == ("create", "AgentSession"):
                made += 1
                if made > 1 and away & takes:
                    raise Unavailable("the API server is busy", retry_after=0.0)

        def find(url: str) -> str:
            if any(name in url for name in away):
                raise Unavailable("away", retry_after=0.0)
            return resolve(url)

        def dies_at_the_first(kind: str, event: str, body: Any) -> None:
            if kind == "AgentSession" and made == 1:
                away.add(body["spec"]["gateway"])

        monkeypatch.setattr(up, "resolve", find)
        up.kube.watchers.append(dies_at_the_first)
        up.kube.fail = the_second_waits
        await up.kube.create(manifest("a 1", "b 2", groupSize=2, parallelism=2, gateway={"replicas": 2}))

        async def the_other_task_is_done() -> bool:
            return bool(up.job().get("status", {}).get("ended") == 2)

        await until(the_other_task_is_done, what="the other task is done elsewhere", within_s=60.0)
        away.clear()

        async def complete() -> bool:
            return up.condition("Complete")[0] == "True"

        await until(complete, what="the job is complete", within_s=60.0)
        homes = {(one["spec"]["taskUid"], one["spec"]["gateway"]) for one in up.sessions().values()}
        assert len(homes) == 2, homes
        assert await up.train() == 4


async def test_what_a_trainer_acknowledged_while_the_operator_did_not_hear_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    heard = asyncio.Event()
    heard.set()
    ready = gateway_monitor.GatewayMonitor._ready

    async def deaf(door: gateway_monitor.GatewayMonitor) -> bool:
        await heard.wait()
        return await ready(door)

    monkeypatch.setattr(gateway_monitor.GatewayMonitor, "_ready", deaf)
    async with world(tmp_path) as up:
        up.operator_up()
        await up.kube.create(manifest("a 1"))

        async def ended() -> bool:
            return bool(up.job().get("status", {}).get("ended") == 1)

        await until(ended, what="the session is over", within_s=60.0)
        heard.clear()
        await up.gateway_down(GATEWAY)
        await up.gateway_up(GATEWAY)
        assert await up.train() == 1
        heard.set()

        async def committed() -> bool:
            return bool(up.job()["status"]["committed"] == 1)

        await until(committed, what="the operator knows", within_s=60.0)


async def test_a_pod_that_cannot_be_looked_at_when_its_patience_ends_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event tells that it has waited long enough."""
    hurry(monkeypatch)
    monkeypatch.setattr(pod_failure, "CONFIG_PATIENCE_S", 1.0)
    monkeypatch.setattr(cluster_job, "ASK_S", 0.02)
    left = 3

    def refuse(verb: str, kind: str) -> None:
        nonlocal left
        if (verb, kind) == ("get", "Pod") and left:
            left -= 1
            raise Unavailable("the API server is busy", retry_after=0.0)

    async with world(tmp_path) as up:
        up.nodes = False
        up.operator_up()
        await up.kube.create(manifest("a 1", group={"retry": {"infra": 0}}))

        async def made() -> bool:
            return bool(up.kube.named("Pod"))

        async def failed() -> bool:
            return up.condition("Failed")[0] == "True"

        await until(made, what="its pod is made")
        up.kube.fail = refuse
        state = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "keys" not found'}}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {
            "phase": "Pending",
            "startTime": now,
            "containerStatuses": [{"name": "agent", "state": state}],
        }
        up.kube.pod_status(up.kube.named("Pod")[0], NAMESPACE, status)
        await until(failed, what="it failed to start", within_s=20.0)
        assert left == 0


async def test_a_pod_whose_status_changes_while_it_waits_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its patience does not begin anew with each word, and no word has a look of its own."""
    hurry(monkeypatch)
    monkeypatch.setattr(pod_failure, "IMAGE_PATIENCE_S", 1.0)
    gets = 0

    def count(verb: str, kind: str) -> None:
        nonlocal gets
        gets += (verb, kind) == ("get", "Pod")

    async with world(tmp_path) as up:
        up.nodes = False
        up.operator_up()
        await up.kube.create(manifest("a 1", group={"retry": {"infra": 0}}))

        async def made() -> bool:
            return bool(up.kube.named("Pod"))

        async def failed() -> bool:
            return up.condition("Failed")[0] == "True"

        await until(made, what="its pod is made")
        up.kube.fail = count
        for number in range(8):
            reason = ("ErrImagePull", "ImagePullBackOff")[number % 2]
            state = {"waiting": {"reason": reason, "message": f"tried {number} times"}}
            agent = {"name": "agent", "state": state}
            up.kube.pod_status(
                up.kube.named("Pod")[0], NAMESPACE, {"phase": "Pending", "containerStatuses": [agent]}
            )
        await until(failed, what="its image cannot be had", within_s=20.0)
        assert gets == 1
