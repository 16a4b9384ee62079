"""Folders that agents filled go, for a user whom modes bind: on a full disk nothing runs any more."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.session import SessionHandle
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local import sandboxes
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.sandboxes import Sandboxes, _furnish
from sandgate.operator.local.trees import clear_away, remove_tree
from sandgate.operator.observed.events import AgentSeen, VerifierSeen
from sandgate.operator.plan.actions import Ref
from tests.contract.manifests import spoilt
from tests.support.nobody import as_nobody

MODES = (0o555, 0o444, 0o333, 0o111, 0o000)
REF = Ref("shop", "a", 0, 0)
HANDLE = SessionHandle(
    session_id=REF.name,
    base_url="",
    anthropic_base_url="",
    complete_url="",
    reward_url="",
    api_key="",
    reward_key="",
    expires_at=0.0,
)


def module(path: Path, mode: int = 0o555) -> Path:
    """As `go mod download` leaves one: folders in folders, none of which can be written."""
    inner = path / "mod" / "cache"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent, path):
        for name in ("a.go", "b.go"):
            (folder / name).write_text("package x")
            (folder / name).chmod(0o444)
        (folder / "empty").mkdir(mode=mode)
    for folder in (inner, inner.parent, path):
        folder.chmod(mode)
    return path


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


# -- one tree: these run as a user whom modes bind ---------------------------------------------------------------------


def goes_whatever_its_modes(home: Path) -> None:
    for mode in MODES:
        remove_tree(module(home / "go", mode))
        assert names(home) == [], oct(mode)


def leaves_what_is_beside(home: Path) -> None:
    beside, tree = module(home / "beside"), home / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(beside)
    (tree / "file").symlink_to(beside / "a.go")
    tree.chmod(0o555)
    remove_tree(tree)
    assert not tree.exists()
    assert (mode_of(beside), mode_of(beside / "a.go")) == (0o555, 0o444)
    assert names(beside) == ["a.go", "b.go", "empty", "mod"]


def changes_no_folder_that_holds_it(home: Path) -> None:
    tree = module(home / "held" / "tree")
    (home / "held").chmod(0o555)
    with pytest.raises(PermissionError):
        remove_tree(tree)
    assert mode_of(home / "held") == 0o555
    assert names(tree) == [], "all that can go went"


@pytest.mark.parametrize(
    "work", [goes_whatever_its_modes, leaves_what_is_beside, changes_no_folder_that_holds_it]
)
def test_a_tree(work: Callable[[Path], None]) -> None:
    as_nobody(work)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.parent), Path.touch])
def test_what_is_no_folder_goes_likewise(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "kept").touch()
    make(tmp_path / "it")
    remove_tree(tmp_path / "it")
    remove_tree(tmp_path / "it")
    remove_tree(tmp_path / "kept" / "below")
    assert names(tmp_path) == ["kept"]


def test_one_that_is_nested_too_deep_does_not_stay_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(1_500):
        os.mkdir("d")
        os.chdir("d")
    monkeypatch.undo()
    clear_away(tmp_path / "d")
    assert (f"{tmp_path / 'd'} stays on the disk: " in caplog.text) == (tmp_path / "d").exists()
    while (deep := tmp_path / "/".join(["d"] * 50)).exists():  # for who tidies up behind us
        deep.rename(tmp_path / "rest")
        remove_tree(tmp_path / "d")
        (tmp_path / "rest").rename(tmp_path / "d")


# -- a run's folders ---------------------------------------------------------------------------------------------------


def local(home: Path) -> tuple[Sandboxes, list[Any]]:
    """Of a run whose root is that folder; what its store is told."""
    told: list[Any] = []
    job = decode(RolloutJob, spoilt())
    state: Any = SimpleNamespace(now=lambda: 7.0, observe=told.append, job=job)
    (home / "run").mkdir()
    made = Sandboxes(
        state=cast(DriverState, state),
        manifest_dir=home,
        folder=Folder(home),
        guard=cast(Any, None),
        recipe=cast(Any, None),
        spawn=cast(Any, None),
        tell=lambda event: None,
    )
    made.opened(REF, HANDLE)
    return made, told


def forgets(home: Path) -> None:
    made, _ = local(home)
    module(made.folder.scratch(REF.name) / "agent" / "home" / "go")
    asyncio.run(made.forget(REF))
    assert names(home / "run") == []


def tidies(home: Path) -> None:
    """As the next run does, behind one that was killed."""
    folder = Folder(home)
    module(folder.scratch("a") / "go")
    folder.tidy()
    assert names(home) == []


@pytest.mark.parametrize("work", [forgets, tidies])
def test_a_run_leaves_nothing_on_the_disk(work: Callable[[Path], None]) -> None:
    as_nobody(work)


def test_a_link_in_the_place_of_the_runs_folder_stays(tmp_path: Path) -> None:
    """Somebody's scratch disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    Folder(tmp_path).tidy()
    assert names(tmp_path) == ["disk", "run"]


def cleared(path: Path) -> Path:
    path.rmdir()
    return path


LEFT: dict[str, Callable[[Path], object]] = {
    "its folder, read-only and full": lambda scratch: module(scratch / "verifier" / "home"),
    "its folder, that nobody may look into": lambda scratch: module(scratch / "verifier", 0o000),
    "a session's folder that is read-only": lambda scratch: scratch.chmod(0o555),
    "a file in the place of the session's folder": lambda scratch: cleared(scratch).touch(),
    "a link in its place": lambda scratch: cleared(scratch).symlink_to("nowhere"),
}


def furnishes(home: Path, left: str) -> None:
    scratch = home / "session"
    scratch.mkdir()
    LEFT[left](scratch)
    made = _furnish(scratch, "verifier", {"task.json": b"{}"})
    assert made == scratch.resolve() / "verifier"
    assert names(made) == ["home", "task.json", "tmp"]
    assert names(made / "home") == []
    assert mode_of(scratch) == 0o700


@pytest.mark.parametrize("left", LEFT)
def test_the_verifier_has_a_folder_whatever_the_agent_left(left: str) -> None:
    as_nobody(furnishes, left)


@pytest.mark.parametrize("who", ["agent", "verifier"])
async def test_who_can_have_no_folder_did_not_start(
    tmp_path: Path, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = local(tmp_path)

    def stays(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path / "home"))

    monkeypatch.setattr(sandboxes, "remove_tree", stays)
    task = Task(uid="a", prompt="x")
    await (made.start(REF, task) if who == "agent" else made.start_verifier(REF, task, None))
    (said,) = told
    assert isinstance(said, AgentSeen if who == "agent" else VerifierSeen)
    exit_ = said.running.exit
    assert exit_ is not None
    assert exit_.reason is FailureReason.START_FAILED
    assert exit_.detail.startswith(f"{who}: no folder can be made for it: [Errno 1] Operation not permitted")


def test_a_full_disk_is_not_its_fault_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sandboxes, "remove_tree", full)
    with pytest.raises(OSError, match="No space left"):
        _furnish(tmp_path / "session", "verifier", {})
