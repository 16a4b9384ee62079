"""`sandgate run`, as a user has it: real processes from the command to the agent; only the engine is scripted."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.scripted.script import Gate, Reply
from sandgate.operator.local.manifest import parse_job
from sandgate.trainer import tinymodel
from sandgate.trainer.cli.command import app
from sandgate.trainer.export.arrow import read_parquet
from sandgate.trainer.runs import preflight
from sandgate.trainer.runs.finished import identity
from tests.support.waiting import until
from tests.trainer.jobs import AGENT, MANIFEST, Lab, ended, lab


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


NOT_SCORED: dict[str, tuple[str, str]] = {
    "some have no reward": ("'yes'", "1.000 ± 0.000, 100% of 2 scored sessions solved, 2 not scored"),
    "none has one": ("'never'", "4 not scored"),
}


@pytest.mark.parametrize(("scored", "reward"), NOT_SCORED.values(), ids=NOT_SCORED)
async def test_how_many_sessions_have_no_reward_is_told(tmp_path: Path, scored: str, reward: str) -> None:
    async with lab(tmp_path, lambda ids, number: "yes" if number % 2 else "no") as here:
        rewrite(tmp_path / "job.yaml", "source: exitCode", "source: agent")
        rewrite(
            tmp_path / "agent.py",
            AGENT.splitlines()[-1],
            f"if answer['choices'][0]['message']['content'] == {scored}:\n"
            "    json.dump({'reward': 1.0}, open(os.environ['SANDGATE_TERMINATION_LOG'], 'w'))",
        )
        done = await here.run()
        assert done.code == 0, done.stderr
        again = await here.run()
        told = [dict(line.split(None, 1) for line in one.stdout.splitlines()[1:]) for one in (done, again)]
        assert [one["reward"].strip() for one in told] == [reward, reward]
        assert ["problems" in one for one in told] == [scored == "'never'"] * 2


async def test_where_no_turn_was_taken_the_next_step_is_a_log(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        (tmp_path / "agent.py").write_text("raise SystemExit('no such module')")
        done = await here.run()
        assert done.code == 1
        words = done.stdout.splitlines()[-1].split()
        assert (words[0], words[2], words[4:]) == ("next", "logs", ["--out", "out"])
        looked = CliRunner().invoke(app, ["logs", words[3], "--out", str(tmp_path / "out")])
    assert "no such module" in looked.stdout


async def test_where_a_verifier_failed_the_next_step_is_its_log(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        judge = "{command: [python, -c, 'raise SystemExit(\"no such case\")']}"
        rewrite(
            tmp_path / "job.yaml",
            "source: exitCode",
            f"source: verifier, verifier: {{container: {judge}}}",
        )
        done = await here.run()
        assert done.code == 1
        words = done.stdout.splitlines()[-1].split()
        assert (words[0], words[2], words[4:]) == ("next", "logs", ["--verifier", "--out", "out"])
        looked = CliRunner().invoke(app, ["logs", words[3], "--verifier", "--out", str(tmp_path / "out")])
    assert "no such case" in looked.stdout


async def test_a_reward_in_the_wrong_place_is_told_with_the_right_one(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        rewrite(tmp_path / "job.yaml", "source: exitCode", "source: agent")
        rewrite(
            tmp_path / "agent.py",
            AGENT.splitlines()[-1],
            "json.dump({'score': 1.0}, open(os.environ['SANDGATE_TERMINATION_LOG'], 'w'))",
        )
        done = await here.run("--json")
    told = json.loads(done.stdout)
    assert (done.code, told["complete"], told["cause"]) == (0, True, None), "a trainer may score rows itself"
    assert told["problems"] == [
        'no session has a reward: with reward.source agent the agent writes {"reward": n} to '
        "$SANDGATE_TERMINATION_LOG; the last message had the keys: score"
    ]


async def test_a_job_that_is_done_is_reported_from_its_folder(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        first = await here.run("--json")
        assert (first.code, first.stderr) == (0, ""), "--json is quiet"
        here.url = "http://127.0.0.1:9"  # nothing is asked, and nothing is started
        again, shown = await here.run("--json"), await here.run()
        assert (again.code, again.stderr, shown.code, shown.stderr) == (0, "", 0, "")
    told = json.loads(again.stdout)
    assert told == json.loads(first.stdout) | {"finished_already": True}
    assert (told["complete"], told["sessions"], told["trajectories"], told["reward_mean"]) == (
        True,
        4,
        4,
        1.0,
    )
    *_, next_line, last = shown.stdout.splitlines()
    assert last == "finished already; --fresh runs it anew"
    assert next_line.split()[0] == "next"
    assert next_line.endswith(f"sandgate show {told['session']} --out out")
    looked = CliRunner().invoke(app, ["show", told["session"], "--out", str(tmp_path / "out")])
    assert "«yes" in looked.stdout


def gone(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


HARM: dict[str, tuple[Callable[[Path], object], int]] = {
    "the merged file is gone": (lambda out: gone([out / "trajectories.parquet"]), 0),
    "the merged file is cut off": (lambda out: (out / "trajectories.parquet").write_bytes(b"PAR1"), 0),
    "all files of groups and the merged one are gone": (
        lambda out: gone([*out.glob("groups/*"), out / "trajectories.parquet"]), 0,
    ),
    "its result cannot be read": (lambda out: (out / "result.json").write_text('{"format"'), 0),
    "its result lacks what is told": (
        lambda out: rewrite(out / "result.json", '"reward_mean"', '"reward"'), 0,
    ),
    "nothing but the result is there": (
        lambda out: gone([path for path in out.rglob("*") if path.is_file() and path.name != "result.json"]), 4,
    ),
}  # fmt: skip
"""-> generations that it takes to have it whole again."""


@pytest.mark.parametrize(("harm", "sampled"), HARM.values(), ids=HARM)
async def test_what_is_not_whole_is_gone_on_with(
    tmp_path: Path, harm: Callable[[Path], object], sampled: int
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run("--json")).code == 0
        harm(tmp_path / "out")
        again = await here.run("--json")
        told = json.loads(again.stdout)
        assert (again.code, told["complete"], "finished_already" in told) == (0, True, False), again.stderr
        assert here.player.counts["generations"] - 4 == sampled
        assert json.loads((await here.run("--json")).stdout) == told | {"finished_already": True}
    rows = list(read_parquet(tmp_path / "out" / "trajectories.parquet"))
    assert len(rows) == 4
    assert len(list((tmp_path / "out" / "groups").glob("*.parquet"))) == 2


async def test_files_of_groups_that_are_gone_are_named_where_their_rows_are_kept(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run("--json")).code == 0
        next((tmp_path / "out" / "groups").glob("*.parquet")).unlink()
        said = await here.run()
    assert said.code == 0
    assert "1 file of groups/ is gone; its rows are in out/trajectories.parquet\n" in said.stdout


async def test_that_agents_have_no_walls_here_is_a_note_and_said_once(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        rewrite(tmp_path / "job.yaml", "backend: Process", "backend: Pod")
        first = await here.run()
        (tmp_path / "out" / "result.json").unlink()
        again = await here.run()
    assert (first.code, again.code) == (0, 0), first.stderr
    said = "note: backend Pod: here agents run as local processes of this user, without isolation\n"
    assert (first.stderr.count(said), again.stderr.count("isolation")) == (1, 0)
    assert "problem" not in first.stderr + first.stdout


async def test_fresh_runs_it_anew_and_keeps_what_is_not_the_run_s(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        assert (await here.run("--json")).code == 0
        (tmp_path / "out" / "notes.txt").write_text("mine")
        (tmp_path / "out" / "logs" / "mine.log").write_text("mine")
        anew = await here.run("--json", "--fresh")
        assert (anew.code, json.loads(anew.stdout)["sessions"]) == (0, 4), anew.stderr
        assert here.player.counts["generations"] == 8
        assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
        assert (tmp_path / "out" / "logs" / "mine.log").read_text() == "mine"
        rewrite(tmp_path / "job.yaml", "tokenizer: model", "tokenizer: modle")
        wrong = await here.run("--fresh")
        assert (wrong.code, wrong.stdout) == (2, "")
        assert list(read_parquet(tmp_path / "out" / "trajectories.parquet")), (
            "what cannot run removes nothing"
        )


async def test_fresh_waits_for_no_other_run_and_takes_nothing_from_it(tmp_path: Path) -> None:
    gate = Gate()
    async with lab(tmp_path, [held(gate)]) as here:
        process = await here.start("--json")
        await two_ask(here)
        second = await here.run("--fresh")
        assert (second.code, second.stdout) == (2, "")
        assert second.stderr == f"error: out: another run uses this folder (process {process.pid})\n"
        gate.open.set()
        first = await ended(process)
        assert (first.code, json.loads(first.stdout)["trajectories"]) == (0, 4), first.stderr


def rewrite(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_another_manifest_and_other_tasks_are_another_run(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("one")
    inline, file = '{inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}', "{file: tasks.jsonl}"
    one = parse_job(MANIFEST.replace(inline, file))
    same, other = parse_job(MANIFEST.replace(inline, file) + "\n"), parse_job(MANIFEST)
    first = identity(one, tmp_path)
    assert first == identity(same, tmp_path) != identity(other, tmp_path)
    (tmp_path / "tasks.jsonl").write_text("two")
    assert identity(one, tmp_path) != first
    (tmp_path / "tasks.jsonl").unlink()
    assert identity(one, tmp_path) == ""


def page_example() -> str:
    """What docs/cli.md shows for `sandgate run`, without the command."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    return page.split("$ sandgate run ", 1)[1].split("```", 1)[0].split("\n", 1)[1]


def measured(shown: str) -> list[str]:
    """Its lines, but for the rate: that is this machine's."""
    lines = [re.sub(r"\S+/sandgate", "sandgate", line.rstrip()) for line in shown.splitlines()]
    return [re.sub(r"[\d.,]+ tokens/s, [\d.]+ s", "N tokens/s, N s", line) for line in lines]


async def said(process: asyncio.subprocess.Process, word: str) -> None:
    """Until a line of stderr has the word."""
    assert process.stderr is not None
    while word not in (line := (await process.stderr.readline()).decode()):
        assert line, f"it ended without saying {word!r}"


def held(gate: Gate) -> Reply:
    """Sampled once the gate is open."""
    return Reply([*tinymodel.encode("yes"), tinymodel.END], gate=gate)


async def two_ask(here: Lab) -> None:
    """Until both agents that may run at once wait for the engine, which is held."""

    async def two_run() -> bool:
        return here.player.running == 2

    await until(two_run, what="two agents ask the engine", within_s=60.0)


FEW_FILES = ("sh", "-c", 'ulimit -Sn 80; exec "$@"', "sh")
"""At their side: what systems give is 1,024, for 24 times as many sessions."""


async def test_a_low_soft_limit_of_descriptors_fails_no_session_and_is_what_agents_get(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with lab(tmp_path, [held(gate)]) as here:
        rewrite(tmp_path / "job.yaml", "groupSize: 2\n  parallelism: 2", "groupSize: 12\n  parallelism: 24")
        limit = "import resource\nassert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 80\n"
        (tmp_path / "agent.py").write_text(limit + AGENT)
        process = await here.start("--json", under=FEW_FILES)

        async def all_run() -> bool:
            return here.player.running == 24 or process.returncode is not None

        await until(all_run, what="24 agents ask the engine", within_s=60.0)
        gate.open.set()
        done = await ended(process)
    told = json.loads(done.stdout)
    assert (done.code, told["trajectories"]) == (0, 24), done.stderr
    assert "StartFailed" not in done.stderr + done.stdout


async def test_a_hard_limit_of_descriptors_that_is_too_low_is_said_before_anything_starts(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        rewrite(tmp_path / "job.yaml", "groupSize: 2\n  parallelism: 2", "groupSize: 12\n  parallelism: 300")
        done = await ended(await here.start(under=("sh", "-c", 'ulimit -n 160; exec "$@"', "sh")))
        assert (done.code, done.stdout, here.player.counts["generations"]) == (2, "", 0)
        assert (
            "error: spec.parallelism: needs 208 file descriptors, and this process may have 160 (ulimit -Hn):"
            " enough for 16"
        ) in done.stderr


async def test_a_hard_limit_that_may_do_for_what_a_trainer_gives_is_a_note(tmp_path: Path) -> None:
    note = "spec.parallelism: may need 1864 file descriptors, and this process may have 160 (ulimit -Hn): enough for 16"
    async with lab(tmp_path, ["yes"]) as here:
        rewrite(tmp_path / "job.yaml", "groupSize: 2\n  parallelism: 2", "groupSize: 2\n  parallelism: 300")
        inline = '{inline: [{uid: q1, prompt: "one?"}, {uid: q2, prompt: "two?"}]}'
        rewrite(tmp_path / "job.yaml", inline, "{queue: {}}")
        under = ("sh", "-c", 'ulimit -n 160; exec "$@"', "sh")
        done = await ended(await here.start("--dry-run", under=under))
        assert (done.code, done.stdout) == (0, "ask can run here: groups come from a trainer\n"), done.stderr
        assert f"note: {note}" in done.stderr
        process = await here.start(under=under)
        await said(process, note)
        process.send_signal(signal.SIGINT)
        await ended(process)


async def test_ctrl_c_lets_sessions_end_and_a_rerun_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with lab(tmp_path, [held(gate)]) as here:
        process = await here.start("--json")
        await two_ask(here)
        process.send_signal(signal.SIGINT)
        await said(process, "stopping")
        gate.open.set()
        first = await ended(process)
        assert first.code == 130, first.stderr
        stopped = json.loads(first.stdout)
        assert stopped["complete"] is False
        assert json.loads((tmp_path / "out" / "result.json").read_text())["told"] == stopped
        assert here.player.counts["generations"] == 2
        again = await here.run("--json")
        assert again.code == 0, again.stderr
        assert here.player.counts["generations"] == 4
    assert json.loads(again.stdout)["trajectories"] == 4


async def test_after_ctrl_c_twice_the_failures_of_what_had_ended_are_told(tmp_path: Path) -> None:
    gate = Gate()

    def no(ids: Ids, number: int) -> Reply:
        return Reply(
            [*tinymodel.encode("no"), tinymodel.END], gate=gate if "two?" in tinymodel.decode(ids) else None
        )

    async with lab(tmp_path, no) as here:
        process = await here.start("--json")

        async def first_is_written() -> bool:
            return bool(list((tmp_path / "out" / "groups").glob("ask-q1-*.parquet")))

        await until(first_is_written, what="the first group is written", within_s=60.0)
        process.send_signal(signal.SIGINT)
        await said(process, "stopping")
        process.send_signal(signal.SIGINT)
        done = await ended(process)
        assert done.code == 130, done.stderr
        told = json.loads(done.stdout)
        assert (told["complete"], told["failures"], told["turns"]) == (False, {"AnswerWrong": 2}, 2)
        assert json.loads((tmp_path / "out" / "result.json").read_text())["told"] == told


async def test_where_attempts_have_no_rows_yet_the_summary_says_what_its_numbers_are_of(
    tmp_path: Path,
) -> None:
    """Of a group that is not whole there is no row, though one of its sessions ended."""
    gate = Gate()
    one = [*tinymodel.encode("no"), tinymodel.END]

    async with lab(tmp_path, lambda ids, number: Reply(one, gate=gate if number else None)) as here:
        rewrite(tmp_path / "job.yaml", "parallelism: 2", "parallelism: 1")
        process = await here.start()

        async def second_asks() -> bool:
            return here.player.counts["generations"] == 2

        await until(second_asks, what="the second agent asks the engine", within_s=60.0)
        process.send_signal(signal.SIGINT)
        await said(process, "stopping")
        process.send_signal(signal.SIGINT)
        done = await ended(process)
    told = dict(line.split(None, 1) for line in done.stdout.splitlines()[1:])
    assert told["turns"].strip() == "1 of all attempts"
    assert told["tokens"].strip() == f"0 sampled, 0 context in the rows; {len(one)} sampled by all attempts"


async def test_ctrl_c_twice_aborts(tmp_path: Path) -> None:
    gate = Gate()
    async with lab(tmp_path, [held(gate)]) as here:
        process = await here.start()
        await two_ask(here)
        process.send_signal(signal.SIGINT)
        await said(process, "stopping")
        process.send_signal(signal.SIGINT)
        done = await ended(process)
        assert done.code == 130, done.stderr
        assert "Traceback" not in done.stderr


async def test_ctrl_c_before_anything_runs_ends_it_at_once(tmp_path: Path) -> None:
    gate = Gate()
    async with lab(tmp_path, [held(gate)]) as here:
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


async def test_an_engine_that_does_not_answer_is_told_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "ENGINE_S", 0.1)
    async with lab(tmp_path, ["yes"]):
        said = await asyncio.to_thread(ask, tmp_path / "job.yaml", "--out", tmp_path / "out")
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
    "an engine URL of no port": (
        MANIFEST,
        ["--engine-url", "http://127.0.0.1:99999"],
        "a port is 1 to 65535) [field --engine-url]",
    ),
    "an engine of no port": (
        MANIFEST.replace("http://127.0.0.1:9", "http://127.0.0.1:80001"),
        [],
        "[field spec.engine.endpoints[0]]",
    ),
    "two documents": (f"{MANIFEST}---\n{MANIFEST}", [], "error: "),
}


@pytest.mark.parametrize(("text", "words", "wanted"), WRONG.values(), ids=WRONG)
def test_a_wrong_manifest_is_one_line_and_code_2(
    tmp_path: Path, text: str | None, words: list[str], wanted: str
) -> None:
    if text is not None:
        (tmp_path / "job.yaml").write_text(text)
    found = ask(
        tmp_path / ("job.yaml" if text is not None else "nowhere.yaml"), "--out", tmp_path / "out", *words
    )
    assert found.exit_code == 2, found.output
    assert wanted in found.stderr
    assert (found.stdout, found.stderr.count("\n")) == ("", 1)
    assert found.stderr.startswith("error: ")
