"""Commands say what they found to people and to pipes, and end with the code that says whether it happened."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sandgate.trainer.cli import output
from sandgate.trainer.cli.command import app
from sandgate.trainer.cli.inspect import session_row
from sandgate.trainer.cli.show import rendered
from sandgate.trainer.export.arrow import read_parquet, write_parquet
from sandgate.trainer.export.jsonl import read_jsonl
from sandgate.trainer.runs import folder
from sandgate.trainer.runs.trees import beside, lay_out
from sandgate.trainer.tinymodel import write_tiny_model
from tests.trainer.runs import LINEAR, rows_for, write_run
from tests.trainer.trajectories import exact, trajectory

GOLDEN = Path(__file__).parent / "golden"


def ask(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_show_is_readable(run: Path) -> None:
    """Golden: context plain, samples between « and », branches one deeper, forks with their reason."""
    said = ask("show", "forked", "--out", run)
    assert said.exit_code == 0
    assert said.stdout == (GOLDEN / "show.txt").read_text()


def test_show_as_json_is_the_gateways_tree(run: Path) -> None:
    said = ask("show", "forked", "--out", run, "--json")
    tree = json.loads(said.stdout)
    assert [turn["turn"] for turn in tree["turns"]] == ["t1", "t2", "t3", "t4"]
    assert tree["turns"][2]["spans"] == [{"mask": 0, "ids": [5, 6]}, {"mask": 1, "ids": [13, 14]}]


def test_show_cuts_long_spans_unless_told_not_to(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandgate.trainer.cli.show.SHOWN_CHARS", 2)
    assert "1…[3 characters]…3" in ask("show", "forked", "--out", run).stdout
    assert "1 2 3" in ask("show", "forked", "--out", run, "--full").stdout


def test_a_long_conversation_does_not_wander_to_the_right() -> None:
    turns = [{"turn": str(n), "parent": str(n - 1) if n else None} for n in range(2000)]
    assert {line.depth for line in lay_out({"turns": turns})} == {0}


def test_what_a_model_says_does_not_steer_the_terminal() -> None:
    from sandgate.trainer.cli.output import printable

    assert printable("a\x1b[2Jb\r\n\tc\u202e") == "a\\x1b[2Jb\\x0d\n\tc\\u202e"


def test_forks_lists_each_with_its_reason_and_fails(run: Path) -> None:
    said = ask("forks", "--out", run, "--json")
    assert said.exit_code == 1
    found = [tuple(row.values()) for row in json.loads(said.stdout)]
    assert found == [
        ("forked", "q1", 0, "t3", "t1", "user_or_tool_edited", "", 2),
        ("forked", "q1", 0, "t4", "", "compaction", "side", 1),
    ]
    assert "user_or_tool_edited" in ask("forks", "--out", run).stdout


def test_no_forks_is_success(clean_run: Path) -> None:
    said = ask("forks", "--out", clean_run, "--json")
    assert (said.exit_code, json.loads(said.stdout)) == (0, [])
    assert ask("forks", "--out", clean_run).stdout.startswith("no forks")


def test_show_says_how_a_session_failed() -> None:
    tree = {"session_id": "s", "job": "", "uid": "", "sample_index": 0, "attempt": 0, "state": "finalized", "turns": [],
            "tokens": 0, "sampled_tokens": 0, "reward": 0.0, "failure_class": "policy", "failure_reason": "AnswerWrong",
            "failure_detail": "exit code 1 with a traceback:\nKeyError\x1b[2J"}  # fmt: skip
    _, counts = rendered(tree, colours=False, limit=None)
    said = "policy failure AnswerWrong: exit code 1 with a traceback: KeyError\\x1b[2J"
    assert counts.plain.endswith(said)


REWARDS: dict[str, tuple[float | None, str | None, object]] = {
    "an agent's failure teaches nothing": (0.0, "agent", "masked"),
    "a wrong answer is trained on": (0.0, "policy", 0.0),
    "a good end": (1.0, None, 1.0),
    "nobody gave one": (None, "agent", None),
}


@pytest.mark.parametrize(("reward", "blame", "shown"), REWARDS.values(), ids=REWARDS)
def test_a_reward_that_is_masked_is_not_shown_as_one(
    reward: float | None, blame: str | None, shown: object
) -> None:
    one = {"session_id": "s", "sample_index": 0, "sampled_tokens": 1, "reward": reward}
    row = session_row(one | {"failure_class": blame, "failure_reason": None})
    assert row["reward"] == shown


def test_sessions_are_listed_in_order_and_by_job(run: Path) -> None:
    found = json.loads(ask("sessions", "--out", run, "--json").stdout)
    assert [(one["session_id"], one["state"], one["turns"]) for one in found] == [
        ("forked", "finalized", 4), ("linear", "finalized", 2),
    ]  # fmt: skip
    assert json.loads(ask("sessions", "other", "--out", run, "--json").stdout) == []
    assert "TurnLimit" in ask("sessions", "shop", "--out", run).stdout


def test_status_counts(run: Path) -> None:
    found = json.loads(ask("status", "--out", run, "--json").stdout)
    assert found == {
        "sessions": {"finalized": 2},
        "turns": 6,
        "tokens": 19,
        "sampled_tokens": 8,
        "in_flight": 0,
        "special_tokens_in_text": 0,
        "paused": [],
        "forks": {"user_or_tool_edited": 1, "compaction": 1},
        "roles": {"side": 1},
        "failures": {"policy/TurnLimit": 1},
    }
    assert "compaction 1" in ask("status", "--out", run).stdout


def test_turns_beside_the_main_conversation_are_told(run: Path) -> None:
    forked, linear = json.loads(ask("sessions", "--out", run, "--json").stdout)
    assert (forked["roles"], linear["roles"]) == ({"side": 1}, {}), "journals without roles say none"
    assert "side 1" in ask("sessions", "--out", run).stdout
    rows = json.loads(ask("trajectories", "--out", run, "--json").stdout)
    assert [(row["role"], row["main"]) for row in rows] == [("main", True), ("main", True)]


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ({"role": "side", "role_why": "title"}, "side (title)"),
        ({"role": "subagent", "role_why": ""}, "subagent"),
        ({"role": "main", "role_why": "x-sandgate-role"}, ""),
        ({"role": "", "role_why": ""}, ""),
        ({}, ""),
    ],
)
def test_a_turn_of_the_main_conversation_says_no_role(turn: dict[str, str], told: str) -> None:
    assert beside(turn) == told


def test_a_run_that_still_writes_can_be_looked_at(run: Path) -> None:
    """No lock is taken and nothing is repaired."""
    journal = run / "gateway-0" / "journal.sqlite"
    with sqlite3.connect(journal) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert ask("status", "--out", run).exit_code == 0
    writer.close()


def test_export_writes_what_was_there(run: Path, tmp_path: Path) -> None:
    wanted = [exact(row) for row in rows_for(["forked", "linear"])]
    said = ask("export", run, "--format", "jsonl", "--json")
    assert json.loads(said.stdout) == {
        "path": str(run / "trajectories.jsonl"), "format": "jsonl", "trajectories": 2, "missing": 0,
        "missing_groups": 0,
    }  # fmt: skip
    assert [exact(row) for row in read_jsonl(run / "trajectories.jsonl")] == wanted
    assert ask("export", run, "--to", tmp_path / "copy.parquet").exit_code == 0
    assert [exact(row) for row in read_parquet(tmp_path / "copy.parquet")] == wanted


def test_export_onto_itself_is_harmless(run: Path) -> None:
    file = run / "trajectories.parquet"
    assert ask("export", file, "--format", "parquet", "--to", file).exit_code == 0
    assert len(list(read_parquet(run / "trajectories.parquet"))) == 2


def test_an_export_that_has_less_than_the_journal_says_so(run: Path, tmp_path: Path) -> None:
    """The whole group has two rows of `forked` (what nobody was told is none) and one of `linear`."""
    write_parquet(run / "trajectories.parquet", rows_for(["linear"], 1))
    said = ask("export", run, "--to", tmp_path / "copy.parquet")
    assert (said.exit_code, said.stdout) == (0, f"1 trajectory -> {tmp_path / 'copy.parquet'}\n")
    assert said.stderr == (
        f"warning: the journals in {run} have 2 trajectories more, of 1 whole group whose file is missing;"
        f" `sandgate run` with --out {run} writes it again\n"
    )
    told = json.loads(ask("export", run, "--to", tmp_path / "copy.parquet", "--json").stdout)
    assert (told["trajectories"], told["missing"], told["missing_groups"]) == (1, 2, 1)
    alone = ask("export", run / "trajectories.parquet", "--to", tmp_path / "copy.parquet")
    assert alone.stderr == "", "a Parquet file alone is all there is"


def test_an_export_that_read_a_groups_file_too_early_does_not_say_that_it_is_missing(run: Path) -> None:
    file = folder.group_file(run, "shop", "q1")
    file.parent.mkdir()
    write_parquet(file, rows_for(["linear"], 1))
    (run / "trajectories.parquet").unlink()
    assert ask("export", run, "--format", "jsonl").stderr == (
        f"warning: the journals in {run} have 2 trajectories more, of 1 whole group whose file has been written since,"
        f" or is to be written anew; export again; `sandgate run` with --out {run} writes it again\n"
    )


def test_groups_that_are_not_whole_yet_are_not_missed(clean_run: Path) -> None:
    write_parquet(clean_run / "trajectories.parquet", [])
    said = ask("export", clean_run, "--json")
    assert (json.loads(said.stdout)["missing"], said.stderr) == (0, "")


IDS = [f"shop-q{number:02}-5f2d0c8e9a41-{number % 4}-0" for number in range(12)]
BEGINNINGS: dict[str, tuple[str, int, str]] = {
    "the whole id": (IDS[3], 0, f"{IDS[3]}  job shop"),
    "enough of it": ("shop-q03", 0, f"{IDS[3]}  job shop"),
    "an id that is the beginning of another": ("shop", 0, "shop  job shop"),
    "two that begin like that": (
        "shop-q1", 2, f"error: several sessions begin with 'shop-q1': {IDS[10]}, {IDS[11]} [field SESSION]\n",
    ),
    "more than a line has room for": (
        "sho", 2, f"error: several sessions begin with 'sho': shop, {', '.join(IDS[:5])}, ... and more [field",
    ),
    "none that begins like that": ("shop-q03-6", 2, "error: no session 'shop-q03-6' in "),
    "what is special to a database": ("shop-q%", 2, "error: no session 'shop-q%' in "),
    "nothing": ("", 2, "error: is empty; say a session's id or the beginning of one [field SESSION]\n"),
}  # fmt: skip


@pytest.mark.parametrize(("word", "code", "begins"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_session_is_named_by_its_beginning(tmp_path: Path, word: str, code: int, begins: str) -> None:
    asyncio.run(write_run(tmp_path / "run", dict.fromkeys([*IDS, "shop"], LINEAR)))
    said = ask("show", word, "--out", tmp_path / "run")
    assert (said.exit_code, (said.stdout or said.stderr)[: len(begins)]) == (code, begins)


def test_trajectories_are_listed(run: Path) -> None:
    found = json.loads(ask("trajectories", "--out", run, "--json").stdout)
    assert [(one["session_id"], one["reward"], one["sampled"], one["context"]) for one in found] == [
        ("forked", 1.0, 3, 2), ("linear", 1.0, 3, 2),
    ]  # fmt: skip
    assert "linear" in ask("trajectories", "--out", run).stdout
    assert json.loads(ask("trajectories", "other", "--out", run, "--json").stdout) == []


def test_a_run_that_has_not_finished_shows_the_groups_that_are_done(run: Path) -> None:
    (run / "groups").mkdir()
    (run / "trajectories.parquet").rename(run / "groups" / "q1.parquet")
    (run / "groups" / ".q2.parquet.tmp").write_bytes(b"half")
    assert len(json.loads(ask("trajectories", "--out", run, "--json").stdout)) == 2
    assert json.loads(ask("export", run, "--json").stdout)["path"] == str(
        run / "trajectories.exported.parquet"
    )


def test_show_decodes_by_the_runs_own_tokenizer(run: Path) -> None:
    (run / "run").mkdir()
    (run / "run" / "gateway-0.json").write_text(json.dumps({"model": {"tokenizer": str(run / "model")}}))
    assert "«10 11»" in ask("show", "forked", "--out", run).stdout, (
        "no text, but ids, while the folder is missing"
    )
    write_tiny_model(run / "model")
    assert "\\x04«\\x0c»" in ask("show", "forked", "--out", run).stdout


def newer(path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(path).replace_schema_metadata({b"sandgate.schema_version": b"9"}), path)


def a_row_of_the_journal(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET body = x'00' WHERE seq = 2")
    db.close()


BROKEN: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "show: an unknown session": (lambda run: None, ["show", "nobody", "--out", "RUN"], "no session 'nobody'"),
    "show: neither --out nor --url, and no such context": (lambda run: None, ["show", "s", "--context", "nowhere"],
                                                           "no cluster: "),
    "sessions: a cluster, and no job": (lambda run: None, ["sessions"], "say which job"),
    "show: both --out and --url": (lambda run: None, ["show", "s", "--out", "RUN", "--url", "http://x"],
                                   "say where to look once"),
    "show: a URL that is none": (lambda run: None, ["show", "s", "--url", "gateway"], "[field --url]"),
    "show: nobody answers": (lambda run: None, ["show", "s", "--url", "http://127.0.0.1:9"], "/v1/sessions/s/tree"),
    "show: a port that is none": (lambda run: None, ["show", "s", "--url", "http://127.0.0.1:99999"], "[field --url]"),
    "sessions: a key of another alphabet": (lambda run: None,
                                            ["sessions", "--url", "http://127.0.0.1:9", "--key", "\xe9"],
                                            "the key holds a character that no key has"),
    "show: a directory without a journal": (lambda run: (run / "gateway-0").rename(run.parent / "g"),
                                            ["show", "s", "--out", "RUN"], "no journal in it"),
    "show: a file for --out": (lambda run: None, ["show", "s", "--out", "RUN/trajectories.parquet"],
                               "no such directory"),
    "show: a tokenizer that is not there": (lambda run: None, ["show", "forked", "--out", "RUN", "--tokenizer", "RUN"],
                                            "[field spec.model.tokenizer]"),
    "show: a damaged record": (lambda run: a_row_of_the_journal(run / "gateway-0/journal.sqlite"),
                               ["show", "forked", "--out", "RUN"], "record 2: the checksum does not hold"),
    "forks: no such directory": (lambda run: None, ["forks", "--out", "RUN/nowhere"], "no such directory"),
    "sessions: no such directory": (lambda run: None, ["sessions", "--out", "RUN/nowhere"], "no such directory"),
    "status: no journal": (lambda run: (run / "empty").mkdir(), ["status", "--out", "RUN/empty"], "no journal in it"),
    "trajectories: a run that has not finished": (lambda run: (run / "trajectories.parquet").unlink(),
                                                  ["trajectories", "--out", "RUN"], "no trajectories.parquet"),
    "export: nothing there": (lambda run: None, ["export", "RUN/nowhere"], "no such file or directory"),
    "export: not Parquet": (lambda run: (run / "trajectories.parquet").write_bytes(b"x" * 99),
                            ["export", "RUN"], "is not a Parquet file"),
    "export: a newer file": (lambda run: newer(run / "trajectories.parquet"), ["export", "RUN"], "schema 9"),
    "export: a value that JSON cannot carry": (
        lambda run: write_parquet(run / "trajectories.parquet", [trajectory(reward=float("nan"))]),
        ["export", "RUN", "--format", "jsonl"], "[field reward]"),
    "export: to a folder that is a file": (lambda run: None, ["export", "RUN", "--to", "RUN/trajectories.parquet/x"],
                                           "error: "),
    "export: to a directory": (lambda run: None, ["export", "RUN", "--to", "RUN"], "error: "),
    "export: to the folder where one stands": (lambda run: None, ["export", "RUN", "--to", "."], "a directory; give"),
    "export: to a pipe": (lambda run: os.mkfifo(run / "pipe"), ["export", "RUN", "--to", "RUN/pipe"],
                          "is no regular file, and is not replaced"),
    "export: a format that does not exist": (lambda run: None, ["export", "RUN", "--format", "csv"], "'csv'"),
    "doctor: nothing to check": (lambda run: None, ["doctor"], "[field --model]"),
    "doctor: a URL that is none": (lambda run: None, ["doctor", "--engine-url", "localhost:8000"],
                                   "[field --engine-url]"),
    "doctor: a port that is none": (lambda run: None, ["doctor", "--engine-url", "http://127.0.0.1:99999"],
                                    "a port is 1 to 65535) [field --engine-url]"),
    "gateway: no config": (lambda run: None, ["gateway"], "--config"),
    "an unknown command": (lambda run: None, ["walk"], "walk"),
    "an unknown option": (lambda run: None, ["status", "--verbose"], "--verbose"),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "words", "text"), BROKEN.values(), ids=BROKEN)
def test_what_was_asked_wrongly_is_one_line_and_code_2(
    run: Path, harm: Callable[[Path], object], words: list[str], text: str
) -> None:
    harm(run)
    said = ask(*(word.replace("RUN", str(run)) for word in words))
    assert said.exit_code == 2, said.output
    assert text in said.stderr
    assert "Traceback" not in said.output
    assert said.stdout == ""
    if said.stderr.startswith("error: "):
        assert said.stderr.count("\n") == 1


FAILS = {
    "a disk does not keep what is written": ("os.fsync", "", "RUN/out"),
    "a disk is full when Arrow writes": ("pyarrow.parquet.ParquetWriter.write_table", "Error writing bytes", "RUN/out"),
    "a disk cannot be read": ("pyarrow.parquet.ParquetFile", "Failed to open", "RUN/trajectories.parquet"),
    "a disk fails while Arrow reads": ("pyarrow.parquet.ParquetFile.iter_batches", "", "RUN/trajectories.parquet"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC", "EDQUOT", "EROFS"])
@pytest.mark.parametrize(("where", "arrows", "names"), FAILS.values(), ids=FAILS)
def test_what_a_machine_does_not_do_is_code_1_and_names_the_file(
    run: Path, monkeypatch: pytest.MonkeyPatch, where: str, arrows: str, names: str, fault: str
) -> None:
    number = getattr(errno, fault)
    words = f"{arrows}. Detail: [errno {number}]" if arrows else os.strerror(number)

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, words)

    monkeypatch.setattr(where, fail)
    said = ask("export", run, "--to", run / "out")
    assert said.stderr == f"error: {names.replace('RUN', str(run))}: {os.strerror(number)}\n"
    assert (said.exit_code, said.stdout) == (1, "")
    assert not (run / "out").exists()


def test_the_console_script_is_the_same_program(run: Path) -> None:
    """In a process of its own: exit codes and streams as a shell sees them."""
    script = Path(sys.executable).with_name("sandgate")
    done = subprocess.run(
        [script, "forks", "--out", run, "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, len(json.loads(done.stdout)), done.stderr) == (1, 2, "")
    done = subprocess.run([script, "export", run / "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {run / 'x'}: no such file or directory\n"


def test_the_version_is_the_distributions() -> None:
    said = ask("--version")
    assert (said.exit_code, said.stdout) == (0, f"sandgate {version('sandgate')}\n")


def test_a_reader_that_leaves_early_is_no_error(run: Path) -> None:
    """`sandgate sessions | head -0`."""
    script = Path(sys.executable).with_name("sandgate")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [script, "sessions", "--out", run], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


SAID = {"uid": "caf\u00e9 \u4e2d \U0001f600", "half a pair": "\ud83d"}


@pytest.mark.parametrize(
    "spelled", ["ascii", "latin-1", "latin-1:backslashreplace", "utf-8", "utf-8:backslashreplace"]
)
def test_json_is_json_whatever_the_output_can_spell(spelled: str) -> None:
    call = f"from sandgate.trainer.cli import output; output.as_json({SAID!a})"
    done = subprocess.run(
        [sys.executable, "-c", call],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": spelled},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.decode(spelled.partition(":")[0])) == SAID


STREAMS: dict[str, tuple[str, str, int, str]] = {
    "a table to a closed output": ("status --out RUN", ">&-", 0, ""),
    "a log where all three are closed": ("logs a --out RUN", "<&- >&- 2>&-", 0, ""),
    "a version to a full disk": ("--version", ">/dev/full", 1, "error: No space left on device\n"),
}


@pytest.mark.parametrize(("words", "streams", "code", "says"), STREAMS.values(), ids=STREAMS)
def test_whatever_the_output_is_there_is_no_traceback(
    run: Path, words: str, streams: str, code: int, says: str
) -> None:
    (run / "logs").mkdir()
    (run / "logs" / "a.log").write_text("hello\n")
    argv = [sys.executable, "-m", "sandgate.trainer.cli", *words.replace("RUN", str(run)).split()]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *argv], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, says)


def test_help_of_every_command_fits_its_purpose() -> None:
    said = ask("--help")
    assert "..." not in said.stdout.partition("Commands:")[2], "no sentence is cut"
    assert said.exit_code == 0
    for command in app.registered_commands:
        assert command.name is not None
        assert command.name in said.stdout
        helped = ask(command.name, "--help")
        assert helped.exit_code == 0
        if command.name not in (
            "gateway",
            "operator",
            "crds",
            "render",
        ):  # processes, and commands that print YAML
            assert "--json" in helped.stdout, command.name


CELLS = [(None, "-"), ("", "-"), (True, "yes"), (False, "no"), (0.25, "0.250"), (1234, "1,234"), ({}, "-"),
         ({"a": 1}, "a 1"), ("x", "x"), ("a\x1b]0;pwned\x07\n\u202e", r"a\x1b]0;pwned\x07\x0a\u202e")]  # fmt: skip


@pytest.mark.parametrize(("value", "shown"), CELLS)
def test_cells(value: object, shown: str) -> None:
    assert output.cell(value) == shown
