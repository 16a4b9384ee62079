"""A stranger's first day: examples/first_day, run by the real command. Right, wrong, crashing, hanging and killed
agents read differently wherever one looks; what strangers do next ends with the right exit code and one line that says
why. Only the engine is scripted; tests/e2e/test_first_day.py has the real one."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.arrow import read_parquet
from tests.trainer import first_day
from tests.trainer.first_day import change
from tests.trainer.jobs import Ended, Lab, ended

README = (first_day.EXAMPLES / "first_day" / "README.md").read_text("utf-8")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Done:
    """A run that is over, and what the same command says once more."""

    folder: Path
    first: Ended
    again: Ended
    """With --json."""
    rows: list[Trajectory]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    async def run() -> Done:
        async with first_day.scripted(tmp_path_factory.mktemp("first")) as here:
            first, again = await here.run(), await here.run("--json")
            return Done(here.folder, first, again, rows_of(here.folder))

    return asyncio.run(run())


def rows_of(folder: Path) -> list[Trajectory]:
    return list(read_parquet(folder / "out" / "trajectories.parquet"))


# -- one run, wherever it is looked at --------------------------------------------------------------------------------


def test_the_job_is_complete(done: Done) -> None:
    assert (done.first.code, done.again.code) == (0, 0), done.first.stderr


def test_live_lines_tell_the_ends_apart(done: Done) -> None:
    first_day.live_lines_tell_them_apart(done.first.stderr)


def test_the_last_line_counts_what_was_right_and_what_was_wrong(done: Done) -> None:
    (last,) = [line for line in done.first.stderr.splitlines() if line.startswith("24/24 sessions")]
    assert "10 solved" in last
    assert "8 AnswerWrong" in last


def test_the_final_table_counts_them_apart(done: Done) -> None:
    told = dict(line.rstrip().split(None, 1) for line in done.first.stdout.splitlines()[1:])
    assert told["state"] == "complete"
    assert told["sessions"] == "24 in 6 groups"
    assert told["reward"] == "0.500 ± 0.500, 50% of 20 scored sessions solved"
    reasons, _, tracebacks = told["failures"].partition("; ")
    assert sorted(reasons.split(", ")) == [
        "AgentExit 2",
        "AgentSignal 2",
        "AnswerWrong 8",
        "SessionTimeout 2",
    ]
    assert tracebacks == "exit 1 with a traceback: 2"


def test_so_does_the_report_for_programs(done: Done) -> None:
    told = json.loads(done.again.stdout)
    assert told["complete"] is True
    assert told["failures"] == {"AgentExit": 2, "AgentSignal": 2, "AnswerWrong": 8, "SessionTimeout": 2}
    assert (told["tracebacks"], told["trajectories"], told["reward_mean"]) == (2, 24, 0.5)


def test_each_row_reads_as_its_session_ended(done: Done) -> None:
    found = first_day.rows_read_as_they_should(done.rows)
    assert found == {"right": 10, "wrong": 6, "raises": 2, "crashes": 2, "hangs": 2, "killed": 2}


def test_groups_mean_what_the_policy_did(done: Done) -> None:
    first_day.groups_mean_what_the_policy_did(done.rows)


def test_the_program_of_its_readme_prints_every_row(done: Done) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    argv = [sys.executable, "-c", program, str(done.folder / "out" / "trajectories.parquet")]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(shown) == 24
    assert sum("1.0 trained - {'exit_code': 0}" in line for line in shown) == 10
    assert [line.split(" ", 5)[:5] for line in shown if " masked " in line] == [
        [uid, sample, "0.0", "masked", f"agent/{reason}"]
        for uid, reason in (("crashes", "AgentExit"), ("killed", "AgentSignal"))
        for sample in "23"
    ]


@pytest.mark.parametrize("kind", first_day.SAYS)
def test_its_readme_quotes_the_line_of_each_accident(kind: str) -> None:
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `{kind}` |")]
    (quoted,) = re.findall(r"a line: `(.*?)(?:\.\.\.)?`", row)
    assert quoted in first_day.SAYS[kind]


# -- what strangers do next -------------------------------------------------------------------------------------------


async def again(
    done: Done, here: Lab, *words: str, harm: Callable[[Path], object] = lambda out: None
) -> Ended:
    """The finished run's folder, harmed, in a fresh copy of the example; the same command once more."""
    shutil.copytree(done.folder / "out", here.folder / "out")
    harm(here.folder / "out")
    return await here.run(*words)


def refused(said: Ended, *words: str) -> None:
    """Code 2, one line on stderr that has all the words, and nothing else."""
    assert (said.code, said.stdout) == (2, ""), said.stderr
    assert said.stderr.startswith("error: ")
    assert said.stderr.count("\n") == 1, said.stderr
    for word in words:
        assert word in said.stderr


CHANGED: dict[str, tuple[str, str, str]] = {
    "another temperature": ("temperature: 1.0", "temperature: 0.2", "spec.sampling.temperature"),
    "another prompt of a task that is done": ("buy 2 pear", "buy 3 pear", "task ordinary"),
    "another time limit": ("sessionSeconds: 30", "sessionSeconds: 31", "spec.limits.sessionSeconds"),
    "another reward": ("source: exitCode", "source: agent", "spec.reward.source"),
    "another command": (
        "[python, agent.py]", "[python, -u, agent.py]", "spec.agent.template.spec.containers[0].command",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "named"), CHANGED.values(), ids=CHANGED)
async def test_a_changed_manifest_is_refused_by_field(
    done: Done, tmp_path: Path, before: str, after: str, named: str
) -> None:
    async with first_day.scripted(tmp_path) as here:
        change(here.folder / "job.yaml", before, after)
        refused(await again(done, here), named, "--out", "--fresh")
        assert here.player.counts["generations"] == 0
        assert rows_of(here.folder) == done.rows, "nothing is mixed, and nothing is lost"


def half(*patterns: str) -> Callable[[Path], None]:
    """Removes every other file of each pattern, and the only one."""

    def harm(out: Path) -> None:
        for pattern in patterns:
            found = sorted(out.glob(pattern))
            assert found
            for path in found[::2]:
                path.unlink()

    return harm


async def test_half_of_the_groups_files_are_missed_aloud_where_nothing_is_lost(
    done: Done, tmp_path: Path
) -> None:
    async with first_day.scripted(tmp_path) as here:
        said = await again(done, here, harm=half("groups/*.parquet"))
    assert said.code == 0, said.stderr
    assert "3 files of groups/ are gone; their rows are in out/trajectories.parquet\n" in said.stdout
    assert rows_of(here.folder) == done.rows


async def test_half_of_the_output_is_written_again_from_the_journal(done: Done, tmp_path: Path) -> None:
    async with first_day.scripted(tmp_path) as here:
        said = await again(done, here, harm=half("groups/*.parquet", "trajectories.parquet"))
        assert here.player.counts["generations"] == 0, "what was sampled is in the journal"
    assert said.code == 0, said.stderr
    assert "going on: 24 samples and 3 groups are done\n" in said.stderr
    assert rows_of(here.folder) == done.rows


async def test_an_export_of_half_of_the_output_says_what_it_lacks(done: Done, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(done.folder / "out", out)
    half("groups/*.parquet", "trajectories.parquet")(out)
    sandgate = Path(sys.executable).with_name("sandgate")
    asked = await asyncio.create_subprocess_exec(
        sandgate, "export", out, "--to", tmp_path / "half.parquet", stdout=PIPE, stderr=PIPE
    )
    said = await ended(asked)
    assert said.code == 0, said.stderr
    assert said.stdout.startswith("12 trajectories -> ")
    assert said.stderr.startswith(
        f"warning: the journals in {out} have 12 trajectories more, of 3 whole groups"
    )
    assert said.stderr.count("\n") == 1


async def test_without_its_journal_a_folder_is_not_gone_on_with(done: Done, tmp_path: Path) -> None:
    async with first_day.scripted(tmp_path) as here:
        refused(await again(done, here, harm=half("gateway-0.sqlite")), "gateway-0.sqlite is gone")
        assert rows_of(here.folder) == done.rows


WRONG: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a typing error in the program": ("[python, agent.py]", "[pythn, agent.py]", ("pythn is not on PATH",)),
    "a typing error in its script": (
        "[python, agent.py]", "[python, agnet.py]", ("agnet.py: no such file", "did you mean agent.py?"),
    ),
    "a model's name that the engine does not know": (
        "{name: shop, tokenizer", "{name: shpo, tokenizer", ("does not serve shpo; it serves shop",),
    ),
    "a model's folder that is not there": (
        "../shop/model,", "../shop/modle,", ("spec.model.tokenizer", "no such folder; did you mean model?"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "words"), WRONG.values(), ids=WRONG)
async def test_what_cannot_run_is_said_before_anything_starts(
    tmp_path: Path, before: str, after: str, words: tuple[str, ...]
) -> None:
    async with first_day.scripted(tmp_path) as here:
        change(here.folder / "job.yaml", before, after)
        refused(await here.run(), *words)
        assert not (here.folder / "out").exists()
