"""With `reward.source: exitCode` only an exit code 0 that was seen is 1.0: real agents, as processes, try all else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest
from sandgate.contract.exits import LINE_CHARS_MAX
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode, encode
from sandgate.contract.trajectory import Trajectory
from tests.adversary.liar import BEST
from tests.operator.rig import job, rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

LIAR = str(Path(__file__).with_name("liar.py"))
CODES = {"source": "exitCode"}
HANG_S = 12


@dataclass(frozen=True)
class Told:
    """How an attempt to get a reward ends."""

    blame: str | None
    reason: str | None
    reward: float
    masked: bool
    code: int | None
    signal: str | None = None

    @classmethod
    def of(cls, row: Trajectory) -> Told:
        said = row.reward_info
        assert row.reward is not None
        code, name = said["exit_code"], said.get("signal")
        return cls(row.failure_class, row.failure_reason, row.reward, row.masked, code, name)


HUNG = Told("policy", "SessionTimeout", 0.0, False, None)
WRONG = Told("policy", "AnswerWrong", 0.0, False, 1)
CLAIMS = {
    "complete-and-hang": HUNG,
    "complete-and-exit-1": WRONG,
    "complete-and-exit-3": Told("agent", "AgentExit", 0.0, True, 3),
    "complete-and-die": Told("agent", "AgentSignal", 0.0, True, None, "SIGKILL"),
    "be-stopped-politely": HUNG,
    "leave-a-message": WRONG,
    "reward-itself": WRONG,
    "child-exits-0": WRONG,
    "write-rubbish": Told("agent", "AgentExit", 0.0, True, 3),
    "show-its-key": WRONG,
    "honest": Told(None, None, 1.0, False, 0),
}
"""What it tries -> what it gets."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trajectory]:
    folder = tmp_path_factory.mktemp("liars")

    async def ran() -> dict[str, Trajectory]:
        async with rig(folder) as up:
            await up.run(
                job(
                    *CLAIMS,
                    parallelism=4,
                    reward=CODES,
                    limits={"sessionSeconds": HANG_S},
                    agent={
                        "backend": "Process",
                        "template": {"spec": {"containers": [{"command": ["python", LIAR]}]}},
                    },
                )
            )
            return {row.uid: row for row in up.rows()}

    found = asyncio.run(ran())
    assert list(found) == list(CLAIMS)
    return found


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_an_agent_gets_for_it(rows: dict[str, Trajectory], claim: str) -> None:
    row = rows[claim]
    assert Told.of(row) == CLAIMS[claim]
    assert sum(row.turn_rewards) == row.reward


@pytest.mark.parametrize(
    "claim", [name for name in CLAIMS if name.startswith("complete") or name == "honest"]
)
def test_what_it_says_of_itself_is_kept_and_cannot_be_taken_for_what_was_seen(
    rows: dict[str, Trajectory], claim: str
) -> None:
    said = dict(rows[claim].reward_info)
    assert said.pop("complete") == BEST
    assert said.keys() <= {"exit_code", "signal", "detail", "traceback"}


def test_a_hang_says_that_it_was_a_hang(rows: dict[str, Trajectory]) -> None:
    assert rows["complete-and-hang"].reward_info["detail"] == f"still running after sessionSeconds {HANG_S}"
    assert not rows["complete-and-hang"].complete


def test_rubbish_becomes_one_line_that_can_be_stored(rows: dict[str, Trajectory]) -> None:
    line = rows["write-rubbish"].reward_info["detail"]
    assert line.endswith("y…")
    assert len(line) == LINE_CHARS_MAX
    assert line.isprintable()
    assert json.loads(json.dumps(line)) == line


def test_a_key_on_stderr_stays_out_of_the_record(rows: dict[str, Trajectory]) -> None:
    assert rows["show-its-key"].reward_info["detail"] == "[key]"


def test_a_job_whose_exit_codes_would_not_be_seen_is_refused_and_told_what_to_do() -> None:
    manifest: Any = encode(job("a", reward=CODES))
    manifest["spec"]["agent"]["completion"] = "Complete"
    with pytest.raises(BadManifest, match="use Exit, or another source") as refused:
        decode(RolloutJob, manifest)
    assert refused.value.field == "spec.agent.completion"
