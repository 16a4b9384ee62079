"""Exports with the real packages, each in an environment of its own: verl, torch, datasets, transformers and Ray in
verl's, AReaL's own padding, TRL's own trainer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandgate.trainer.export.arrow import write_parquet
from tests.trainer.areal.env import environment as clean
from tests.trainer.areal.env import python as areal_python
from tests.trainer.test_verl import BUILD_S, HERE, ROOMS, ROOT, RUN_S, run
from tests.trainer.verl.rows import row, short

CHECKS = ROOT / "tests" / "trainer" / "export"
PROGRAM_S = 180.0
"""10-30 s of imports, then milliseconds."""
PATHS = os.pathsep.join([*(str(ROOT / room) for room in ROOMS), str(ROOT)])

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_S + RUN_S)]


def program(python: Path, name: str, *words: object) -> str:
    """The last line that it prints."""
    done = subprocess.run(
        [python, CHECKS / f"{name}.py", *map(str, words)],
        env=clean(PYTHONPATH=PATHS),
        capture_output=True, text=True, timeout=PROGRAM_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_in_verls_environment() -> None:
    """All checks in one process, on one local Ray."""
    checks = [str(path) for path in sorted(CHECKS.glob("check_*.py"))]
    said = run("-m", "pytest", "-q", "-c", str(HERE / "pytest.ini"), *checks)
    assert said.returncode == 0, said.stdout[-10_000:] + said.stderr[-2_000:]
    assert " passed" in said.stdout


def test_areals_own_padding_makes_the_same_file(tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows.parquet", [row(0), short(1), row(2, reward=None)])
    words = ["export", str(tmp_path / "rows.parquet"), "--format", "areal"]
    said = run("-c", f"from sandgate.trainer.cli import main; main({words!r})")
    assert said.returncode == 0, said.stderr
    assert program(areal_python(), "areal_batch", tmp_path / "rows.areal.pt") == "equal"


def test_trls_trainer_takes_the_file(tmp_path: Path) -> None:
    from sandgate.trainer.export.trl import write_trl

    failed = short(2, failure_class="infra", failure_reason="Evicted")
    rows = [row(0), short(1), short(2), row(3), failed]
    assert write_trl(tmp_path / "rows.parquet", rows) == 5
    built = subprocess.run(
        [ROOT / "scripts" / "trainer-env.sh", "trl"],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    python = Path(built.stdout.splitlines()[-1]) / "bin" / "python"
    assert program(python, "trl_step", tmp_path / "rows.parquet") == "trained"
