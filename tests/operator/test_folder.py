"""The `--out` folder: one run at a time, one job for ever, private where it must be."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sandgate.contract.errors import Conflict
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import group_name
from sandgate.operator.local.folder import Claim, claimable, in_use, replace
from sandgate.operator.local.fresh import clear
from tests.contract.manifests import spoilt
from tests.support.forked import over


def job(*changes: tuple[str, object]) -> RolloutJob:
    return decode(RolloutJob, spoilt(*changes))


def test_a_folder_is_made_with_a_secret_of_its_own(tmp_path: Path) -> None:
    claims = [Claim(tmp_path / name, job()) for name in ("a", "b")]
    secrets = [one.folder.secret.read_text() for one in claims]
    assert len(set(secrets)) == 2
    assert all(len(bytes.fromhex(one)) == 32 for one in secrets)
    assert stat.S_IMODE(claims[0].folder.secret.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a" / "run").stat().st_mode) == 0o700
    for one in claims:
        one.release()


def test_the_next_run_finds_the_same_secret_and_a_clean_table(tmp_path: Path) -> None:
    first = Claim(tmp_path, job())
    secret = first.folder.secret.read_text()
    (first.folder.scratch("left-over")).mkdir()
    first.folder.journal(0).touch()
    first.folder.journal(1).touch()
    first.release()
    second = Claim(tmp_path, job())
    assert second.folder.secret.read_text() == secret
    assert not second.folder.scratch("left-over").exists()
    assert second.folder.journals() == 2
    second.release()


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    first = Claim(tmp_path, job())
    which = re.escape(f"another run uses this folder (process {os.getpid()})")
    with pytest.raises(Conflict, match=which):
        Claim(tmp_path, job())
    with pytest.raises(Conflict, match=which):
        claimable(tmp_path, job(), Path())
    first.release()
    Claim(tmp_path, job()).release()


def test_a_run_whose_lock_file_was_removed_still_has_its_folder(tmp_path: Path) -> None:
    """Somebody tidied up, or copied the folder about: a second run would clear away what the first one works with."""
    first = Claim(tmp_path, job())
    (first.folder.scratch("at-work")).mkdir()
    (tmp_path / ".lock").unlink()
    with pytest.raises(Conflict, match="another run uses this folder"):
        Claim(tmp_path, job())
    (tmp_path / ".lock").unlink()  # the refused one made another
    assert in_use(tmp_path)
    with pytest.raises(Conflict, match="another run uses this folder"):
        clear(tmp_path, job().metadata.name)
    assert first.folder.scratch("at-work").is_dir()
    first.release()
    assert not in_use(tmp_path)


@pytest.mark.parametrize("end", ["for lock in locks:\n    lock.release()", "die()"])
def test_a_worker_that_its_process_forked_off_keeps_no_folder(end: str, tmp_path: Path) -> None:
    takes = "from sandgate.operator.local.folder import take\nlocks = take(Path(sys.argv[1]))\nfork()\n"
    with over(takes + end, str(tmp_path)):
        assert (tmp_path / ".lock").exists()
        assert not in_use(tmp_path)


@pytest.mark.parametrize(("field", "value"), [("metadata.name", "other"), ("spec.groupSize", 8)])
def test_another_job_is_refused_by_what_differs(tmp_path: Path, field: str, value: object) -> None:
    Claim(tmp_path, job()).release()
    with pytest.raises(Conflict, match=field.replace(".", r"\.")):
        Claim(tmp_path, job((field, value)))
    Claim(tmp_path, job(("spec.parallelism", 99))).release()  # this may change, and the refusal left no lock
    assert json.loads((tmp_path / "job.json").read_text())["spec"]["parallelism"] == 99


def test_files_are_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "x"
    (tmp_path / ".x.tmp").write_text("of a run that was killed")
    replace(path, "one")
    replace(path, "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def dead() -> int:
    """The pid of a process that is over."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        process.wait()
    return process.pid


GROUP, OTHERS = group_name(job().metadata.name, "q1"), group_name("other", "q1")
LEFT = (
    "trajectories.parquet.{dead}-0123abcd",
    "trajectories.parquet.{own}-4567cdef",  # a run in a container has the pid of the one before
    "made.json",
    "groups/{group}.parquet.{dead}-0123abcd",
)
NOT_LEFT = (
    "trajectories.parquet.{alive}-0123abcd",
    "groups/{group}.parquet.{alive}-0123abcd",
    "groups/{others}.parquet.{dead}-0123abcd",
    "groups/mine.parquet.{dead}-0123abcd",
    "notes.txt.{dead}-0123abcd",
)


def parts(root: Path, names: tuple[str, ...], gone: int) -> set[Path]:
    pids = {"own": os.getpid(), "alive": os.getppid(), "dead": gone}
    told = [root / one.format(group=GROUP, others=OTHERS, **pids) for one in names]
    return {one.with_name(f".{one.name}.tmp") for one in told}


def test_what_a_killed_run_was_writing_is_cleared_by_the_next_one_and_nothing_else_is(tmp_path: Path) -> None:
    Claim(tmp_path, job()).release()
    gone = dead()
    left, kept = parts(tmp_path, LEFT, gone), parts(tmp_path, NOT_LEFT, gone)
    for path in left | kept:
        path.write_text("half")
    whole = tmp_path / "groups" / f"{GROUP}.parquet"
    whole.write_text("whole")
    (tmp_path / "gateway-0.sqlite").write_text("what it was made of")
    Claim(tmp_path, job()).release()
    assert set(tmp_path.rglob("*.tmp")) == kept
    assert whole.exists()


def test_nothing_is_cleared_in_a_folder_that_another_run_uses(tmp_path: Path) -> None:
    claim = Claim(tmp_path, job())
    left = parts(tmp_path, LEFT, dead())
    for path in left:
        path.write_text("half")
    with pytest.raises(Conflict, match="another run uses this folder"):
        Claim(tmp_path, job())
    assert set(tmp_path.rglob("*.tmp")) == left
    claim.release()


def test_what_is_cleared_is_not_what_a_link_leads_to(tmp_path: Path) -> None:
    out, far = tmp_path / "out", tmp_path / "far"
    Claim(out, job()).release()
    far.mkdir()
    (out / "groups").rmdir()
    (out / "groups").symlink_to(far)
    (behind,) = parts(tmp_path, ("far/{group}.parquet.{dead}-0123abcd",), gone := dead())
    behind.write_text("another's")
    (link,) = parts(out, ("trajectories.parquet.{dead}-0123abcd",), gone)
    link.symlink_to(behind)
    (folder,) = parts(out, ("job.json.{dead}-0123abcd",), gone)
    folder.mkdir()
    Claim(out, job()).release()
    assert behind.read_text() == "another's"
    assert not link.is_symlink()
    assert folder.is_dir(), "no run makes such a folder"


def test_a_file_that_the_disk_does_not_keep_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    replace(tmp_path / "x", "one")
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as found:
        replace(tmp_path / "x", "two")
    assert found.value.filename == str(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "one"
