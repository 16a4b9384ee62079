"""`run_local` whole: real gateways, real agents, a scripted engine; things die, and only what must is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest, Conflict, Unavailable, Unsupported
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionOutcome
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.operator.local.job import (
    Event,
    GroupCollected,
    ProcessRestarted,
    Resumed,
    SessionEnded,
    SessionStarted,
)
from sandgate.sandbox import procfs
from tests.operator.rig import HERE, MODEL, WITHIN_S, Rig, job, rig
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

VERIFIER = {"source": "verifier", "verifier": {"container": {"command": ["python", "judge.py"]}}}
MEMORY = {"command": ["python", "agent.py"], "resources": {"limits": {"memory": "200Mi"}}}


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def gateway_pid(folder: Path) -> int:
    """Of the first gateway of a run in `folder`."""
    config = str(folder / "run" / "gateway-0.json").encode()
    (found,) = [pid for pid in procfs.pids() if config in command_of(pid)]
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


DEEDS = ["good", "crash", "memory", "hang", "signal", "limit", "fault", "posts"]
"""What sample 1 of each group does; sample 0 is good everywhere."""


async def test_who_fails_fails_alone_and_says_why(up: Rig) -> None:
    up.script.rules["FAULT"] = Reply("", fault=Fault("status", status=500, message="bad engine"))
    result = await up.run(
        job(
            *(f"{deed} 7 kiwi" for deed in DEEDS),
            groupSize=2,
            parallelism=6,
            limits={"turns": 2, "sessionSeconds": 15},
            group={"retry": {"infra": 1}},
            reward=VERIFIER,
            agent={"backend": "Process", "template": {"spec": {"containers": [MEMORY]}}},
        )
    )
    assert not result.complete, "one group is short of a row"
    assert result.missing_groups == 1
    assert result.cause.startswith(
        "1 of 8 groups are incomplete, 1 samples without a row; the first: shop-fault-"
    )
    assert "infra/EngineError exit code 1 with a traceback: urllib.error.HTTPError" in result.cause
    assert result.cause.endswith("the engine failed 1 calls of it: the engine answered 500: bad engine")
    assert result.groups == len(DEEDS)
    counts = {
        "AgentExit": 1,
        "AgentSignal": 1,
        "OOMKilled": 1,
        "SessionTimeout": 1,
        "TurnLimit": 1,
        "EngineError": 2,
    }
    assert result.failures == counts
    assert (result.status.ended, result.status.failed, result.status.retries) == (16, 6, 1)
    assert result.status.committed == 16
    siblings_are_whole(up)
    failures_are_told(up)
    infra_is_tried_again_and_never_scored(up)
    assert up.processes() == []
    no_secrets(up.out)


def siblings_are_whole(up: Rig) -> None:
    for row in up.rows():
        if row.sample_index == 0:
            assert (row.failure_class, row.failure_reason, row.complete, len(row.turn_ids)) == (
                None,
                None,
                True,
                2,
            )
            assert row.reward == (0.25 if row.uid == "posts" else 1.0)
    assert [row.uid for row in up.rows() if row.sample_index == 0] == DEEDS
    assert up.rows()[0].reward_info == {"exit_code": 0, "uid": "good", "data": {"n": 7}}


def failures_are_told(up: Rig) -> None:
    rows = {row.uid: row for row in up.rows() if row.sample_index == 1}
    assert {uid: (row.failure_class, row.failure_reason) for uid, row in rows.items()} == {
        "good": (None, None),
        "crash": ("agent", "AgentExit"),
        "hang": ("policy", "SessionTimeout"),
        "signal": ("agent", "AgentSignal"),
        "memory": ("policy", "OOMKilled"),
        "limit": ("policy", "TurnLimit"),
        "posts": (None, None),
    }
    assert {rows[uid].reward for uid in ("crash", "hang", "signal", "memory", "limit")} == {0.0}
    assert rows["crash"].reward_info["exit_code"] == 1
    assert rows["hang"].reward_info["exit_code"] is None


def infra_is_tried_again_and_never_scored(up: Rig) -> None:
    infra = {(one.uid, one.attempt): one for one in up.of(SessionEnded) if one.failure_class == "infra"}
    assert {key: one.failure_reason for key, one in infra.items()} == {
        ("fault", 0): FailureReason.ENGINE_ERROR,
        ("fault", 1): FailureReason.ENGINE_ERROR,
    }
    assert all(one.reward is None for one in infra.values())


def no_secrets(out: Path) -> None:
    """Agents of these tests print their keys."""
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) > 10
    keys = [path for path in files if b"sk-sg-" in path.read_bytes()]
    assert keys == []
    assert "key: [key]" in next((out / "logs").glob("shop-good-*.log")).read_text()
    assert stat.S_IMODE((out / "secret").stat().st_mode) == 0o600
    assert not (out / "run").exists()


async def test_a_program_that_is_missing_is_the_agent_s_failure_and_not_tried_again(up: Rig) -> None:
    agent = {"template": {"spec": {"containers": [{"command": ["no-such-program"]}]}}}
    result = await up.run(job("a 1", "b 2", reward={"source": "exitCode"}, agent=agent))
    assert (result.failures, result.status.retries) == ({"AgentMissing": 1}, 0)
    told = {one.detail for one in up.of(SessionEnded) if one.failure_class == "agent"}
    assert told == {"no-such-program is not on PATH"}


async def test_a_group_that_is_being_written_at_the_end_of_the_run_is_written(
    up: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were asked for, and the answer never arrives."""
    rows, lost = GatewayClient.finalize_rows, list[str]()

    async def rows_lost(client: GatewayClient, session_id: str, outcome: SessionOutcome) -> list[Trajectory]:
        if not lost:
            lost.append(session_id)
            await asyncio.Event().wait()
        return await rows(client, session_id, outcome)

    monkeypatch.setattr(GatewayClient, "finalize_rows", rows_lost)
    result = await up.run(job("first 7 kiwi", "last 1 tea", parallelism=1))
    assert lost
    assert result.complete
    assert (result.groups, result.status.committed) == (2, 2)
    assert [row.uid for row in up.rows()] == ["first", "last"]


async def test_a_gateway_that_is_killed_loses_no_session(up: Rig) -> None:
    gate = up.script.gate("slow")

    async def kill() -> None:
        await gate.reached.wait()
        os.kill(gateway_pid(up.out), signal.SIGKILL)
        gate.open.set()

    killer = asyncio.ensure_future(kill())
    result = await up.run(job("slow 7 kiwi", "good 1 tea", groupSize=2, parallelism=4))
    await killer
    (restart,) = up.of(ProcessRestarted)
    assert (restart.name, restart.restarts) == ("shop-gateway-0", 1)
    assert restart.why.startswith("signal 9")
    assert result.complete
    assert result.failures == {}
    assert result.restarts == 1
    assert [(row.uid, row.sample_index, row.attempt, len(row.turn_ids)) for row in up.rows()] == [
        ("slow", 0, 0, 2),
        ("slow", 1, 0, 2),
        ("good", 0, 0, 2),
        ("good", 1, 0, 2),
    ]
    slow = [row for row in up.rows() if row.uid == "slow"]
    assert all(up.script.vocab.decode(list(row.response_ids)).startswith("receipt 44") for row in slow)


async def test_a_gateway_whose_journal_is_gone_is_not_started_with_an_empty_one(up: Rig) -> None:
    """A group that had ended, and that a trainer may still be waiting for, would be told to nobody."""
    gate = up.script.gate("slow")

    async def lose() -> None:
        await gate.reached.wait()
        for path in up.out.glob("gateway-0.sqlite*"):
            path.unlink()
        os.kill(gateway_pid(up.out), signal.SIGKILL)
        gate.open.set()

    loses = asyncio.ensure_future(lose())
    with pytest.raises(Unavailable, match=r"gateway-0\.sqlite is gone, and with it what was sampled"):
        await up.run(job("good 1 tea", "slow 7 kiwi", parallelism=1))
    await loses
    assert not (up.out / "gateway-0.sqlite").exists()


async def test_an_agent_that_dies_of_a_killed_gateway_is_not_to_blame(up: Rig) -> None:
    """It asks once; the others ask again, as SDKs do."""
    gate = up.script.gate("slow")
    frail = up.folder / "frail.py"
    frail.write_text((HERE / "agent.py").read_text().replace("RETRIES = 100", "RETRIES = 1"))

    async def kill() -> None:
        await gate.reached.wait()
        os.kill(gateway_pid(up.out), signal.SIGKILL)
        gate.open.set()

    killer = asyncio.ensure_future(kill())
    container = {"command": ["python", str(frail)]}
    agent = {"backend": "Process", "template": {"spec": {"containers": [container]}}}
    result = await up.run(job("slow 7 kiwi", agent=agent))
    await killer
    assert (result.complete, result.failures) == (True, {"GatewayLost": 1})
    assert [(row.attempt, row.reward) for row in up.rows()] == [(1, 9.0)]


async def test_a_drained_run_goes_on_when_it_is_run_again(up: Rig) -> None:
    wanted = job("a", "b", "c", "d", parallelism=1)

    def stop_after_the_first(event: Event) -> None:
        if isinstance(event, SessionStarted) and event.uid == "b":
            up.stop.set()

    up.on_event = stop_after_the_first
    first = await up.run(wanted)
    assert not first.complete
    assert first.trajectories is None
    assert [one.uid for one in up.of(SessionEnded)] == ["a", "b"]
    assert [one.uid for one in up.of(GroupCollected)] == ["a", "b"]
    assert not (up.out / "trajectories.parquet").exists()

    up.stop.clear()
    second = await up.run(wanted)
    assert up.of(Resumed) == [Resumed(ended=2, lost=0, collected=2)]
    assert [one.uid for one in up.of(SessionStarted)] == ["c", "d"]
    assert second.complete
    assert second.sessions == 4
    assert [row.uid for row in up.rows()] == ["a", "b", "c", "d"]

    third = await up.run(wanted)
    assert up.of(SessionStarted) == []
    assert third.complete
    assert third.rewards == (9.0,) * 4
    assert [row.uid for row in up.rows()] == ["a", "b", "c", "d"]


DRIVER = """
import asyncio, sys
from pathlib import Path
from tests.operator.rig import Rig, Script, job
asyncio.run(Rig(Path(sys.argv[1]), None, sys.argv[2]).run(job("done 1 tea", "slow 7 kiwi")))
"""


async def test_a_driver_that_is_killed_is_gone_with_all_it_started_and_the_next_goes_on(up: Rig) -> None:
    gate = up.script.gate("slow")
    root = str(HERE.parents[1])
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, str(up.folder), up.url, cwd=root, env={**os.environ, "PYTHONPATH": root}
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            await gate.reached.wait()

        async def collected() -> bool:
            return len(list((up.out / "groups").glob("shop-done-*.parquet"))) == 1

        await until(collected, what="the first group is written", within_s=WITHIN_S)
        gateway = gateway_pid(up.out)
        assert up.processes()
    finally:
        driver.kill()
        await driver.wait()

    async def gone() -> bool:
        return not up.processes() and not command_of(gateway)

    await until(gone, what="agents and gateway of the dead driver are gone", within_s=WITHIN_S)

    gate.open.set()
    result = await up.run(job("done 1 tea", "slow 7 kiwi"))
    assert up.of(Resumed) == [Resumed(ended=1, lost=1, collected=1)]
    assert [(one.uid, one.attempt) for one in up.of(SessionStarted)] == [("slow", 1)]
    lost = [one for one in up.of(SessionEnded) if one.attempt == 0]
    assert [(one.uid, one.failure_reason) for one in lost] == [("slow", FailureReason.DRIVER_LOST)]
    assert result.complete
    assert [(row.uid, row.attempt) for row in up.rows()] == [("done", 0), ("slow", 1)]


async def test_an_aborted_run_ends_at_once_and_can_be_resumed(up: Rig) -> None:
    gate = up.script.gate("slow")

    async def abort() -> None:
        await gate.reached.wait()
        up.abort.set()

    aborting = asyncio.ensure_future(abort())
    first = await up.run(job("slow 7 kiwi"))
    await aborting
    assert (first.complete, first.trajectories) == (False, None)
    assert up.processes() == []
    up.abort.clear()
    gate.open.set()
    second = await up.run(job("slow 7 kiwi"))
    assert second.complete
    assert [(row.uid, row.attempt) for row in up.rows()] == [("slow", 1)]


async def test_complete_ends_a_session_and_a_managed_engine_is_started_and_restarted(up: Rig) -> None:
    """The engine is a process of the job; its first life ends by our hand."""
    (up.folder / "script.jsonl").write_text('"done"\n')
    server = [
        "python",
        "-m",
        "sandgate.gateway.engine.scripted.server",
        "--port",
        "$(PORT)",
        "--script",
    ]
    server += [
        str(up.folder / "script.jsonl"),
        "--model-dir",
        "$(MODEL)",
        "--served-model-name",
        "$(MODEL_NAME)",
    ]
    killed: list[int] = []

    def kill_the_engine_once(event: Event) -> None:
        if isinstance(event, SessionEnded) and not killed:
            script = str(up.folder / "script.jsonl").encode()
            killed.extend(pid for pid in procfs.pids() if script in command_of(pid))
            os.kill(killed[0], signal.SIGKILL)

    up.on_event = kill_the_engine_once
    result = await up.run(
        job(
            "complete 7 kiwi",
            "again 7 kiwi",
            groupSize=2,
            parallelism=2,
            engine={"managed": {"command": server, "gpus": 0}},
            agent={
                "backend": "Process",
                "completion": "Complete",
                "template": {"spec": {"containers": [{"command": ["python", "agent.py"]}]}},
            },
            group={"retry": {"infra": 8}},
        ),
        url=None,
    )
    assert len(killed) == 1
    assert "engine" in {one.name for one in up.of(ProcessRestarted)}
    assert result.complete
    rows = {(row.uid, row.sample_index): row.failure_reason for row in up.rows()}
    assert rows["complete", 1] is None  # it posted to /complete, and was stopped
    assert rows["complete", 0] == rows["again", 0] == "AgentExit"  # these only ended


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a container without a command": (
        {"agent": {"template": {"spec": {"containers": [{"image": "x"}]}}}},
        BadManifest,
        "containers\\[0\\].command: is missing",
    ),
    "a verifier without a command": (
        {"reward": {"source": "verifier", "verifier": {"container": {"image": "x"}}}},
        BadManifest,
        "verifier.container.command: is missing",
    ),
    "a value from a secret": (
        {
            "agent": {
                "template": {
                    "spec": {"containers": [{"command": ["x"], "env": [{"name": "A", "valueFrom": {}}]}]}
                }
            }
        },
        Unsupported,
        "env\\[0\\].valueFrom",
    ),
    "a suspended job": ({"suspend": True}, Unsupported, "spec.suspend"),
    "tasks of a ConfigMap": ({"tasks": {"configMap": {"name": "x"}}}, Unsupported, "spec.tasks"),
}


@pytest.mark.parametrize(("spec", "error", "says"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_run_here_is_refused_before_anything_starts(
    up: Rig, spec: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        await up.run(job("a", **spec))
    assert not up.out.exists()


async def test_engine_pods_need_a_cluster(up: Rig) -> None:
    with pytest.raises(Unsupported, match=r"spec\.engine\.selector"):
        await up.run(job("a", engine={"selector": {"matchLabels": {"a": "b"}}}), url=None)


async def test_a_gateway_that_cannot_start_says_why_at_once(up: Rig) -> None:
    model = {"name": "shop", "tokenizer": str(MODEL), "renderer": "no-such-renderer"}
    with pytest.raises(Unavailable, match=r"shop-gateway-0 ended while it started: .*no-such-renderer"):
        await up.run(job("a", model=model))


async def test_a_model_folder_that_is_not_there_is_said_before_anything_starts(up: Rig) -> None:
    with pytest.raises(BadManifest, match=r"spec\.model\.tokenizer: .*/no-such-model: no such folder"):
        await up.run(job("a", model={"name": "shop", "tokenizer": "no-such-model"}))
    assert not (up.folder / "job.json").exists()


async def test_a_folder_is_used_by_one_run_and_for_one_job(up: Rig) -> None:
    gate = up.script.gate("slow")
    first = asyncio.ensure_future(up.run(job("slow 7 kiwi")))
    await gate.reached.wait()
    other = Rig(up.folder, up.script, up.url)
    with pytest.raises(Conflict, match="another run uses this folder"):
        await other.run(job("slow 7 kiwi"))
    gate.open.set()
    assert (await first).complete
    with pytest.raises(Conflict, match=r"spec\.groupSize"):
        await up.run(job("slow 7 kiwi", groupSize=2))


async def test_two_runs_of_one_job_do_not_end_each_others_agents(up: Rig) -> None:
    """Their sessions have the same names."""
    gate = up.script.gate("slow")
    first = asyncio.ensure_future(up.run(job("slow 7 kiwi")))
    await gate.reached.wait()
    up.script.rules["slow"] = Reply("done")
    second = await Rig(up.folder / "other", up.script, up.url).run(job("slow 7 kiwi"))
    assert not first.done()
    gate.open.set()
    assert [(one.complete, one.failures) for one in (second, await first)] == [(True, {}), (True, {})]


async def test_two_gateways_share_the_work_and_their_journals(up: Rig) -> None:
    result = await up.run(job("a", "b", "c", "d", groupSize=2, parallelism=4, gateway={"replicas": 2}))
    assert result.complete
    assert [(row.uid, row.sample_index) for row in up.rows()] == [
        (uid, sample) for uid in "abcd" for sample in range(2)
    ]
    assert sorted(path.name for path in up.out.glob("*.sqlite")) == ["gateway-0.sqlite", "gateway-1.sqlite"]
    again = await up.run(
        job("a", "b", "c", "d", groupSize=2, parallelism=4)
    )  # one replica now; both journals serve
    assert again.complete
    assert again.sessions == 8
    assert up.of(SessionStarted) == []
