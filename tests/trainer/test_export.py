"""`sandgate export` in its forms: what needs no trainer's package."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.cli.command import app
from sandgate.trainer.cli.tensor_files import padded
from sandgate.trainer.export.ipc import read_arrow, write_arrow
from sandgate.trainer.export.jsonl import write_jsonl
from sandgate.trainer.export.packed import unpack
from sandgate.trainer.export.packed_file import read_packed, write_packed
from sandgate.trainer.export.parquet import read_parquet, write_parquet
from sandgate.trainer.export.trl import SCHEMA, to_rollout, write_trl
from tests.trainer.runs import rows_for
from tests.trainer.trajectories import exact, trajectories, trajectory

ROWS = rows_for(["forked", "linear"])


def ask(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_arrow(run: Path) -> None:
    told = json.loads(ask("export", run, "--format", "arrow", "--json").stdout)
    path = str(run / "trajectories.arrow")
    assert told == {"path": path, "format": "arrow", "trajectories": 2, "missing": 0, "missing_groups": 0}
    assert [exact(row) for row in read_arrow(told["path"])] == [exact(row) for row in ROWS]


def test_packed_says_what_it_saved(run: Path) -> None:
    """Two siblings with one sample: all of the second is there already."""
    told = json.loads(ask("export", run, "--format", "packed", "--json").stdout)
    assert told == {
        "path": str(run / "trajectories.packed.parquet"), "format": "packed", "trajectories": 2, "trees": 1,
        "tokens": 16, "packed_tokens": 8, "saved": 0.5, "missing": 0, "missing_groups": 0,
    }  # fmt: skip
    found = [row for tree in read_packed(told["path"]) for row in unpack(tree)]
    assert [exact(row) for row in found] == [exact(row) for row in ROWS]
    assert ask("export", run, "--format", "packed", "--max-tokens", 7).stdout.endswith(
        "trajectories.packed.parquet: 16 tokens as 16 in 2 trees, 0.0% saved\n"
    )


def test_trl(run: Path) -> None:
    told = json.loads(ask("export", run, "--format", "trl", "--json").stdout)
    assert (told["path"], told["trajectories"]) == (str(run / "trajectories.trl.parquet"), 2)
    found = pq.read_table(told["path"]).to_pydict()
    assert found == to_rollout(ROWS)
    assert found["completion_ids"][0] == [10, 11, 4, 5, 12]
    assert found["env_mask"][0] == [1, 1, 0, 0, 1]
    assert found["env_reward"] == [1.0, 1.0]
    assert found["sandgate_versions"][0] == [7, 7, -1, -1, 8]


WRONG: dict[str, tuple[list[object], str]] = {
    "an option of another format": (["--format", "arrow", "--max-tokens", 5],
                                    "only --format packed has it [field --max-tokens]"),
    "no room": (["--format", "packed", "--max-tokens", 0], "must be at least 1, not 0 [field max_tokens]"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "why"), WRONG.values(), ids=WRONG)
def test_what_was_asked_wrongly_is_one_line(run: Path, words: list[object], why: str) -> None:
    said = ask("export", run, *words)
    assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert why in said.stderr


OWN = ("job.json", "secret", "gateway-0.sqlite", "gateway-1.sqlite-wal", "groups/q1.parquet",
       "trajectories.parquet", "result.json", "origin.json", "made.json", "attach.json", ".lock", "logs/q1.log",
       "manifests/0.json", "trainers/1.json", "run/q1/home/x")  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_what_a_run_needs_is_not_written_over(run: Path, name: str) -> None:
    (run / "job.json").touch()
    (run / name).parent.mkdir(exist_ok=True, parents=True)
    if name != "trajectories.parquet":
        (run / name).write_text("kept")
    before = (run / name).read_bytes()
    said = ask("export", run, "--format", "jsonl", "--to", run / name)
    assert (said.exit_code, (run / name).read_bytes()) == (2, before)
    assert f"{name}: a run's own file; give another name [field --to]" in said.stderr


def test_what_a_run_needs_is_known_from_within_its_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "job.json").touch()
    (run / "groups").mkdir()
    monkeypatch.chdir(run / "groups")
    said = ask("export", run, "--to", "q1.parquet")
    assert "q1.parquet: a run's own file" in said.stderr


def test_a_folder_that_is_not_there_is_not_made(run: Path, tmp_path: Path) -> None:
    said = ask("export", run, "--to", tmp_path / "rnu" / "x.parquet")
    assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert f"{tmp_path / 'rnu'}: no such folder; make it first, or give another [field --to]" in said.stderr
    assert not (tmp_path / "rnu").exists()


def test_a_directory_is_no_file_to_write(run: Path) -> None:
    said = ask("export", run, "--format", "jsonl", "--to", run)
    assert (said.exit_code, said.stderr.count("\n")) == (2, 1)
    assert f"{run}: a directory; give a file's name [field --to]" in said.stderr


def test_the_file_by_which_a_run_is_complete_is_no_exports_target_by_default(run: Path) -> None:
    """Written while the run goes on, or ends, it would hide the groups that came meanwhile."""
    (run / "job.json").touch()
    before = (run / "trajectories.parquet").stat()
    told = json.loads(ask("export", run, "--json").stdout)
    assert told["path"] == str(run / "trajectories.exported.parquet")
    assert [exact(row) for row in read_parquet(told["path"])] == [exact(row) for row in ROWS]
    assert (run / "trajectories.parquet").stat() == before


def test_a_folder_called_tilde_is_no_home(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    assert ask("export", run, "--to", "~/x.parquet").exit_code == 0
    assert [row.session_id for row in read_parquet("~/x.parquet")] == [row.session_id for row in ROWS]
    assert not home.exists()


MISSING = {
    "areal": ("torch", "areal needs torch, which is not installed here: pip install torch [field --format]"),
    "dataproto": ("verl", "dataproto needs verl, which is not installed here: pip install verl==0.9.1"),
}


@pytest.mark.parametrize(("form", "package", "why"), [(form, *more) for form, more in MISSING.items()])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch, form: str, package: str, why: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    before = sorted(run.iterdir())
    said = ask("export", run, "--format", form)
    assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert why in said.stderr
    assert sorted(run.iterdir()) == before


@settings(max_examples=30)
@given(rows=st.lists(trajectories(), max_size=4))
def test_an_arrow_file_gives_back_what_went_in(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Trajectory]
) -> None:
    path = tmp_path_factory.mktemp("arrow") / "t.arrow"
    assert write_arrow(path, rows) == len(rows)
    assert [exact(row) for row in read_arrow(path)] == [exact(row) for row in rows]


def test_a_damaged_arrow_file_is_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "t", [trajectory()])
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-9])
    with pytest.raises(CorruptRecord, match="is not an Arrow file"):
        list(read_arrow(tmp_path / "t"))
    with pytest.raises(FileNotFoundError):
        list(read_arrow(tmp_path / "nowhere"))


@pytest.mark.parametrize("read", [read_arrow, read_parquet, read_packed])
def test_what_the_system_says_of_a_file_is_no_damage_and_names_it(
    tmp_path: Path, read: Callable[[Path], Iterator[Any]]
) -> None:
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="Too many levels") as found:
        list(read(tmp_path / "round"))
    assert found.value.filename == str(tmp_path / "round")


@pytest.mark.parametrize("write", [write_arrow, write_parquet, write_jsonl, write_trl, write_packed])
def test_a_full_disk_is_named_whoever_writes(write: Callable[..., object]) -> None:
    with pytest.raises(OSError, match="No space left on device") as found:
        write("/dev/full", [trajectory()], atomic=False)
    assert found.value.filename == "/dev/full"


def folders_fail(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)


@pytest.mark.parametrize("fault", ["EINVAL", "EBADF"])
def test_a_file_system_that_cannot_sync_folders_takes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    folders_fail(monkeypatch, getattr(errno, fault))
    assert write_parquet(tmp_path / "t", [trajectory()]) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["t"]


def test_a_folder_that_is_not_durable_is_an_error_and_the_new_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "t", [trajectory(9)])
    folders_fail(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error") as found:
        write_parquet(tmp_path / "t", [trajectory(1)])
    assert found.value.filename == str(tmp_path / "t")
    assert [one.name for one in tmp_path.iterdir()] == ["t"]
    assert [row.sample_index for row in read_parquet(tmp_path / "t")] == [1]


def test_a_gateway_that_is_not_there_is_no_error_of_the_file_that_is_written(tmp_path: Path) -> None:
    def away() -> Iterator[Trajectory]:
        yield trajectory()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    with pytest.raises(ConnectionRefusedError) as found:
        write_parquet(tmp_path / "t", away())
    assert found.value.filename is None


TRL: dict[str, tuple[Trajectory, list[list[int]], list[float | None]]] = {
    "what ended well is trained": (trajectory(), [[1, 1, 0, 0, 1]], [1.0]),
    "what is masked has neither mask nor reward": (
        trajectory(failure_class="infra", failure_reason="NodeLost"), [[0] * 5], [None]),
    "a title that was asked for is not what the session was scored for": (
        trajectory(trajectory_id=1, role="side", main=False), [[0] * 5], [None]),
    "a subagent's is": (trajectory(trajectory_id=1, role="subagent", main=False), [[1, 1, 0, 0, 1]], [1.0]),
    "no completion, no row": (
        trajectory(response_ids=array("i"), response_logprobs=array("f"), loss_mask=array("b"),
                   versions=array("i"), turn_ids=(), turn_ends=(), turn_rewards=()), [], []),
}  # fmt: skip


@pytest.mark.parametrize(("row", "masks", "rewards"), TRL.values(), ids=TRL)
def test_trls_rows(row: Trajectory, masks: list[list[int]], rewards: list[float | None]) -> None:
    found = to_rollout([row])
    assert (found["env_mask"], found["env_reward"]) == (masks, rewards)
    told = list(zip(found["sandgate_role"], found["sandgate_main"], strict=True))
    assert told == ([(row.role, row.main)] if masks else [])


def test_trls_columns_are_typed_and_streamed(tmp_path: Path) -> None:
    assert write_trl(tmp_path / "t", [trajectory()]) == 1
    assert pq.read_schema(tmp_path / "t").equals(SCHEMA)
    with pytest.raises(InvalidBody, match="images cannot pass rollout_func"):
        write_trl(tmp_path / "t", [trajectory(multimodal=b"x")])
    assert len(pq.read_table(tmp_path / "t")) == 1


def test_a_padded_batch_is_its_rows_with_zeros_behind() -> None:
    long = trajectory(1, prompt_ids=array("i", [1, 2, 3, 4]), reward=None)
    found = padded([trajectory(), long])
    assert found["input_ids"].tolist() == [[1, 2, 3, 10, 11, 4, 5, 12, 0], [1, 2, 3, 4, 10, 11, 4, 5, 12]]
    assert found["attention_mask"].tolist() == [[True] * 8 + [False], [True] * 9]
    assert found["versions"][0].tolist() == [-1, -1, -1, 7, 7, -1, -1, 8, 0]
    assert (found["rewards"].tolist(), found["rewards"].dtype) == ([1.0, 0.0], np.float32)


@pytest.mark.parametrize("rows", [[], [trajectory(multimodal=b"x")]], ids=["no rows", "images"])
def test_a_batch_that_cannot_be_is_refused(rows: list[Trajectory]) -> None:
    with pytest.raises(InvalidBody):
        padded(rows)
