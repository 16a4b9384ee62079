"""Who starts, keeps and ends the one cluster of a machine. Locks are real; the machines are counted, not started."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.harness import shared as module
from tests.cluster.harness.shared import owner, peace, shared, start_for_make, stop_for_make


class Counted:
    """Stands in for Machines, whose state is in files too."""

    folder: Path

    def up(self, *, in_memory: bool = False) -> None:
        self.down()
        self.folder.mkdir()
        with (self.folder.parent / "starts").open("a") as file:
            file.write("x")

    def down(self) -> None:
        for path in self.folder.glob("*"):
            path.unlink()
        if self.folder.exists():
            self.folder.rmdir()

    def alive(self) -> bool:
        return self.folder.exists() and not (self.folder / "dead").exists()

    def healthy(self) -> bool:
        return self.alive() and not (self.folder / "broken").exists()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setattr(Counted, "folder", folder, raising=False)
    monkeypatch.setattr(module, "Machines", Counted)
    monkeypatch.setattr(module, "OWNER", folder / "owner.json")
    for name in ("CHANGES", "USERS", "BREAKS"):
        monkeypatch.setattr(module, name, tmp_path / name)
    return folder


def starts(state: Path) -> int:
    return len((state.parent / "starts").read_text())


def test_the_first_run_starts_it_and_the_last_one_ends_it(state: Path) -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(shared())
    second.enter_context(shared())
    assert starts(state) == 1
    first.close()
    assert state.exists()
    second.close()
    assert not state.exists()


def test_a_cluster_of_make_is_used_and_left_on(state: Path) -> None:
    start_for_make()
    with shared():
        pass
    assert (owner(), starts(state)) == ("make", 1)
    stop_for_make()
    assert not state.exists()


def test_what_a_crashed_run_left_is_started_anew(state: Path) -> None:
    Counted().up()
    (state / "owner.json").write_text(json.dumps("tests"))
    with shared():
        assert starts(state) == 2
    assert not state.exists()


def test_a_start_that_never_ended_is_started_anew(state: Path) -> None:
    Counted().up()
    with shared():
        assert (starts(state), owner()) == (2, "tests")


def test_a_cluster_in_use_is_neither_ended_nor_started_anew(state: Path) -> None:
    with shared():
        (state / "broken").touch()  # a chaos test cut the power of a node
        with pytest.raises(SystemExit, match="use the cluster now"):
            stop_for_make()
        start_for_make()
        assert starts(state) == 1
        (state / "broken").unlink()
    assert owner() == "make"  # and it stays, as was asked for


def test_a_broken_cluster_of_make_is_not_mended_behind_its_owners_back(state: Path) -> None:
    start_for_make()
    (state / "broken").touch()
    with pytest.raises(AssertionError, match="make cluster-down cluster-up"), shared():
        pass
    start_for_make()
    assert starts(state) == 2


def test_of_a_cluster_that_died_with_its_session_only_files_are_left(state: Path) -> None:
    start_for_make()
    (state / "dead").touch()
    with shared():
        assert (starts(state), owner()) == (2, "tests")
    assert not state.exists()


def test_who_breaks_machines_waits_for_those_who_need_them(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OTHERS_S", 0.0)
    refused = pytest.raises(AssertionError, match="let go of the machines")
    with peace(broken=False), peace(broken=False), refused, peace(broken=True):
        pass
    with peace(broken=True), refused, peace(broken=False):
        pass
