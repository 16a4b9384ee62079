"""How agents end in a cluster, and what a trainer is told of it: as of processes (tests/trainer/test_five_ends)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandgate.contract.trajectory import Trajectory
from sandgate.operator.cluster.api import Json
from sandgate.operator.plan import session as plan_session
from tests.operator.cluster_rig import Box, World, buys, hurry, manifest, world
from tests.operator.test_cluster import so
from tests.support.waiting import until

TRACEBACK = """Traceback (most recent call last):
  File "/app/agent.py", line 3, in <module>
    {}["kiwi"]
    ~~^^^^^^^^
KeyError: 'kiwi'
"""
HANG_S = 3
ENDS: dict[str, tuple[int | None, str]] = {
    "right": (0, "bye"),
    "wrong": (1, "loading\nwanted 7 kiwi\n"),
    "raising": (1, TRACEBACK),
    "crashing": (3, "no disk\n"),
    "killed": (137, ""),
    "hanging": (None, ""),
}
"""Task -> exit code as a kubelet tells it, and termination message."""
READS: dict[str, tuple[Any, ...]] = {
    "right": (None, None, 1.0, False, {"exit_code": 0}),
    "wrong": (
        "policy", "AnswerWrong", 0.0, False,
        {"exit_code": 1, "signal": None, "detail": "wanted 7 kiwi", "traceback": False},
    ),
    "raising": (
        "policy", "AnswerWrong", 0.0, False,
        {"exit_code": 1, "signal": None, "detail": "KeyError: 'kiwi'", "traceback": True},
    ),
    "crashing": (
        "agent", "AgentExit", 0.0, True,
        {"exit_code": 3, "signal": None, "detail": "no disk", "traceback": False},
    ),
    "killed": (
        "agent", "AgentSignal", 0.0, True,
        {"exit_code": None, "signal": "SIGKILL", "detail": "", "traceback": False},
    ),
    "hanging": (
        "policy", "SessionTimeout", 0.0, False,
        {
            "exit_code": None, "signal": None, "detail": f"still running after sessionSeconds {HANG_S}",
            "traceback": False,
        },
    ),
}  # fmt: skip
"""Task -> failure_class, failure_reason, reward, masked, reward_info."""


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


async def ends(box: Box) -> int:
    task = next(name for name in ENDS if name in box.name)
    await box.ask(task)
    code, box.message = ENDS[task]
    if code is None:
        await asyncio.Event().wait()
        raise AssertionError("it hangs")
    return code


async def test_each_end_of_a_pod_reads_as_that_of_a_process(up: World) -> None:
    up.agents = [("shop", ends)]
    up.operator_up()
    limits = {"sessionSeconds": HANG_S, "startSeconds": 30}
    await up.kube.create(manifest(*ENDS, limits=limits))

    async def complete() -> bool:
        return up.condition("Complete")[0] == "True"

    await until(complete, what="all of them end", within_s=30.0)
    rows: dict[str, Trajectory] = {}
    for name in up.gateways:
        async with up.trainer(name) as client:
            while (lease := await client.lease(max_groups=64, ttl_s=60.0, job="shop")) is not None:
                rows |= {row.uid: row for row in lease.trajectories}
                await client.ack(lease.lease_id)
    assert {
        uid: (row.failure_class, row.failure_reason, row.reward, row.masked, row.reward_info)
        for uid, row in rows.items()
    } == READS
    said = {
        one["spec"]["taskUid"]: next(
            at["message"] for at in one["status"]["conditions"] if at["type"] == "Finished"
        )
        for one in up.sessions().values()
    }
    assert said["raising"] == "exit code 1 with a traceback: KeyError: 'kiwi'"
    assert said["killed"] == "killed by SIGKILL"


async def crashes(box: Box) -> int:
    await box.ask("one")
    return 3


async def test_pods_of_failed_sessions_stay_for_their_logs_the_newest_alone(up: World) -> None:
    up.settings = replace(up.settings, failed_pods=1)
    up.agents = [("-well-", buys), ("", crashes)]
    up.operator_up()
    await up.kube.create(
        manifest("first 1", "second 2", "well 3", parallelism=1, reward={"source": "exitCode"})
    )
    await so(lambda: up.condition("Complete")[0] == "True", "it is complete")
    assert len(up.kube.named("Pod")) == 3, "until they are committed, all are there"
    assert await up.train() == 3
    await so(lambda: len(up.kube.named("Pod")) == 1, "all went but one")
    kept = up.kube.named("Pod")
    assert up.sessions()[kept[0]]["status"]["failureReason"] == "AgentExit"
    await up.operator_down()
    hub = up.operator_up()
    await so(
        lambda: [list(one.collector.failed) for one in hub.runs.values()] == [kept], "a new operator keeps it"
    )
    assert up.kube.named("Pod") == kept


async def test_an_agent_that_stays_after_its_complete_keeps_the_reward_that_it_said(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its grace is longer than anybody waits, so that its pod is deleted: no reason for another try."""
    monkeypatch.setattr(plan_session, "FORCE_S", 0.5)
    monkeypatch.setattr(up, "_kubelet", deaf_to_stops(up._kubelet))

    async def stays(box: Box) -> int:
        await box.ask("hi")
        async with httpx.AsyncClient(timeout=20.0, verify=False) as http:
            posted = await http.post(
                box.world.resolve(box.env["SANDGATE_COMPLETE_URL"]),
                json={"reward_info": {"reward": 0.25}},
                headers={"authorization": f"Bearer {box.env['OPENAI_API_KEY']}"},
            )
        posted.raise_for_status()
        await asyncio.Event().wait()
        raise AssertionError("it stays")

    up.agents = [("shop", stays)]
    up.operator_up()
    wanted = manifest("a 1", reward={"source": "agent"})
    wanted["spec"]["agent"]["completion"] = "Complete"
    await up.kube.create(wanted)

    async def complete() -> bool:
        return up.condition("Complete")[0] == "True"

    await until(complete, what="it ends", within_s=30.0)
    (session,) = up.sessions().values()
    assert (session["status"]["reward"], session["status"].get("failureReason")) == (0.25, None)


def deaf_to_stops(kubelet: Callable[[str, Json], None]) -> Callable[[str, Json], None]:
    """SIGTERM is ignored, and the grace never over."""

    def tells(event: str, body: Json) -> None:
        told = event == "MODIFIED" and body["spec"].get("activeDeadlineSeconds") == 1
        if not told or body["metadata"].get("deletionTimestamp"):
            kubelet(event, body)

    return tells
