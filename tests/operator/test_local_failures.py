"""Runs that fail say so at once, with the cause; and go on once it is mended. Real processes, a scripted engine."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.status import JobCondition
from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.gateway.journal.records import Acked
from sandgate.gateway.journal.rows import read
from sandgate.gateway.journal.sqlite import SELECT
from sandgate.gateway.offline import journals
from sandgate.operator.local.job import Event, GroupCollected, Problem, SessionEnded, SessionStarted
from sandgate.operator.plan.conditions import is_true
from sandgate.operator.plan.first_failures import FIRST
from sandgate.sandbox.process import READ_TRIES
from tests.gateway.journal.disks import fill, small_disk
from tests.operator.rig import HERE, MODEL, Rig, job, rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

BROKEN = Reply("", fault=Fault("status", status=500, message="bad engine"))


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def agent(*command: str) -> dict[str, Any]:
    return {"backend": "Process", "template": {"spec": {"containers": [{"command": list(command)}]}}}


MANY = [f"t{number} 7 kiwi" for number in range(12)]
HOPELESS: dict[str, tuple[dict[str, Any], str]] = {
    "a program that is not there": (
        {"agent": agent("pythonx")},
        "ProgramMissing: agent: pythonx is not on PATH",
    ),
    "a module that no agent can import": (
        {"agent": agent("python", "-c", "import no_such_module")},
        "AgentsFailAlike: AgentExit exit code 1 with a traceback:"
        " ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "a verifier that is not there": (
        {"reward": {"source": "verifier", "verifier": {"container": {"command": ["./judge"]}}}},
        "ProgramMissing: verifier: ./judge is not an executable file",
    ),
}


@pytest.mark.parametrize(("spec", "cause"), HOPELESS.values(), ids=HOPELESS)
async def test_what_cannot_get_better_ends_the_run_soon_with_its_cause(
    up: Rig, spec: dict[str, Any], cause: str
) -> None:
    result = await up.run(job(*MANY, groupSize=2, parallelism=4, **spec))
    assert (result.complete, result.cause) == (False, cause)
    assert is_true(result.status, JobCondition.FAILED)
    assert len(up.of(SessionStarted)) <= 2 * FIRST, "24 samples were not tried for that"
    assert {one.attempt for one in up.of(SessionStarted)} == {0}, "nothing was tried twice"
    rows = up.rows()  # those that took a turn before it was known that nobody can judge them
    assert all(row.masked and row.reward is None for row in rows)
    assert result.missing_groups == len(MANY) - len({row.uid for row in rows}) >= len(MANY) - FIRST
    assert up.processes() == []


JUDGES = {
    "hangs": "print('case 7 of 9', file=sys.stderr, flush=True); time.sleep(600)",
    "crashes": "print('no such case', file=sys.stderr); sys.exit(3)",
    "writes NaN": "open(os.environ['SANDGATE_TERMINATION_LOG'], 'w').write('{\"reward\": NaN}')",
}
VERDICTS = {
    "hangs": "verifier: still running after seconds 2: case 7 of 9",
    "crashes": "verifier: exit code 3: no such case",
    "writes NaN": "verifier: it ended well but gave no reward: its message's reward is no finite number; a verifier"
    ' writes {"reward": n} to $SANDGATE_TERMINATION_LOG, or posts it to $SANDGATE_REWARD_URL',
}


@pytest.mark.parametrize("kind", JUDGES)
async def test_how_a_verifier_ended_without_a_verdict_is_said(up: Rig, kind: str) -> None:
    command = ["python", "-c", f"import os, sys, time; {JUDGES[kind]}"]
    verifier = {"container": {"command": command}, "seconds": 2}
    await up.run(job("a 1 tea", reward={"source": "verifier", "verifier": verifier}))
    (end,) = up.of(SessionEnded)
    assert (end.failure_reason, end.detail) == (FailureReason.VERIFIER_FAILED, VERDICTS[kind])


JUDGE = "import os; open(os.environ['SANDGATE_TERMINATION_LOG'], 'w').write('{\"reward\": 9.0}')"  # as the agent does
SCORERS: dict[str, dict[str, Any]] = {
    "agent": {},
    "verifier": {
        "reward": {"source": "verifier", "verifier": {"container": {"command": ["python", "-c", JUDGE]}}}
    },
}


@pytest.mark.parametrize(("times", "attempt"), [(1, 0), (READ_TRIES, 1)], ids=["once", "for a second"])
@pytest.mark.parametrize("who", SCORERS)
async def test_a_word_that_this_machine_cannot_read_is_not_taken_for_none(
    up: Rig, monkeypatch: pytest.MonkeyPatch, who: str, times: int, attempt: int
) -> None:
    left, real = iter(range(times)), os.open

    def fails(path: Any, *args: Any, **more: Any) -> int:
        if str(path).endswith(f"/{who}/termination-log") and next(left, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", fails)
    result = await up.run(job("a 1 tea", **SCORERS[who]))
    assert next(left, None) is None, "it was read"
    assert [(one.attempt, one.reward) for one in up.of(SessionEnded) if not one.failure_class] == [
        (attempt, 9.0)
    ]
    lost = [(one.failure_class, one.detail) for one in up.of(SessionEnded) if one.failure_class]
    assert lost == [("infra", LOST[who])] * attempt
    assert result.complete


LOST = {
    "agent": "this machine cannot read what it left: Too many open files",
    "verifier": "verifier: this machine cannot read what it left: Too many open files",
}


async def test_a_model_that_the_engine_does_not_serve_ends_the_run_before_an_agent_is_begun(up: Rig) -> None:
    wrong = {"name": "shpo", "tokenizer": str(MODEL), "maxModelLen": 4096}
    with pytest.raises(Unavailable, match=r"model 'shpo' is not served; there are \['shop'\]"):
        await up.run(job(*MANY, model=wrong))
    assert not up.of(SessionStarted)


DIES = (
    "import os, sys; sys.path.insert(0, os.environ['AGENTS']); from agent import ask;"
    "ask([{'role': 'user', 'content': 'tea'}]); print('no disk', file=sys.stderr); sys.exit(3)"
)


async def test_a_run_of_which_nobody_learns_anything_failed_and_says_of_what(up: Rig) -> None:
    """Their rows are there, and masked: a trainer that waits for a lesson would never have one."""
    own = up.folder / "dies.py"
    own.write_text(DIES.replace("os.environ['AGENTS']", repr(str(HERE))))
    wanted = job("a 1 tea", "b 2 tea", groupSize=2, agent=agent("python", str(own)))
    for _ in range(2):  # the next run says the same, and runs nothing
        result = await up.run(wanted)
        assert not result.complete
        assert result.cause == "AllFailed: all 4 samples failed: 4 AgentExit: exit code 3: no disk"
        assert is_true(result.status, JobCondition.FAILED)
        assert not is_true(result.status, JobCondition.COMPLETE)
        assert all(row.masked for row in up.rows())


async def test_a_run_whose_agents_all_crash_after_a_turn_says_so_while_it_goes_on(up: Rig) -> None:
    own = up.folder / "dies.py"
    own.write_text(DIES.replace("os.environ['AGENTS']", repr(str(HERE))))
    result = await up.run(job(*MANY, parallelism=2, agent=agent("python", str(own))))
    (told,) = up.of(Problem)
    assert told.text.startswith(
        "none of the 8 samples that ended so far teaches anything: 8 AgentExit: exit code 3"
    )
    assert len(up.of(SessionStarted)) == len(MANY), "nothing is stopped for it: another might do well"
    assert result.cause.startswith(f"AllFailed: all {len(MANY)} samples failed")


async def test_an_engine_that_fails_at_first_and_then_works_is_no_reason_to_give_up(up: Rig) -> None:
    failures = {"left": 3}

    class Ill(dict[str, Any]):
        def items(self) -> Any:
            failures["left"] -= 1
            return (
                [("", Reply("", fault=Fault("status", status=500, message="starting")))]
                if failures["left"] >= 0
                else []
            )

    up.script.rules = Ill()
    result = await up.run(job("a 1 tea", "b 2 tea", "c 3 tea", parallelism=3))
    assert (result.complete, result.cause) == (True, "")
    infra = [one for one in up.of(SessionEnded) if one.failure_class is not None]
    assert [one.failure_reason for one in infra] == [FailureReason.ENGINE_ERROR] * 3
    assert all(one.reward is None for one in infra)
    assert {row.reward for row in up.rows()} == {9.0}


def nothing_twice(up: Rig) -> None:
    """No row is there twice, no sample by two attempts, and nothing was acknowledged again."""
    rows = Counter((row.session_id, row.trajectory_id) for row in up.rows())
    samples = {(row.uid, row.sample_index, row.session_id) for row in up.rows()}
    assert set(rows.values()) == {1}
    assert len(samples) == len({one[:2] for one in samples})
    assert set(acknowledged(up.out).values()) <= {1}


def acknowledged(out: Path) -> Counter[str]:
    """How often each session was, by the journals."""
    found: Counter[str] = Counter()
    for path in journals(out):
        with closing(sqlite3.connect(path)) as db:
            for row in db.execute(f"{SELECT} WHERE session = ''"):
                record = read(row)[2]
                if isinstance(record, Acked):
                    found.update(record.sessions)
    return found


async def test_samples_that_failed_run_again_when_they_are_asked_for(up: Rig) -> None:
    up.script.rules["FAULT"] = BROKEN
    wanted = job("fault 7 kiwi", "good 1 tea", groupSize=2, parallelism=4, group={"retry": {"infra": 0}})
    first = await up.run(wanted)
    assert (first.complete, first.missing_groups) == (False, 1)
    assert "infra/EngineError" in first.cause
    assert [(row.uid, row.sample_index) for row in up.rows()] == [("fault", 0), ("good", 0), ("good", 1)]
    before = up.rows()
    del up.script.rules["FAULT"]

    second = await up.run(wanted)
    assert up.of(SessionStarted) == [], "nothing is tried again that nobody asked for"
    assert (second.complete, second.cause) == (False, first.cause), "and it is no success the second time"

    third = await up.run(wanted, retry_failed=True)
    assert [(one.uid, one.sample, one.attempt) for one in up.of(SessionStarted)] == [("fault", 1, 1)]
    assert [one.uid for one in up.of(GroupCollected)] == ["fault"]
    assert (third.complete, third.cause, third.missing_groups) == (True, "", 0)
    rows = up.rows()
    assert [(row.uid, row.sample_index, row.attempt) for row in rows] == [
        ("fault", 0, 0),
        ("fault", 1, 1),
        ("good", 0, 0),
        ("good", 1, 0),
    ]
    assert [row for row in rows if row.attempt == 0] == before, "rows that were there are as they were"
    nothing_twice(up)

    for retry in (False, True):
        again = await up.run(wanted, retry_failed=retry)
        assert again.complete
        assert up.of(SessionStarted) == []
        assert up.rows() == rows


async def test_an_agent_that_died_before_its_first_turn_runs_again_and_one_with_a_row_does_not(
    up: Rig,
) -> None:
    """The gateway has handed over that there is nothing of it: what comes now comes as another attempt."""
    own = up.folder / "agent.py"
    good = (HERE / "agent.py").read_text()
    own.write_text(good.replace("def main() -> None:", "def main() -> None:\n    early()\n", 1) + EARLY)
    own.write_text(own.read_text().replace('if __name__ == "__main__":\n    main()\n', "", 1) + "\nmain()\n")
    wanted = job("early 7 kiwi", "crash 1 tea", groupSize=2, parallelism=1, agent=agent("python", str(own)))
    first = await up.run(wanted)
    assert (first.complete, first.missing_groups) == (False, 1)
    assert "agent/AgentExit exit code 3: no library" in first.cause
    own.write_text(good)
    second = await up.run(wanted, retry_failed=True)
    assert [(one.uid, one.sample, one.attempt) for one in up.of(SessionStarted)] == [("early", 1, 1)]
    assert second.complete
    assert [(row.uid, row.sample_index, row.attempt, row.failure_reason) for row in up.rows()] == [
        ("early", 0, 0, None),
        ("early", 1, 1, None),
        ("crash", 0, 0, None),
        ("crash", 1, 0, "AgentExit"),
    ]
    nothing_twice(up)


EARLY = """

def early() -> None:
    if os.environ["SANDGATE_PROMPT"].startswith("early") and "-1-" in os.environ["SANDGATE_SESSION_ID"][-5:]:
        print("no library", file=sys.stderr)
        raise SystemExit(3)
"""


async def test_a_retry_that_is_cut_off_is_taken_up_by_the_next_run(up: Rig) -> None:
    up.script.rules["FAULT"] = BROKEN
    wanted = job("fault 7 kiwi", groupSize=2, parallelism=2, group={"retry": {"infra": 0}})
    assert not (await up.run(wanted)).complete
    gate = up.script.gate("FAULT")

    async def abort() -> None:
        await gate.reached.wait()
        up.abort.set()

    aborting = asyncio.ensure_future(abort())
    assert not (await up.run(wanted, retry_failed=True)).complete
    await aborting
    up.abort.clear()
    gate.open.set()
    assert [row.sample_index for row in up.rows()] == [0], "what there was is still there"
    last = await up.run(wanted)
    assert last.complete
    assert [(row.sample_index, row.attempt) for row in up.rows()] == [(0, 0), (1, 2)]


async def test_a_group_that_has_its_quorum_is_there(up: Rig) -> None:
    up.script.rules["FAULT"] = BROKEN
    enough = {"quorum": 1, "stragglerSeconds": 0, "retry": {"infra": 0}}
    wanted = job("fault 7 kiwi", groupSize=2, parallelism=2, group=enough)
    assert (await up.run(wanted)).complete
    again = await up.run(wanted, retry_failed=True)
    assert again.complete
    assert up.of(SessionStarted) == []
    assert not (await up.run(job("fault 7 kiwi", groupSize=2, group={"retry": {"infra": 0}}))).complete


async def test_a_full_disk_is_told_at_once_and_who_died_of_it_is_tried_again(up: Rig) -> None:
    full = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Problem) and "cannot write its journal" in event.text:
            full.set()

    up.on_event = on_event
    with small_disk(up.out, "160m"):
        gate = up.script.gate("seven")
        run = asyncio.create_task(up.run(job("a seven kiwis", reward={"source": "exitCode"})))
        await gate.reached.wait()
        fill(up.out / "filler")
        gate.open.set()
        await asyncio.wait([run, asyncio.ensure_future(full.wait())], return_when=asyncio.FIRST_COMPLETED)
        assert not run.done()
        (problem,) = [one.text for one in up.of(Problem) if "journal" in one.text]
        assert "shop-gateway-0 cannot write its journal" in problem
        assert f"0 MiB are free in {up.out}: make room there" in problem
        (up.out / "filler").unlink()
        assert (await run).complete
    assert [(one.attempt, one.failure_reason) for one in up.of(SessionEnded)] == [
        (0, FailureReason.GATEWAY_LOST),
        (1, None),
    ]
