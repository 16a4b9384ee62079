"""Four ways to fail, each beside a sibling that goes on: who fails fails alone, and the records say how and why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from aiohttp import web

from sandgate.contract.job import RolloutJob
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.tokens.load import read_checkpoint
from sandgate.operator.local.job import SessionEnded
from tests.e2e import truth
from tests.e2e.rig import SHOP, Run, command, job
from tests.support.recorder import Exchange, Generation, Recorder
from tests.support.vllm import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

DEEDS = {"errand-01": "exit", "errand-03": "memory", "errand-04": "hang", "errand-06": "engine"}
"""What sample 1 does; sample 0 is good everywhere."""
FAILURES = {
    "errand-01": ("agent", "AgentExit", 1),
    "errand-03": ("policy", "OOMKilled", 1),
    "errand-04": ("policy", "SessionTimeout", 1),
    "errand-06": ("infra", "EngineError", 2),
}
"""(class, reason, attempts): the infrastructure's failures are tried again, once."""
SECONDS = 25
"""Of a session: many times what a good one needs, also where four start at once on a busy machine."""


async def test_who_fails_fails_alone(tmp_path: Path, recorder: Recorder, vllm: Vllm) -> None:
    vocab = read_checkpoint(vllm.folder).vocab

    async def fault(moment: str, one: Exchange) -> web.Response | None:
        """The engine's own kind of 500, for the prompts of one session."""
        if moment == "asked" and isinstance(one, Generation) and "FAULT" in vocab.decode(one.prompt.tolist()):
            broken = {
                "error": {"message": "the engine core died", "type": "InternalServerError", "code": 500}
            }
            return web.json_response(broken, status=500)
        return None

    recorder.hook = fault
    run = Run(tmp_path / "out", recorder.url)
    result = await run.go(faulty())
    assert (result.complete, result.missing_groups, result.sessions, result.groups) == (False, 1, 8, 4)
    assert result.failures == {reason: count for _, reason, count in FAILURES.values()}

    ended = {(one.uid, one.sample, one.attempt): one for one in run.of(SessionEnded)}
    for uid, (kind, reason, attempts) in FAILURES.items():
        for attempt in range(attempts):
            one = ended.pop((uid, 1, attempt))
            assert (one.failure_class, one.failure_reason) == (kind, reason)
            assert one.reward == (None if kind == "infra" else 0.0), (
                "no reward for what the policy did not do"
            )
    assert {(uid, sample) for uid, sample, _ in ended} == {(uid, 0) for uid in FAILURES}
    assert all(one.failure_class is None and one.reward is not None for one in ended.values())

    rows = run.rows()
    records_say_so(rows)
    truth.check(rows, recorder.generations)
    code, said = await command("status", "--out", run.out)
    assert code == 0
    assert said["failures"] == {f"{kind}/{reason}": count for kind, reason, count in FAILURES.values()}


def faulty() -> RolloutJob:
    """Four tasks of the shop's job, with another agent and less memory."""
    program = [sys.executable, str(Path(__file__).with_name("faulty.py"))]
    container = {
        "command": [*program, *(f"{task}={deed}" for task, deed in DEEDS.items())],
        "env": [{"name": "PYTHONPATH", "value": "."}],
        "resources": {"limits": {"memory": "300Mi"}},
    }
    return job(
        SHOP,
        uids=DEEDS,
        container=container,
        groupSize=2,
        parallelism=4,
        limits={"sessionSeconds": SECONDS},
        group={"retry": {"infra": 1}},
    )


def records_say_so(rows: list[Trajectory]) -> None:
    """Of what a trainer gets: a failure of its own is there with its class, one of the infrastructure is not."""
    good = {row.uid: row for row in rows if row.sample_index == 0}
    assert good.keys() == FAILURES.keys()
    for row in good.values():
        assert (row.failure_class, row.failure_reason, row.complete, row.attempt) == (None, None, True, 0)
        assert row.reward is not None
    failed = {
        row.uid: (row.failure_class, row.failure_reason, row.reward) for row in rows if row.sample_index == 1
    }
    assert failed == {
        uid: (kind, reason, 0.0) for uid, (kind, reason, _) in FAILURES.items() if kind != "infra"
    }
