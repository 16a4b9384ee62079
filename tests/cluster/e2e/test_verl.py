"""verl's own trainer with a RolloutJob in the real cluster: its Ray, its servers and its updates, and agents in pods.

Ray runs where the control plane does, on an address that pods reach. What stands in for a GPU is told in
tests/trainer/verl/check_jobs_fit.py, which is the same on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.e2e.world import World, load_images, shop_job, tokenizer_files
from tests.cluster.harness.machines import API_PORT
from tests.cluster.harness.network import CONTROL, CONTROL_IP, enter
from tests.support.waiting import until_now
from tests.trainer.test_verl import environ, environment
from tests.trainer.verl import small_fit

RUN_S = 480.0
"""Two minutes, half of them of Ray and torch; more where others are at work."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.endurance,  # its halves are above all the time: check_jobs_fit, and test_trainers_job
    pytest.mark.timeout(RUN_S + 60.0, func_only=True),
]


def manifest(folder: Path) -> Path:
    """The shop's, as it runs in a cluster; verl pushes the tasks, and its servers take the engine's place."""
    job = shop_job("shop-verl", engine={"endpoints": ["http://verl.invalid"]}, tasks={"queue": {}})
    job["spec"]["sampling"] = {"maxTokens": 64}
    path = folder / "job.yaml"
    path.write_text(json.dumps(job), "utf-8")
    return path


def inside(kubeconfig: Path, folder: Path) -> Path:
    """The same rights, by the API server's address in the cluster's network."""
    config = json.loads(kubeconfig.read_text("utf-8"))
    for one in config["clusters"]:
        one["cluster"]["server"] = f"https://{CONTROL_IP}:{API_PORT}"
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config), "utf-8")
    return path


def train(folder: Path, options: Mapping[str, object]) -> str:
    """What a run of examples/verl/train.sh says. Raises AssertionError unless it ends well, within its time."""
    job = "actor_rollout_ref.rollout.custom.rollout_job"
    python = environment()
    env = environ() | small_fit.ENVIRONMENT | {"OUT": str(folder)}
    env["PATH"] = f"{Path(python).parent}{os.pathsep}{env['PATH']}"
    told = [f"++{job}.{name}={value}" for name, value in options.items()]
    log, code = folder / "log", None
    with log.open("wb") as file:
        run = subprocess.Popen(
            [*enter(CONTROL), small_fit.TRAIN, *small_fit.SMALL, *told],
            env=env, cwd=folder, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        try:
            with suppress(subprocess.TimeoutExpired):
                code = run.wait(RUN_S)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    said = log.read_text("utf-8", "replace")
    assert code == 0, f"{said[-8_000:]}\nended with {code}"
    return said


def rewarded(world: World, namespace: str) -> list[dict[str, Any]]:
    """Sessions that ended with a reward of their verifier."""
    return [
        one
        for one in world.list("agentsessions", namespace)
        if one.get("status", {}).get("reward") is not None
    ]


def test_verls_trainer_takes_two_steps_over_agents_in_pods(world: World, tmp_path: Path) -> None:
    cluster = world.cluster
    load_images(cluster, "shop")
    with cluster.namespace("verl") as namespace:
        cluster.apply({**tokenizer_files(), "metadata": {"name": "shop-tokenizer", "namespace": namespace}})
        said = train(
            tmp_path,
            {
                "manifest": manifest(tmp_path),
                "cluster.namespace": namespace,
                "cluster.kubeconfig": inside(cluster.kubeconfig, tmp_path),
            },
        )
        steps = small_fit.steps(said)
        assert len(steps) == small_fit.STEPS, said[-8_000:]
        assert all(map(small_fit.captured_is_recomputed, steps)), steps
        (job,) = world.list("rolloutjobs", namespace)
        assert job["metadata"]["name"].startswith("shop-verl-")
        asked = small_fit.STEPS * small_fit.PROMPTS * small_fit.N
        until_now(lambda: len(rewarded(world, namespace)) >= asked, what="its sessions are told", within_s=60)
        samples = {(one["spec"]["taskUid"], one["spec"]["sampleIndex"]) for one in rewarded(world, namespace)}
        assert len(samples) == asked
