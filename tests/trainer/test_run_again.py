"""`sandgate run` a second time: after a failure, after a change of the manifest, after somebody deleted half of it."""

from __future__ import annotations

import fcntl
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.attach import LOCK
from sandgate.trainer.cli.run import state
from sandgate.trainer.export.arrow import read_parquet, samples_in_parquet
from sandgate.trainer.runs import folder
from tests.support.waiting import until
from tests.trainer.jobs import AGENT, Lab, ended, lab

WORDS = "AnswerWrong exit code 1 with a traceback: ModuleNotFoundError: No module named 'no_such_module'"
CAUSE = f"AgentsFailAlike: {WORDS}"
"""An exit with 1 is a wrong answer where exit codes are rewards; of agents that never asked anything it is none."""


def kept(here: Lab) -> dict[str, Any]:
    """What result.json says of the last run."""
    found: dict[str, Any] = json.loads((here.folder / "out" / "result.json").read_text())["told"]
    return found


STATES = {
    "samples without a row are run again": ({"missing_groups": 1, "trajectories": 3}, "--retry-failed"),
    "rows that are all there are not": ({"missing_groups": 0, "trajectories": 8}, "--fresh"),
}


@pytest.mark.parametrize(("there_is", "helps"), STATES.values(), ids=STATES)
def test_the_option_that_helps_is_named(there_is: dict[str, int], helps: str) -> None:
    assert state({"complete": False, "cause": "AllFailed: 8", **there_is}).endswith(helps)


async def test_a_job_of_which_nothing_came_is_no_success_until_it_is_mended(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        (tmp_path / "agent.py").write_text("import no_such_module\n" + AGENT)
        first = await here.run()
        assert first.code == 1, first.stderr
        assert first.stderr.splitlines()[-1] == f"error: {CAUSE}"
        assert "state         failed: mend the cause, then run it again with --retry-failed" in first.stdout
        assert "trajectories  0 in " in first.stdout
        assert kept(here)["cause"] == CAUSE

        second = await here.run("--json")
        found = json.loads(second.stdout)
        assert kept(here) == found
        assert second.code == 1
        assert (found["complete"], found["missing_groups"], found["trajectories"]) == (False, 2, 0)
        assert found["cause"].startswith(
            "2 of 2 groups are incomplete, 4 samples without a row; the first: ask-q"
        )
        assert found["cause"].endswith(f"policy/{WORDS}")
        assert second.stderr == f"error: {found['cause']}\n"
        assert here.player.counts["generations"] == 0

        (tmp_path / "agent.py").write_text(AGENT)
        third = await here.run("--json", "--retry-failed")
        assert third.code == 0, third.stderr
        found = json.loads(third.stdout)
        assert (found["complete"], found["cause"], found["missing_groups"]) == (True, None, 0)
    rows = list(read_parquet(tmp_path / "out" / "trajectories.parquet"))
    assert [(row.uid, row.sample_index) for row in rows] == [("q1", 0), ("q1", 1), ("q2", 0), ("q2", 1)]
    assert all(row.attempt > 0 for row in rows)
    assert samples_in_parquet(tmp_path / "out" / "trajectories.parquet") == {
        (row.uid, row.sample_index) for row in rows
    }


def change(here: Lab, before: str, after: str) -> None:
    path = here.folder / "job.yaml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


async def test_a_changed_manifest_is_refused_in_one_line_with_code_2(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run()).code == 0
        change(here, "groupSize: 2", "groupSize: 2\n  sampling: {temperature: 0.2}")
        change(here, '"one?"', '"1?"')
        found = await here.run("--json")
        assert (found.code, found.stdout) == (2, "")
        assert found.stderr == (
            "error: out: holds rows made with spec.sampling.temperature unset (now 0.2); another prompt or data of"
            " task q1; they would be mixed: give this job a folder of its own (--out), or start over with --fresh\n"
        ).replace("out:", f"{tmp_path / 'out'}:", 1)
        assert here.player.counts["generations"] == 4


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All below it, with what a write would change; not what SQLite keeps beside a journal that is read."""
    there = [path for path in folder.rglob("*") if path.is_file() and "sqlite-" not in path.name]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in there}


async def test_a_dry_run_says_what_the_run_would_say_of_its_folder_and_leaves_it_alone(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run()).code == 0
        unchanged = await here.run("--dry-run")
        assert (unchanged.code, unchanged.stdout) == (0, "ask can run here: 4 sessions in 2 groups\n")

        change(here, "groupSize: 2", "groupSize: 2\n  sampling: {temperature: 0.2}")
        before = files(tmp_path / "out")
        dry = await here.run("--dry-run")
        told = json.loads((await here.run("--dry-run", "--json")).stdout)
        anew = await here.run("--dry-run", "--fresh")
        assert files(tmp_path / "out") == before
        refused = await here.run()
        assert (dry.code, dry.stdout) == (refused.code, "") == (2, "")
        assert dry.stderr == refused.stderr.removesuffix("\n") + " [field --out]\n"
        assert (told["ready"], [one["field"] for one in told["findings"]]) == (False, ["--out"])
        assert (anew.code, anew.stdout) == (0, "ask can run here: 4 sessions in 2 groups\n")

        change(here, "name: ask", "name: other")
        other = await here.run("--dry-run", "--fresh")
        assert other.code == 2
        assert "holds a run of ask, this job is other" in other.stderr


async def test_a_dry_run_says_that_another_run_uses_the_folder(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run()).code == 0
        with (tmp_path / "out" / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for words in ((), ("--fresh",)):
                said = await here.run("--dry-run", *words)
                assert (said.code, said.stdout) == (2, "")
                assert "out: another run uses this folder" in said.stderr


async def test_half_of_the_output_deleted_is_written_again(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run()).code == 0
        out = tmp_path / "out"
        (out / "trajectories.parquet").unlink()
        next(out.glob("groups/ask-q1-*.parquet")).unlink()
        found = await here.run("--json")
        assert found.code == 0, found.stderr
        assert json.loads(found.stdout)["trajectories"] == 4
        assert len(list(out.glob("groups/*.parquet"))) == 2
        assert here.player.counts["generations"] == 4


async def test_a_run_that_went_on_and_was_cut_short_tells_of_its_new_groups(tmp_path: Path) -> None:
    """Beside the merged file of its earlier end."""
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run()).code == 0
        out = tmp_path / "out"
        before = (out / "trajectories.parquet").read_bytes()
        change(
            here,
            "]}\n  groupSize",
            ', {uid: q3, prompt: "three?"}, {uid: q4, prompt: "four?"}]}\n  groupSize',
        )
        (tmp_path / "agent.py").write_text(
            "import os, signal\nif 'four' in os.environ['SANDGATE_PROMPT']: signal.pause()\n" + AGENT
        )
        going = await here.start("--json")

        async def collected() -> bool:
            return (
                len(list(out.glob(folder.GROUPS))) == 3
                and len(list((out / "logs").glob("ask-q4-*.log"))) == 2
            )

        await until(collected, what="the third group is done, and the fourth has begun")
        going.send_signal(signal.SIGINT)
        going.send_signal(signal.SIGTERM)  # means the same; a second SIGINT might be taken for the first
        said = await ended(going)
        found = json.loads(said.stdout)
        assert said.code == 130, said.stderr
        assert (found["complete"], found["groups"], found["trajectories"]) == (False, 3, 6)
        assert (out / "trajectories.parquet").read_bytes() == before
        assert sorted(row.uid for row in folder.trajectories(out)) == ["q1", "q1", "q2", "q2", "q3", "q3"]
