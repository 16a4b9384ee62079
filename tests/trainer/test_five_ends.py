"""Right, wrong, crashing, hanging, killed: each end of an agent reads differently in the record and to TRL.
The real command, real processes; only the engine is scripted."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.arrow import read_parquet
from sandgate.trainer.trl import rows as trl
from tests.trainer.jobs import AGENT, MANIFEST, Ended, lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

ENDS = ("right", "wrong", "crashing", "raising", "hanging", "killed")
"""By sample."""
DEEDS = """
def end(sample):
    import os, signal
    match sample:
        case 1: sys.exit("wanted 7 kiwi")
        case 2: print("no disk", file=sys.stderr); print("bye"); sys.exit(3)
        case 3: {}["kiwi"]
        case 4: print("waiting", file=sys.stderr); signal.pause()
        case 5: print("panic", file=sys.stderr); os.kill(os.getpid(), signal.SIGSEGV)
end(int(os.environ["SANDGATE_SESSION_ID"].split("-")[-2]))
"""
HANG_S = 12


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """One group of all of them."""
    folder = tmp_path_factory.mktemp("ends")

    async def run() -> Ended:
        async with lab(folder, ["yes"]) as here:
            (folder / "agent.py").write_text(AGENT.rpartition("sys.exit")[0] + DEEDS)
            wanted = yaml.safe_load(MANIFEST.replace("PYTHON", sys.executable))
            wanted["spec"] |= {
                "tasks": {"inline": [{"uid": "q1", "prompt": "one?"}]},
                "groupSize": len(ENDS),
                "parallelism": 3,
                "limits": {"sessionSeconds": HANG_S},
            }
            (folder / "job.yaml").write_text(yaml.safe_dump(wanted))
            done = await here.run()
            assert done.code == 0, done.stderr
            return done

    return folder, asyncio.run(run())


@pytest.fixture(scope="module")
def rows(ran: tuple[Path, Ended]) -> dict[str, Trajectory]:
    found = list(read_parquet(ran[0] / "out" / "trajectories.parquet"))
    return {ENDS[row.sample_index]: row for row in found}


READS: dict[str, tuple[Any, ...]] = {
    "right": (None, None, 1.0, True, False, {"exit_code": 0}),
    "wrong": (
        "policy", "AnswerWrong", 0.0, True, False,
        {"exit_code": 1, "signal": None, "detail": "wanted 7 kiwi", "traceback": False},
    ),
    "crashing": (
        "agent", "AgentExit", 0.0, False, True,
        {"exit_code": 3, "signal": None, "detail": "no disk", "traceback": False},
    ),
    "raising": (
        "policy", "AnswerWrong", 0.0, True, False,
        {"exit_code": 1, "signal": None, "detail": "KeyError: 'kiwi'", "traceback": True},
    ),
    "hanging": (
        "policy", "SessionTimeout", 0.0, False, False,
        {
            "exit_code": None, "signal": None, "detail": f"still running after sessionSeconds {HANG_S}",
            "traceback": False,
        },
    ),
    "killed": (
        "agent", "AgentSignal", 0.0, False, True,
        {"exit_code": None, "signal": "SIGSEGV", "detail": "panic", "traceback": False},
    ),
}  # fmt: skip
"""End -> failure_class, failure_reason, reward, complete, masked, reward_info."""


@pytest.mark.parametrize("end", ENDS)
def test_each_end_reads_differently(rows: dict[str, Trajectory], end: str) -> None:
    row = rows[end]
    assert (
        row.failure_class, row.failure_reason, row.reward, row.complete, row.masked, row.reward_info,
    ) == READS[end]  # fmt: skip


def test_no_two_of_them_are_the_same() -> None:
    assert len({json.dumps(one) for one in READS.values()}) == len(ENDS)


def test_a_group_s_mean_in_trl_is_over_what_the_policy_did(rows: dict[str, Trajectory]) -> None:
    made = trl.rollout(trl.group_rows(list(rows.values()), len(ENDS)), 0)
    assert dict(zip(ENDS, made["env_reward"], strict=True)) == {
        "right": 1.0, "wrong": 0.0, "crashing": None, "raising": 0.0, "hanging": 0.0, "killed": None,
    }  # fmt: skip
    trained = dict(zip(ENDS, map(any, made["env_mask"]), strict=True))
    assert [end for end, is_trained in trained.items() if not is_trained] == ["crashing", "killed"]


def test_the_summary_counts_crashes_that_look_like_wrong_answers(ran: tuple[Path, Ended]) -> None:
    told = dict(line.split(None, 1) for line in ran[1].stdout.splitlines()[1:])
    failures = told["failures"].strip()
    assert failures.endswith("; exit 1 with a traceback: 1")
    assert sorted(failures.partition(";")[0].split(", ")) == [
        "AgentExit 1", "AgentSignal 1", "AnswerWrong 2", "SessionTimeout 1",
    ]  # fmt: skip
    assert told["reward"].strip() == "0.250 ± 0.433, 25% of 4 scored sessions solved"


TOLD = {
    "wrong": None,
    "crashing": "agent/AgentExit exit code 3: no disk",
    "raising": "policy/AnswerWrong exit code 1 with a traceback: KeyError: 'kiwi'",
    "hanging": f"policy/SessionTimeout still running after sessionSeconds {HANG_S}",
    "killed": "agent/AgentSignal killed by SIGSEGV: panic",
}


@pytest.mark.parametrize(("end", "words"), TOLD.items(), ids=TOLD)
def test_a_person_is_told_of_what_broke_and_not_of_what_was_wrong(
    ran: tuple[Path, Ended], end: str, words: str | None
) -> None:
    said = [line for line in ran[1].stderr.splitlines() if f"sample {ENDS.index(end)}," in line]
    assert [line.partition("): ")[2] for line in said] == ([words] if words else [])
