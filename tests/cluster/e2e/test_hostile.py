"""A hostile agent in a pod beside seven honest ones: what it earned, what they have, and what it cost.

The same program as in tests/adversary/test_one_of_eight.py, which measures turns; here walls, verifier and operator
are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.names import gateway_name
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import cluster_fleet
from tests.adversary import hostile
from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import SYSTEM, World, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

HONEST, TURNS, ROUNDS = 7, 8, 2
GATEWAY_MB, OPERATOR_MB = 512, 256
SAME = (
    "uid", "sample_index", "prompt_ids", "response_ids", "response_logprobs", "loss_mask", "versions", "turn_ends",
    "reward", "finish_reason", "fork_reason", "failure_reason", "complete", "masked",
)  # fmt: skip
AGENT = f"""
if os.environ["SANDGATE_PROMPT"] == "task {HONEST}":
    leave(reward=1.0, reward_info={{"reward": 1.0, "answer": "whatever you like"}})
    sys.argv[1:] = ["{ROUNDS}"]
    exec(compile(HOSTILE, "hostile", "exec"), {{"__name__": "__main__"}})
for turn in range({TURNS}):
    answer = say(os.environ["SANDGATE_PROMPT"] + ", turn " + str(turn))
leave(answer=answer)
"""
VERIFIER = """
import json, os
said = json.load(open(os.environ["SANDGATE_RESULT_FILE"]))["message"]
right = isinstance(said, dict) and said.get("answer") == "receipt 42"
with open("/dev/termination-log", "w") as log:
    json.dump({"reward": float(right)}, log)
"""


def job(name: str, agents: int) -> dict[str, Any]:
    program = f"import sys\nHOSTILE = {Path(hostile.__file__).read_text('utf-8')!r}\n{AGENT}"
    verifier = {"source": "verifier", "verifier": {"container": scripted.python("verifier", VERIFIER)}}
    return scripted.job(name, program, tasks=agents, reward=verifier)


def peak_mb(world: World, namespace: str, pods: Iterable[str]) -> float:
    """The most memory that the first process of one of these has held."""
    most = 0.0
    for pod in pods:
        status = world.cluster.kubectl("-n", namespace, "exec", pod, "--", "cat", "/proc/1/status")
        most = max(most, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
    return most


async def rows(world: World, namespace: str, name: str, groups: int) -> list[Trajectory]:
    """All of a job, by way of the trainer."""
    await asyncio.to_thread(
        wait_for, world, namespace, name, "Ready"
    )  # before that the operator may not have seen it
    found: list[Trajectory] = []
    place = ClusterPlace(namespace=namespace, kubeconfig=str(world.cluster.kubeconfig))
    async with cluster_fleet(name, place) as fleet:
        async for group in fleet.groups(idle_s=120.0):
            async with group:
                found += group.trajectories
            groups -= 1
            if not groups:
                break
    return found


async def watch(world: World, namespace: str, pod: str, seen: list[float]) -> None:
    """While it is there; what it held at most never sinks."""
    while True:
        with suppress(AssertionError):  # it is not there yet, or no more
            seen.append(await asyncio.to_thread(peak_mb, world, namespace, [pod]))
        await asyncio.sleep(0)


async def test_it_gets_what_it_earned_and_the_others_what_they_have_without_it(world: World) -> None:
    seen: list[float] = []
    with world.cluster.namespace("hostile") as namespace:
        scripted.prepare(world, namespace)
        scripted.submit(world, namespace, job("alone", HONEST), job("beside", HONEST + 1))
        watching = asyncio.ensure_future(watch(world, namespace, gateway_name("beside", 0), seen))
        alone, beside = await asyncio.gather(
            rows(world, namespace, "alone", HONEST), rows(world, namespace, "beside", HONEST + 1)
        )
        watching.cancel()
        operators = peak_mb(world, SYSTEM, [pod["metadata"]["name"] for pod in world.operators()])
    print(json.dumps({"gateway, MB": seen[-1], "operator, MB": operators}))
    assert told(alone) == told(row for row in beside if row.uid != f"q{HONEST}")
    assert len(alone) == HONEST * TURNS
    assert {row.reward for row in beside if row.uid == f"q{HONEST}"} == {0.0}
    assert seen[-1] < GATEWAY_MB
    assert operators < OPERATOR_MB


def told(found: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """In an order of their own, without what differs between two runs of the same."""
    chosen = [{name: getattr(row, name) for name in SAME} for row in found]
    return sorted(chosen, key=lambda row: (row["uid"], row["prompt_ids"]))
