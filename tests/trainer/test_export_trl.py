"""`sandgate export --format trl` writes what TRL's own trainer takes from a rollout_func."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandgate.trainer.export.trl import write_trl
from tests.support.environments import python_of
from tests.trainer.verl.rows import row, short

PROGRAM_S = 180.0
"""6 to 30 s of imports, then milliseconds."""


@pytest.mark.slow
@pytest.mark.timeout(PROGRAM_S)
def test_trls_trainer_takes_the_file(tmp_path: Path) -> None:
    failed = short(4, failure_class="infra", failure_reason="Evicted")
    assert write_trl(tmp_path / "rows.parquet", [row(0), short(1), short(2), row(3), failed]) == 5
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [python_of("trainer-env.sh", "trl"), Path(__file__).parent / "export" / "trl_step.py",
         tmp_path / "rows.parquet"],
        env=kept, capture_output=True, text=True, timeout=PROGRAM_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "trained"
