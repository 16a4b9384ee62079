"""What `--fresh` removes: what a run of this very job writes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandgate.contract.errors import Conflict
from sandgate.contract.names import group_name, session_id
from sandgate.operator.local.folder import Claim
from sandgate.operator.local.fresh import clear
from sandgate.operator.local.manifest import parse_job
from tests.trainer.jobs import MANIFEST

GROUP, SESSION = group_name("ask", "q1"), session_id("ask", "q1", 0, 0)
WRITTEN = (
    "trajectories.parquet",
    "result.json",
    ".result.json.12-ab34cd56.tmp",
    ".job.json.tmp",
    f"groups/{GROUP}.parquet",
    f"groups/.{GROUP}.parquet.77-0123abcd.tmp",
    "logs/engine.log",
    "logs/gateway-0.log",
    "logs/gateway-11.log",
    f"logs/{SESSION}.log",
    f"logs/{SESSION}.verifier.log",
    "gateway-0.sqlite",
    "gateway-0.sqlite-wal",
    "gateway-0.sqlite-shm",
    "gateway-10.sqlite",
    f"run/{SESSION}/agent/task.json",
)
KEPT = (
    "notes.txt",
    "trajectories.jsonl",
    ".notes.txt.tmp",
    "my.sqlite",
    "groups/mine.parquet",
    f"groups/{group_name('other', 'q1')}.parquet",
    "logs/mine.log",
    f"logs/{session_id('other', 'q1', 0, 0)}.log",
    "gateway-0.sqlite.bak",
    "more/gateway-0.sqlite",
)


def a_run(root: Path) -> None:
    """Its folder, with files of the user between."""
    Claim(root, parse_job(MANIFEST)).release()
    for name in (*WRITTEN, *KEPT):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()}


def test_what_a_run_writes_goes_and_the_rest_stays(tmp_path: Path) -> None:
    a_run(tmp_path)
    clear(tmp_path, "ask", also=("result.json",))
    assert files(tmp_path) == {*KEPT, ".lock"}
    clear(tmp_path, "ask", also=("result.json",))
    assert files(tmp_path) == {*KEPT, ".lock"}, "a folder that holds no run is left alone"


def test_folders_of_a_run_that_hold_nothing_else_go(tmp_path: Path) -> None:
    Claim(tmp_path, parse_job(MANIFEST)).release()
    clear(tmp_path, "ask")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_link_goes_and_what_it_names_stays(tmp_path: Path) -> None:
    out, far = tmp_path / "out", tmp_path / "far.sqlite"
    Claim(out, parse_job(MANIFEST)).release()
    far.write_text("far")
    (out / "gateway-0.sqlite").symlink_to(far)
    clear(out, "ask")
    assert (far.read_text(), (out / "gateway-0.sqlite").is_symlink()) == ("far", False)


def test_nothing_goes_from_a_folder_that_another_run_uses(tmp_path: Path) -> None:
    a_run(tmp_path)
    (tmp_path / "gateway-10.sqlite").unlink()  # without the nine before it no run would go on here
    other = Claim(tmp_path, parse_job(MANIFEST))
    before = files(tmp_path)
    with pytest.raises(Conflict, match="another run uses this folder"):
        clear(tmp_path, "ask")
    assert files(tmp_path) == before
    other.release()
    clear(tmp_path, "ask", also=("result.json",))
    assert files(tmp_path) == {*KEPT, ".lock"}


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another job's folder": (
        lambda root: (root / "job.json").write_text('{"metadata": {"name": "shop"}}'), "holds a run of shop",
    ),
    "a folder whose job.json is something else": (
        lambda root: (root / "job.json").write_text("[]"), "holds a run of something else",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "why"), REFUSED.values(), ids=REFUSED)
def test_nothing_goes_from(tmp_path: Path, harm: Callable[[Path], object], why: str) -> None:
    a_run(tmp_path)
    harm(tmp_path)
    before = files(tmp_path)
    with pytest.raises(Conflict, match=why):
        clear(tmp_path, "ask", also=("result.json",))
    assert files(tmp_path) == before


def test_a_folder_without_a_run_is_not_touched(tmp_path: Path) -> None:
    for name in (*WRITTEN, *KEPT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    clear(tmp_path, "ask", also=("result.json",))
    assert files(tmp_path) == {*WRITTEN, *KEPT}
