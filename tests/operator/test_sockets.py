"""Folders of engines' sockets: those of killed runs go, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandgate.operator.local.sockets import LOCK, SocketsFolder, sweep
from tests.support.nobody import NOBODY

OWNER = """
import sys
from sandgate.operator.local.sockets import SocketsFolder
made = SocketsFolder()
print(made.path, flush=True)
sys.stdin.read()
made.remove()
"""


def owner(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has one, and the folder."""
    made = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=os.environ | {"TMPDIR": str(base)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    return made, Path(made.stdout.readline().strip())


def killed(base: Path) -> Path:
    """The folder of one that was killed, with a socket in it."""
    made, folder = owner(base)
    (folder / "socket").touch()
    made.kill()
    made.communicate()
    return folder


def test_the_folder_of_a_killed_run_goes_with_the_next_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = killed(tmp_path)
    assert (gone / "socket").exists()
    living, kept = owner(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = SocketsFolder()
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {kept, mine.path}
    mine.remove()
    living.communicate("")
    assert list(tmp_path.iterdir()) == []


def of_another_user(folder: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("another user's file needs root")
    os.chown(folder, NOBODY, NOBODY)
    return folder


def a_link_to_one(folder: Path) -> Path:
    aside = folder.rename(folder.with_name("aside"))
    folder.symlink_to(aside)
    return aside


def with_a_link_for_its_lock(folder: Path) -> Path:
    (folder / LOCK).rename(folder / "real")
    (folder / LOCK).symlink_to("real")
    return folder


def without_a_lock(folder: Path) -> Path:
    """As older versions make them: nobody can say whether a run lives in it."""
    (folder / LOCK).unlink()
    return folder


KEPT: dict[str, Callable[[Path], Path]] = {
    "of another user": of_another_user,
    "a link to one": a_link_to_one,
    "with a link for its lock": with_a_link_for_its_lock,
    "without a lock": without_a_lock,
    "of another name": lambda folder: folder.rename(folder.with_name("sg-of-another-program")),
}


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_what_may_be_another_s_stays(tmp_path: Path, change: Callable[[Path], Path]) -> None:
    kept = change(killed(tmp_path))
    sweep(tmp_path)
    assert (kept / "socket").exists()


def test_what_a_link_in_it_leads_to_stays(tmp_path: Path) -> None:
    (base := tmp_path / "tmp").mkdir()
    (aside := tmp_path / "aside").write_text("kept")
    (killed(base) / "link").symlink_to(aside)
    sweep(base)
    assert (list(base.iterdir()), aside.read_text()) == ([], "kept")
