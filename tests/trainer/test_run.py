"""`sandgate run`, as a user has it: real processes from the command to the agent; only the engine is scripted."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sandgate.trainer import tinymodel
from sandgate.trainer.cli import app
from sandgate.trainer.cli import run as command
from sandgate.trainer.export.arrow import read_parquet
from tests.support.waiting import until
from tests.trainer.jobs import MANIFEST, ended, lab


async def test_a_job_runs_to_its_end_and_says_what_it_gave(tmp_path: Path) -> None:
    async with lab(tmp_path, lambda ids, number: "yes" if number % 2 else "no") as here:
        done = await here.run()
        assert done.code == 0, done.stderr
        assert measured(done.stdout) == measured(page_example())
        told = dict(line.split(None, 1) for line in done.stdout.splitlines()[1:])
        assert told["state"].strip() == "complete"
        assert told["sessions"].strip() == "4 in 2 groups"
        assert told["reward"].strip() == "0.500 ± 0.500, 50% solved"
        assert told["trajectories"].strip() == "4 in out/trajectories.parquet"
        assert told["model"].strip() == "model"
        assert "gateway ask-gateway-0 listens on" in done.stderr
        assert "4/4 sessions" in done.stderr
        shown = CliRunner().invoke(app, ["show", "ask-q1-b979e0ce57e8-0-0", "--out", str(tmp_path / "out")])
        assert re.search("«(yes|no)<.im_end.>»", shown.stdout), "text, without being told the tokenizer again"
    rows = list(read_parquet(tmp_path / "out" / "trajectories.parquet"))
    assert sorted((row.uid, row.sample_index) for row in rows) == [("q1", 0), ("q1", 1), ("q2", 0), ("q2", 1)]
    for row in rows:
        answer = "yes" if row.reward == 1.0 else "no"
        assert tinymodel.decode(row.response_ids) == f"{answer}<|im_end|>"
        assert row.loss_mask.tolist() == [1] * len(row.response_ids)


async def test_a_job_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        first, again = await here.run("--json"), await here.run("--json")
        assert (first.code, again.code) == (0, 0)
        assert here.player.counts["generations"] == 4
    found = json.loads(again.stdout)
    assert found["complete"] is True
    assert (found["sessions"], found["trajectories"], found["reward_mean"]) == (4, 4, 1.0)
    assert first.stderr == again.stderr == "", "--json is quiet"


def page_example() -> str:
    """What docs/cli.md shows for `sandgate run`, without the command."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    return page.split("$ sandgate run ", 1)[1].split("```", 1)[0].split("\n", 1)[1]


def measured(shown: str) -> list[str]:
    """Its lines, but for the rate: that is this machine's."""
    lines = [line.rstrip() for line in shown.splitlines()]
    return [re.sub(r"[\d.,]+ tokens/s, [\d.]+ s", "N tokens/s, N s", line) for line in lines]


async def said(process: asyncio.subprocess.Process, word: str) -> None:
    """Until a line of stderr has the word."""
    assert process.stderr is not None
    while word not in (line := (await process.stderr.readline()).decode()):
        assert line, f"it ended without saying {word!r}"


async def test_ctrl_c_lets_sessions_end_and_a_rerun_goes_on(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        here.player.pause("keep")
        process = await here.start("--json")

        async def two_run() -> bool:
            return here.player.running == 2

        await until(two_run, what="two agents ask the engine", within_s=60.0)
        process.send_signal(signal.SIGINT)
        await said(process, "stopping")
        here.player.resume()
        first = await ended(process)
        assert first.code == 130, first.stderr
        assert json.loads(first.stdout)["complete"] is False
        assert here.player.counts["generations"] == 2
        again = await here.run("--json")
        assert again.code == 0, again.stderr
        assert here.player.counts["generations"] == 4
    assert json.loads(again.stdout)["trajectories"] == 4


async def test_ctrl_c_twice_aborts(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        here.player.pause("keep")
        process = await here.start()

        async def two_run() -> bool:
            return here.player.running == 2

        await until(two_run, what="two agents ask the engine", within_s=60.0)
        process.send_signal(signal.SIGINT)
        await said(process, "stopping")
        process.send_signal(signal.SIGINT)
        done = await ended(process)
        assert done.code == 130, done.stderr
        assert "Traceback" not in done.stderr


async def test_ctrl_c_before_anything_runs_ends_it_at_once(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        here.player.pause("keep")
        process = await here.start()

        async def claimed() -> bool:
            return (tmp_path / "out" / "job.json").exists()

        await until(claimed, what="the run has begun", within_s=60.0)
        process.send_signal(signal.SIGINT)
        done = await ended(process)
        assert (done.code, done.stdout) == (130, ""), done.stderr
        assert "Traceback" not in done.stderr


def ask(*words: object) -> Any:
    return CliRunner().invoke(app, ["run", *[str(word) for word in words]])


def test_an_engine_that_does_not_answer_is_told_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ENGINE_S", 0.1)
    (tmp_path / "job.yaml").write_text(MANIFEST)
    said = ask(tmp_path / "job.yaml", "--out", tmp_path / "out")
    assert (said.exit_code, said.stdout) == (1, "")
    assert said.stderr.startswith("error: no engine answers: http://127.0.0.1:9")


WRONG = {
    "no such file": (None, [], "nowhere.yaml"),
    "not YAML": ("a: [", [], "not YAML"),
    "another kind": (MANIFEST.replace("RolloutJob", "Deployment"), [], "kind"),
    "a field that does not exist": (MANIFEST + "  parallel: 3\n", [], "[field spec.parallel]"),
    "a number that is text": (
        MANIFEST.replace("groupSize: 2", "groupSize: two"),
        [],
        "[field spec.groupSize]",
    ),
    "a number out of bounds": (
        MANIFEST.replace("groupSize: 2", "groupSize: 0"),
        [],
        "[field spec.groupSize]",
    ),
    "two engines": (MANIFEST.replace('"]}', '"], managed: {}}'), [], "cannot stand beside endpoints"),
    "no tasks": (MANIFEST.replace("tasks: {inline", "task: {inline"), [], "spec.task"),
    "a task twice": (MANIFEST.replace("q2", "q1"), [], "is there twice"),
    "an engine URL that is none": (MANIFEST, ["--engine-url", "localhost"], "[field --engine-url]"),
    "two documents": (f"{MANIFEST}---\n{MANIFEST}", [], "error: "),
}


@pytest.mark.parametrize(("text", "words", "wanted"), WRONG.values(), ids=WRONG)
def test_a_wrong_manifest_is_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, words: list[str], wanted: str
) -> None:
    async def up(urls: list[str]) -> None:
        """The engine is not what is wrong here."""

    monkeypatch.setattr(command, "answering", up)
    if text is not None:
        (tmp_path / "job.yaml").write_text(text)
    found = ask(
        tmp_path / ("job.yaml" if text is not None else "nowhere.yaml"), "--out", tmp_path / "out", *words
    )
    assert found.exit_code == 2, found.output
    assert wanted in found.stderr
    assert (found.stdout, found.stderr.count("\n")) == ("", 1)
    assert found.stderr.startswith("error: ")
