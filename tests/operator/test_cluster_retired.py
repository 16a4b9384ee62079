"""A gateway has deleted what was acknowledged, and an operator comes late: it concludes the same, and runs nothing
again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.operator.observed.job import Observed
from sandgate.operator.settings import Settings
from tests.operator.cluster_rig import NAMESPACE, Box, World, buys, hurry, manifest, world
from tests.support.waiting import until

GATEWAY = "shop-gateway-0"
GROUPS: dict[str, Any] = {"groupSize": 2, "group": {"retry": {"infra": 1}}}


async def so(what: Callable[[], bool], why: str) -> None:
    async def check() -> bool:
        return what()

    await until(check, what=why, within_s=60.0)


def status(up: World) -> dict[str, Any]:
    return dict(up.job().get("status") or {})


def observed(up: World) -> Observed:
    assert up.hub is not None
    return up.hub.runs[up.job()["metadata"]["uid"]].observed


def concluded(up: World) -> dict[str, Any]:
    """What tallies and conditions are made of."""
    seen = observed(up)
    return {
        "tally": seen.tally,
        "acked": seen.acked + len(seen.committed) * seen.want.spec.group_size,
        "settled": dict(seen.settled),
        "begun": seen.begun,
        "live": [one.ref.name for one in seen.live],
        "proved": seen.job().proved,
        "owed": seen.job().owed,
    }


async def queued(up: World, *uids: str) -> None:
    """Tasks of a job that goes on."""
    tasks = [{"uid": uid, "prompt": uid} for uid in uids]
    said = await up.gateways[GATEWAY].admin.post("/v1/tasks", json={"job": "shop", "tasks": tasks})
    assert said.status_code == 200, said.text


def mixed(up: World) -> Callable[[Box], Any]:
    """One sample fails its task, one agent crashes, one pod is taken away once."""
    taken: set[str] = set()

    async def agent(box: Box) -> int:
        await buys(box)
        if "-wrong-" in box.name and box.name.endswith("-0-0"):
            return 1
        if "-crash-" in box.name:
            return 7
        if "-lost-" in box.name and box.name.endswith("-1-0") and box.name not in taken:
            taken.add(box.name)
            await up.kube.delete("Pod", NAMESPACE, box.name, grace_s=0)
        return 0

    return agent


@pytest.mark.parametrize("history", [1000, 0])
@pytest.mark.parametrize("heard", [True, False])
async def test_a_new_operator_counts_as_the_one_that_saw_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool, history: int
) -> None:
    """`heard`: the one before was told of the acknowledgements. `history`: AgentSessions that are kept."""
    hurry(monkeypatch)
    async with world(tmp_path) as up:
        up.settings, up.agents = Settings(history=history), [("shop", mixed(up))]
        up.operator_up()
        await up.kube.create(manifest(tasks={"queue": {}}, **GROUPS))
        await queued(up, "fine", "wrong", "crash", "lost")
        await so(lambda: status(up).get("ended") == 8, "all have ended")
        await so(lambda: not observed(up).live and len(observed(up).settled) == 4, "all are settled")
        before = None
        if not heard:
            await up.operator_down()
        sessions = up.gateways[GATEWAY].core.sessions
        held, ran = len(sessions.live), len(up.told)
        assert await up.train() == 8
        if heard:
            await so(lambda: status(up).get("committed") == 8, "all are committed")
            before = concluded(up)
            await up.operator_down()
        assert await sessions.retire(-1.0) == held == 9
        assert not sessions.live
        await up.gateway_down(GATEWAY)
        await up.gateway_up(GATEWAY)
        up.operator_up()
        await so(
            lambda: observed(up).loaded and status(up).get("committed") == 8, "it knows what is committed"
        )
        after = concluded(up)
        if heard:
            assert after == before
        assert (after["tally"].ended, after["tally"].retries, after["acked"], after["owed"]) == (8, 1, 8, 0)
        assert after["tally"].failed == 3
        assert len(up.told) == ran, "something was run again"
        said = status(up)
        assert (said["ended"], said["failed"], said["retries"], said["running"]) == (8, 3, 1, 0)
        await queued(up, "more")
        await so(lambda: status(up).get("ended") == 10, "and it goes on")


async def test_the_records_of_what_was_retired_say_that_it_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their operator died before it heard so."""
    hurry(monkeypatch)
    async with world(tmp_path) as up:
        up.operator_up()
        await up.kube.create(manifest("a 1", "b 2"))
        await so(lambda: status(up).get("ended") == 2, "all have ended")
        await so(lambda: not observed(up).live, "nothing runs")
        await up.operator_down()
        await up.train()
        await up.gateways[GATEWAY].core.sessions.retire(-1.0)
        up.operator_up()
        await so(lambda: up.condition("Complete")[0] == "True", "the job is complete")

        def written() -> bool:
            return all(
                one["status"]["turns"] == 1
                and ("TrajectoryCommitted", "True")
                in {(each["type"], each["status"]) for each in one["status"]["conditions"]}
                for one in up.sessions().values()
            )

        await so(written, "each says that it was committed, and how long it was")
        await so(
            lambda: status(up).get("committed") == 2, "the job's status counts them, a second later at most"
        )


async def test_a_job_that_taught_nothing_says_so_after_its_sessions_were_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)

    async def crashes(box: Box) -> int:
        await buys(box)
        return 7

    async with world(tmp_path) as up:
        up.agents = [("shop", crashes)]
        up.operator_up()
        await up.kube.create(manifest("a 1", "b 2"))
        await so(lambda: status(up).get("ended") == 2, "all have ended")
        await so(lambda: not observed(up).live, "nothing runs")
        await up.operator_down()
        await up.train()
        await up.gateways[GATEWAY].core.sessions.retire(-1.0)
        up.operator_up()
        await so(lambda: up.condition("Failed") == ("True", "AllFailed"), "it failed")
        assert len(up.told) == 2
