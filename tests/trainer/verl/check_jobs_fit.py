"""examples/verl/train.sh as it is: verl's own `main_ppo`, two steps of GRPO on the shop, on a CPU.

What is verl's: trainer (v1), FSDP 2, TransferQueue, losses, rollout correction, client and balancer. What stands in for
a GPU is `cpu_verl`: transformers samples, and weights go to it by Ray. Agents, verifiers and gateways are processes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandgate.trainer.export.parquet import read_parquet
from tests.support.waiting import until_now

jobs: Any = importlib.import_module("jobs")
small_fit: Any = importlib.import_module("small_fit")

RUN_S = 420.0
"""A minute or two on two idle cores; several where others are at work."""


@pytest.mark.timeout(RUN_S + 30.0)
def test_verls_own_trainer_takes_two_steps_over_sandboxes(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
    env |= small_fit.ENVIRONMENT | {"PATH": path, "OUT": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as file:
        run = subprocess.Popen(
            [small_fit.TRAIN, *small_fit.SMALL],
            env=env, cwd=tmp_path, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = run.wait(RUN_S)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    said = log.read_text("utf-8", "replace")
    assert code == 0, (
        f"{said[-8_000:]}\n{'not done within its time' if code is None else f'ended with {code}'}"
    )
    # verl tells nobody that it ends: Ray kills the job's driver, and first its children.
    until_now(lambda: not jobs.processes(str(tmp_path)), what="gateways and agents ended with the trainer")
    steps = small_fit.steps(said)
    assert len(steps) == small_fit.STEPS, said[-8_000:]
    assert all(map(small_fit.captured_is_recomputed, steps)), steps
    rows = [
        row
        for file in (tmp_path / "job" / "train" / "000" / "groups").iterdir()
        for row in read_parquet(file)
    ]
    versions = sorted({version for row in rows for version in row.versions if version >= 0})
    assert versions == list(range(small_fit.STEPS)), (
        "each step's tokens are of the weights that the step before made"
    )
    assert (
        len({(row.uid, row.sample_index) for row in rows})
        == small_fit.STEPS * small_fit.PROMPTS * small_fit.N
    )
    assert all(len(set(row.versions) - {-1}) == 1 for row in rows)
