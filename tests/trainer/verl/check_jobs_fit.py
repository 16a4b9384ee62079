"""examples/verl/train.sh as it is: verl's own `main_ppo`, two steps of GRPO on the shop, on a CPU.

What is verl's: trainer (v1), FSDP 2, TransferQueue, losses, rollout correction, client and balancer. What stands in for
a GPU is `cpu_verl`: transformers samples, and weights go to it by Ray. Agents, verifiers and gateways are processes."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandgate.trainer.export.parquet import read_parquet
from tests.support.waiting import until_now

jobs: Any = importlib.import_module("jobs")

ROOT = Path(__file__).parents[3]
RUN_S = 420.0
"""A minute or two on two idle cores; several where others are at work."""
N, PROMPTS, STEPS = 2, 2, 2
SMALL = [
    "trainer.device=cpu",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32}",
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"actor_rollout_ref.rollout.n={N}",
    f"data.train_batch_size={PROMPTS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
    "data.dataloader_num_workers=0",
    "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "ray_kwargs.ray_init.num_cpus=12",
    "+ray_kwargs.ray_init.resources.NPU=1",
    "+ray_kwargs.ray_init.include_dashboard=False",
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
]
"""Overrides of the recipe: less of everything, and no GPU."""


@pytest.mark.timeout(RUN_S + 30.0)
def test_verls_own_trainer_takes_two_steps_over_sandboxes(tmp_path: Path) -> None:
    cpu_verl = importlib.import_module("cpu_verl")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
    env |= cpu_verl.ENVIRONMENT | {"PATH": path, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log"
    with log.open("wb") as file:
        run = subprocess.Popen(
            [ROOT / "examples" / "verl" / "train.sh", *SMALL],
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
    steps = [line for line in said.splitlines() if re.search(r"\bstep:\d+ - ", line)]
    assert len(steps) == STEPS, said[-8_000:]
    for line in steps:  # importance ratios of every token: what was captured is what the trainer recomputes
        for name in ("rollout_corr/rollout_is_max", "rollout_corr/rollout_is_min"):
            assert abs(_metric(line, name) - 1.0) < 1e-4, line
    rows = [
        row
        for file in (tmp_path / "job" / "train" / "000" / "groups").iterdir()
        for row in read_parquet(file)
    ]
    versions = sorted({version for row in rows for version in row.versions if version >= 0})
    assert versions == list(range(STEPS)), "each step's tokens are of the weights that the step before made"
    assert len({(row.uid, row.sample_index) for row in rows}) == STEPS * PROMPTS * N
    assert all(len(set(row.versions) - {-1}) == 1 for row in rows)


def _metric(line: str, name: str) -> float:
    found = re.search(rf"{re.escape(name)}:([^ ]+)", line)
    assert found, f"{name} is not logged: {line}"
    return float(found[1].removeprefix("np.float64(").removeprefix("np.float32(").rstrip(")"))
