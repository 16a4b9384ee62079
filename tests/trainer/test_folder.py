"""Where the rows of a run's folder are read: all of them, and each once, whatever the run has come to."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandgate.contract.errors import CorruptRecord
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.arrow import merge_parquet, write_parquet
from sandgate.trainer.runs import folder
from tests.trainer.trajectories import trajectory

MERGED_AT = 1_000
"""When the run was over, in seconds since 1970; group files of it are older."""


def row(group: str, sample: int = 0) -> Trajectory:
    return trajectory(uid=group, sample_index=sample, session_id=f"{group}-{sample}")


def write_group(out: Path, group: str, rows: list[Trajectory], at: int) -> None:
    path = folder.group_file(out, "shop", group)
    path.parent.mkdir(exist_ok=True)
    write_parquet(path, rows)
    os.utime(path, (at, at))


def over(out: Path, groups: list[str]) -> None:
    """A run that is over, with one row a group."""
    for name in groups:
        write_group(out, name, [row(name)], MERGED_AT - 1)
    merge_parquet(sorted(out.glob(folder.GROUPS)), out / folder.TRAJECTORIES)
    os.utime(out / folder.TRAJECTORIES, (MERGED_AT, MERGED_AT))


def found(out: Path) -> list[str]:
    return sorted(one.session_id for one in folder.trajectories(out))


def test_of_a_run_that_is_over_the_merged_file_alone_is_read(tmp_path: Path) -> None:
    over(tmp_path, ["q1", "q2"])
    write_group(tmp_path, "q3", [], MERGED_AT - 1)  # which took no turn
    assert folder.trajectory_files(tmp_path) == [folder.Part(tmp_path / folder.TRAJECTORIES)]


def test_a_group_that_is_done_since_is_read_beside_it(tmp_path: Path) -> None:
    over(tmp_path, ["q1", "q2"])
    write_group(tmp_path, "q3", [row("q3"), row("q3", 1)], MERGED_AT + 1)
    assert found(tmp_path) == ["q1-0", "q2-0", "q3-0", "q3-1"]


def test_a_group_that_was_written_anew_has_its_new_rows(tmp_path: Path) -> None:
    over(tmp_path, ["q1", "q2"])
    write_group(tmp_path, "q2", [row("q2"), row("q2", 1)], MERGED_AT + 1)
    write_group(tmp_path, "q3", [row("q3")], MERGED_AT + 1)
    assert found(tmp_path) == ["q1-0", "q2-0", "q2-1", "q3-0"]


def test_a_group_that_is_written_anew_by_a_clock_that_was_set_back_has_its_new_rows(tmp_path: Path) -> None:
    over(tmp_path, ["q1", "q2"])
    ahead = time.time_ns() + 3_600 * 10**9
    os.utime(tmp_path / folder.TRAJECTORIES, ns=(ahead, ahead))
    folder.write_group(folder.group_file(tmp_path, "shop", "q2"), [row("q2"), row("q2", 1)])
    assert found(tmp_path) == ["q1-0", "q2-0", "q2-1"]


@pytest.mark.parametrize("merged", [True, False], ids=["after the merged file", "before there is one"])
def test_a_group_that_is_written_has_the_time_of_its_writing(tmp_path: Path, merged: bool) -> None:
    over(tmp_path, ["q1"])
    if not merged:
        (tmp_path / folder.TRAJECTORIES).unlink()
    path = folder.group_file(tmp_path, "shop", "q2")
    before = time.time()
    assert folder.write_group(path, [row("q2")]) == 1
    assert before - 2 < path.stat().st_mtime < time.time() + 2


@pytest.mark.parametrize("at", [MERGED_AT - 1, MERGED_AT + 1], ids=["older", "newer"])
def test_a_group_whose_file_is_gone_is_read_from_the_merged_one(tmp_path: Path, at: int) -> None:
    over(tmp_path, ["q1", "q2"])
    folder.group_file(tmp_path, "shop", "q1").unlink()
    write_group(tmp_path, "q2", [row("q2")], at)
    write_group(tmp_path, "q3", [row("q3")], at)
    assert found(tmp_path) == ["q1-0", "q2-0", "q3-0"]


def test_a_copy_that_kept_no_times_has_no_row_twice(tmp_path: Path) -> None:
    over(tmp_path, ["q1", "q2"])
    for path in tmp_path.glob(folder.GROUPS):
        os.utime(path, (MERGED_AT + 1, MERGED_AT + 1))
    write_group(tmp_path, "q3", [row("q3")], MERGED_AT - 1)
    assert found(tmp_path) == ["q1-0", "q2-0", "q3-0"]


def test_a_group_file_of_another_name_gives_no_row_twice(tmp_path: Path) -> None:
    over(tmp_path, ["q1", "q2"])
    folder.group_file(tmp_path, "shop", "q1").rename(tmp_path / "groups" / "mine.parquet")
    assert found(tmp_path) == ["q1-0", "q2-0"]


def test_new_rows_are_read_though_another_groups_file_is_gone(tmp_path: Path) -> None:
    over(tmp_path, ["q1", "q2"])
    folder.group_file(tmp_path, "shop", "q1").unlink()
    write_group(tmp_path, "q2", [row("q2"), row("q2", 1)], MERGED_AT + 1)
    assert found(tmp_path) == ["q1-0", "q2-0", "q2-1"]


@pytest.mark.parametrize("merged", [True, False], ids=["beside the merged file", "while the run goes on"])
def test_a_copy_that_somebody_made_of_groups_gives_what_no_other_file_has(
    tmp_path: Path, merged: bool
) -> None:
    over(tmp_path, ["q1", "q2"])
    if not merged:
        (tmp_path / folder.TRAJECTORIES).unlink()
    for name in ("a.parquet", "b.parquet"):
        write_parquet(tmp_path / "groups" / name, [row("q1"), row("q3")])
    assert found(tmp_path) == ["q1-0", "q2-0", "q3-0"]


FOREIGN: dict[str, Callable[[Path], object]] = {
    "another table": lambda path: pq.write_table(pa.table({"x": [1]}), path),
    "no Parquet at all": lambda path: path.write_bytes(b"x"),
}


@pytest.mark.parametrize("merged", [True, False], ids=["beside the merged file", "while the run goes on"])
@pytest.mark.parametrize("write", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_no_runs_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Callable[[Path], object], merged: bool
) -> None:
    over(tmp_path, ["q1", "q2"])
    if not merged:
        (tmp_path / folder.TRAJECTORIES).unlink()
    write(tmp_path / "groups" / "mine.parquet")
    assert found(tmp_path) == ["q1-0", "q2-0"]
    assert "groups/mine.parquet" in caplog.text


@pytest.mark.parametrize("write", FOREIGN.values(), ids=FOREIGN)
def test_a_damaged_file_of_a_group_that_came_since_is_named(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    over(tmp_path, ["q1", "q2"])
    path = folder.group_file(tmp_path, "shop", "q3")
    write(path)
    with pytest.raises(CorruptRecord, match=re.escape(str(path))):
        found(tmp_path)
