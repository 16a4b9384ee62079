"""TRL's own GRPOTrainer in two processes: one of them leases, both train."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from safetensors.torch import load_file  # type: ignore[import-not-found]

from sandgate.trainer import tinymodel
from tests.support.waiting import until_now

JOBS = itertools.count()
PROCESSES, SAMPLES, EACH = 2, 2, 3
GROUPS = PROCESSES * EACH // SAMPLES
RUN_S = 240.0
"""Two processes import torch and TRL at once: a busy machine needed over two minutes."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def launch(running: Any, tmp_path: Path) -> Any:
    job = f"processes-{next(JOBS)}"
    model = tinymodel.write_tiny_model(tmp_path / "model")

    def told_of(name: str, steps: int, **told: Any) -> dict[str, str]:
        config = {
            "max_steps": steps,
            "num_generations": SAMPLES,
            "per_device_train_batch_size": EACH,
            **told.pop("config", {}),
        }
        given = {
            "name": name, "folder": str(tmp_path), "model": str(model), "origin": running.origin, "job": job,
            "key": running.admin_key, "groups": 4 * GROUPS, "agent_s": 0.0, "timeout_s": 60, "options": {},
            "config": config, **told,
        }  # fmt: skip
        return {**os.environ, "TOLD": json.dumps(given), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def launched(name: str, steps: int, *, by_hand: Any = None, **told: Any) -> list[dict[str, Any] | None]:
        """By torchrun, which ends all if one ends; or by hand: `by_hand` is given the processes."""
        env = told_of(name, steps, **told)
        program = str(Path(__file__).with_name("training.py"))
        with (tmp_path / f"{name}.log").open("w") as log:
            if by_hand is None:
                words = [
                    "-m",
                    "torch.distributed.run",
                    "--standalone",
                    "--nproc-per-node",
                    str(PROCESSES),
                    program,
                ]
                subprocess.run(
                    [sys.executable, *words], env=env, stdout=log, stderr=log, timeout=RUN_S, check=False
                )
            else:
                env |= {
                    "WORLD_SIZE": str(PROCESSES),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(free_port()),
                }
                ranks = [
                    subprocess.Popen(
                        [sys.executable, program], env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=log, stderr=log,
                    )
                    for rank in range(PROCESSES)
                ]  # fmt: skip
                try:
                    by_hand(ranks)
                    for one in ranks:
                        one.wait(RUN_S)
                finally:
                    for one in ranks:
                        one.kill()
        written = [tmp_path / f"{name}-{rank}.json" for rank in range(PROCESSES)]
        assert written[0].exists(), (tmp_path / f"{name}.log").read_text()[-4000:]
        return [json.loads(one.read_text()) if one.exists() else None for one in written]

    return launched


def batches(told: list[dict[str, Any]]) -> list[list[tuple[str, int]]]:
    """For each round, (uid, sample) of all rows, in the order of the processes."""
    rounds = zip(*(one["columns"] for one in told), strict=True)
    return [
        [pair for part in each for pair in zip(part["uid"], part["sandgate_sample"], strict=True)]
        for each in rounds
    ]


def test_two_processes_train_on_one_batch_that_one_of_them_leased(
    launch: Any, running: Any, tmp_path: Path
) -> None:
    """The middle group lies across both. An agent takes longer than the processes' time-out for each other."""
    before = running.player.counts["generations"]
    told = launch("first", 2, agent_s=6.0, timeout_s=4)
    assert [one["error"] for one in told] == [None, None]
    assert len(batches(told)) == 2
    for step, rows in enumerate(batches(told)):
        uids = [uid for uid, _ in rows[::SAMPLES]]
        assert rows == [(uid, sample) for uid in uids for sample in range(SAMPLES)]
        assert [uid.split(".")[1] for uid in uids] == [f"t{step}"] * GROUPS
    assert running.player.counts["generations"] - before == 2 * PROCESSES * EACH * 2, "two turns each, once"
    both = [sorted(a + b) for a, b in zip(*(one["advantages"] for one in told), strict=True)]
    half = [0.7070] * (PROCESSES * EACH // 2)
    assert both == [pytest.approx([-one for one in half] + half, abs=1e-3)] * 2
    assert told[0]["weights"] == told[1]["weights"]
    starts = {
        version for one in told for column in one["columns"][:1] for version in column["sandgate_version"]
    }
    assert len(starts) == 1, "both know the version"
    (start,) = starts
    for one in told:
        assert one["version"] == start + 2
        for step, column in enumerate(one["columns"]):
            sampled = {version for row in column["sandgate_versions"] for version in row if version >= 0}
            assert sampled == {start + step}
    kept = load_file(tmp_path / "weights" / f"v{start + 2}" / "model.safetensors")
    assert {name: float(one.double().sum()) for name, one in kept.items()} == told[0]["weights"]
    first = load_file(tmp_path / "weights" / f"v{start}" / "model.safetensors")
    assert any(not torch.equal(first[name], kept[name]) for name in kept)

    # goes on where the checkpoint is: nothing is trained on twice, no version means two weights
    again = launch("second", 4)
    assert [one["error"] for one in again] == [None, None]
    steps = [uid.split(".")[1] for rows in batches(again) for uid, _ in rows[::SAMPLES]]
    assert steps == [f"t{step}" for step in (2, 3) for _ in range(GROUPS)]
    assert min(v for one in again for c in one["columns"] for v in c["sandgate_version"]) > start + 2


def test_a_masked_sample_of_another_process_is_no_part_of_its_groups_mean(launch: Any) -> None:
    """One group lies across both; its last is lost, and a second reward function has a word for all."""
    told = launch("masked", 1, lost=5, polite=True, config={"num_generations": PROCESSES * EACH})
    assert [one["error"] for one in told] == [None, None]
    ((first,), (second,)) = (one["advantages"] for one in told)
    assert sorted(first + second) == pytest.approx([-1.265, -0.632, 0.0, 0.0, 0.632, 1.265], abs=1e-3)


def test_both_evaluate_and_gather_gradients_over_several_batches(launch: Any, running: Any) -> None:
    """Four held-out prompts do not fill the processes' second batch, and a step is two batches of each,
    whose rollouts run while the one before is trained."""
    before = running.player.counts["generations"]
    config = {
        "per_device_eval_batch_size": EACH,
        "num_generations_eval": SAMPLES,
        "gradient_accumulation_steps": 2,
        "eval_on_start": True,
        "save_only_model": True,  # of which only process 0 has a part
    }
    told = launch("both", 2, config=config, options={"ahead": 1})
    assert [one["error"] for one in told] == [None, None]
    assert told[0]["evaluated"] == [0.5]
    rounds = [[uid for uid, _ in rows[::SAMPLES]] for rows in batches(told)]
    assert [{uid.split(".")[1][0] for uid in uids} for uids in rounds] == [{"e"}, {"e"}, {"t"}, {"t"}]
    assert [len(uids) for uids in rounds] == [GROUPS, GROUPS, 2 * GROUPS, 2 * GROUPS]
    uids = [uid for one in rounds for uid in one]
    assert len(set(uids)) == len(uids)
    sessions = len(uids) * SAMPLES
    assert running.player.counts["generations"] - before == sessions * 2, "two turns each, once"
    assert told[0]["weights"] == told[1]["weights"]


def test_an_evaluation_that_leaves_each_process_a_model_of_its_own_is_told(launch: Any) -> None:
    """transformers' own; whoever trains so has as many policies as processes, and one of them is sampled from."""
    for one in launch("apart", 1, evaluate_first=True, config={"per_device_eval_batch_size": EACH}):
        assert one["error"].startswith("Conflict: the model is not wrapped for several processes")


def test_what_process_0_meets_with_ends_the_others_with_its_words(launch: Any) -> None:
    first, second = launch("wrong", 2, config={"temperature": 0.5})
    assert first["error"].startswith("Conflict: ")
    assert "spec.sampling.temperature" in first["error"]
    assert second["error"].startswith("Unavailable: process 0: Conflict: ")
    assert "spec.sampling.temperature" in second["error"]


def test_a_process_that_is_killed_ends_process_0(launch: Any, running: Any) -> None:
    """While agents run, where nothing of torch's own would notice."""
    before = running.player.counts["generations"]

    def kill(ranks: list[Any]) -> None:
        asked = PROCESSES * EACH * 2
        until_now(
            lambda: running.player.counts["generations"] - before == asked, what="all turns", within_s=RUN_S
        )
        ranks[1].kill()

    told, nothing = launch("killed", 2, by_hand=kill, agent_s=20.0)
    assert told["error"].startswith("Unavailable: a training process is gone, or stuck: ")
    assert nothing is None
