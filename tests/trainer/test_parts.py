"""What was handed over is in the file once, whatever was killed when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.trainer import parts as module
from sandgate.trainer.export.arrow import Merged, read_parquet
from sandgate.trainer.outdir import TRAJECTORIES
from sandgate.trainer.parts import Parts
from tests.trainer.trajectories import trajectory


def samples(out: Path) -> list[int]:
    return [row.sample_index for row in read_parquet(out / TRAJECTORIES)]


def test_parts_become_one_file(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    assert parts.add("l1", [trajectory(0)]) == 1
    assert parts.add("l2", [trajectory(1), trajectory(2)]) == 2
    assert parts.merge() == Merged(rows=3, duplicates=0)
    assert samples(tmp_path) == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == [TRAJECTORIES]


def test_a_run_without_a_trajectory_has_an_empty_file(tmp_path: Path) -> None:
    assert Parts(tmp_path).merge() == Merged(rows=0, duplicates=0)
    assert samples(tmp_path) == []


def test_a_rerun_adds_to_what_is_there(tmp_path: Path) -> None:
    for lease, number in (("l1", 0), ("l2", 1)):
        Parts(tmp_path).add(lease, [trajectory(number)])
        Parts(tmp_path).merge()
    assert samples(tmp_path) == [0, 1]


def test_a_lease_that_was_written_but_not_acked_is_offered_again_and_counted_once(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add("l1", [trajectory(0)])  # killed before the ack
    parts.add("l2", [trajectory(0), trajectory(1)])
    assert parts.merge() == Merged(rows=2, duplicates=1)


def test_the_same_lease_again_replaces_itself(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add("l1", [trajectory(0)])
    parts.add("l1", [trajectory(0)])
    assert len(parts.pending) == 1


@pytest.mark.parametrize("killed_in", ["merge_parquet", "unlink"])
def test_a_kill_while_merging_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    parts = Parts(tmp_path)
    parts.add("l1", [trajectory(0)])
    parts.add("l2", [trajectory(1)])

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            *((module, killed_in, kill) if killed_in == "merge_parquet" else (Path, killed_in, kill))
        )
        with pytest.raises(KeyboardInterrupt):
            parts.merge()
    assert Parts(tmp_path).merge().rows == 2
    assert samples(tmp_path) == [0, 1]
    assert Parts(tmp_path).pending == []


def test_a_damaged_part_leaves_everything_as_it_is(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add("l1", [trajectory(0)])
    (parts.folder / "l2.parquet").write_bytes(b"half")
    with pytest.raises(CorruptRecord, match=r"l2\.parquet"):
        parts.merge()
    assert [path.name for path in parts.pending] == ["l1.parquet", "l2.parquet"]
    assert not (tmp_path / TRAJECTORIES).exists()


def test_a_part_that_was_not_finished_is_no_part(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add("l1", [trajectory(0)])
    (parts.folder / ".l2.parquet.1-ab.tmp").write_bytes(b"half")
    assert parts.merge().rows == 1


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 200, "a\0b"])
def test_a_lease_id_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidBody, match="lease id"):
        Parts(tmp_path).add(name, [])
