"""The shop's job on real nodes with a real vLLM: from `helm install` to groups that a trainer has acknowledged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandgate.contract.trajectory import Trajectory
from sandgate.operator.manifests.policies import CLOSED
from sandgate.operator.plan.session import SHOW_S
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import cluster_fleet
from tests.cluster.e2e.world import (
    GPU_MACHINE,
    SHOP,
    World,
    conditions,
    gpu_node_for_gpus,
    shop_job,
    tokenizer_files,
    vllm_engine,
    wait_for,
)
from tests.cluster.scale.figures import seconds
from tests.e2e.truth import TOLERANCE, Parity
from tests.support.vllm import engine_python
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600, func_only=True)]

SESSIONS = 32
OPERATOR = "system:serviceaccount:sandgate-system:sandgate-operator"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
WRITES_MAX = 6
OF_SESSIONS = {"agentsessions", "pods", "secrets"}


@dataclass
class Ran:
    """A job that is over, and what a trainer got of it."""

    world: World
    namespace: str
    rows: list[Trajectory]
    groups: list[str]
    job: dict[str, Any]
    sessions: list[dict[str, Any]]
    nodes: dict[str, set[str]]
    """Role -> nodes on which pods of it ran."""
    events: list[dict[str, Any]]
    """Of the API server's audit log."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ran(world: World) -> AsyncIterator[Ran]:
    """`kubectl apply` of the shop's job, and a trainer outside the cluster that takes what it gives."""
    cluster = world.cluster
    with cluster.namespace("shop", security="privileged") as namespace, gpu_node_for_gpus(cluster):
        mark = cluster.audit_mark()
        cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(tokenizer_files()))
        cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(shop_job(engine=vllm_engine())))
        wait_for(world, namespace, "shop", "Ready")
        rows: list[Trajectory] = []
        groups: list[str] = []
        nodes: dict[str, set[str]] = {}
        place = ClusterPlace(namespace=namespace, kubeconfig=str(cluster.kubeconfig))
        async with cluster_fleet("shop", place) as fleet, fleet.beating():
            async for group in fleet.groups(idle_s=120.0):
                async with group:
                    rows += group.trajectories
                    groups.append(group.uid)
                for pod in world.list("pods", namespace):
                    if node := pod["spec"].get("nodeName"):
                        role = pod["metadata"]["labels"]["sandgate.dev/role"]
                        nodes.setdefault(role, set()).add(node)
                if len(groups) == SESSIONS // 4:
                    break
        job = wait_for(world, namespace, "shop", "Complete")

        async def committed() -> bool:
            found = world.list("agentsessions", namespace)
            ended = [one for one in found if conditions(one).get("TrajectoryCommitted") == "True"]
            return len(ended) == SESSIONS

        await until(committed, what="every session is committed", within_s=60)
        sessions = world.list("agentsessions", namespace)
        events = cluster.audit_since(mark)
        yield Ran(world, namespace, rows, groups, job, sessions, nodes, events)


async def test_the_trainer_has_every_group_once_and_whole(ran: Ran) -> None:
    assert sorted(ran.groups) == [f"errand-{number:02}" for number in range(8)]
    samples = Counter((row.uid, row.sample_index) for row in ran.rows)
    assert set(samples.values()) == {1}
    assert len(samples) == SESSIONS
    assert {row.failure_class for row in ran.rows} <= {None, "policy"}
    assert {row.reward for row in ran.rows} <= {0.0, 0.5, 1.0}


async def test_every_sampled_token_is_the_policys(ran: Ran) -> None:
    """Id for id each turn goes on where its parent ended; logprobs are a trainer's own, within 1e-4."""
    checked = 0
    with Parity(engine_python(), SHOP / "model") as parity:
        for row in ran.rows:
            begin = 0
            assert row.loss_mask.count(1) == sum(version >= 0 for version in row.versions)
            for end in row.turn_ends:
                start = begin + next(at for at, mask in enumerate(row.loss_mask[begin:end]) if mask)
                sampled = row.response_ids[start:end]
                assert set(row.loss_mask[begin:start]) <= {0}
                assert set(row.loss_mask[start:end]) == {1}
                ours = parity.logprobs(
                    row.prompt_ids + row.response_ids[:start], sampled, row.sampling["temperature"]
                )
                captured = row.response_logprobs[start:end]
                assert max(abs(a - b) for a, b in zip(captured, ours, strict=True)) < TOLERANCE
                checked += len(sampled)
                begin = end
            assert not any(row.loss_mask[begin:])
    assert checked > 500


async def test_gateways_are_beside_the_engine_and_agents_are_elsewhere(ran: Ran) -> None:
    assert ran.nodes["engine"] == ran.nodes["gateway"] == {GPU_MACHINE}
    assert ran.nodes["agent"]
    assert GPU_MACHINE not in ran.nodes["agent"] | ran.nodes.get("verifier", set())


async def test_kubectl_tells_the_story(ran: Ran) -> None:
    said = conditions(ran.job)
    for changes in (
        "Ready",
        "Collected",
    ):  # the engine is let go of, the last group acknowledged: before or after
        said.pop(changes)
    assert said == {"Suspended": "False", "Progressing": "False", "Complete": "True", "Failed": "False"}
    status = ran.job["status"]
    assert (status["sessions"], status["ended"], status["running"]) == (SESSIONS, SESSIONS, 0)
    told = ran.world.cluster.kubectl("get", "rj,ags", "-n", ran.namespace)
    assert "rolloutjob.sandgate.dev/shop" in told
    good = [one for one in ran.sessions if conditions(one).get("TrajectoryCommitted") == "True"]
    assert len(good) == SESSIONS  # others were tried again
    for one in good:
        shown = one["status"]
        assert shown["turns"] >= 1, one["metadata"]["name"]
        assert shown["reward"] in (0, 0.5, 1)
        assert shown["baseURL"].startswith("http://shop-gateway-0.shop-gateway.")
    by_sample = {(row.uid, row.sample_index): row.reward for row in ran.rows}
    assert {
        (one["spec"]["taskUid"], one["spec"]["sampleIndex"]): one["status"]["reward"] for one in good
    } == by_sample


async def test_the_operator_writes_at_most_six_times_per_session(ran: Ran) -> None:
    # A request whose caller went before it was known is nobody's.
    writes = [
        event
        for event in ran.events
        if event["user"].get("username") == OPERATOR
        and event["verb"] in WRITES
        and event["objectRef"].get("namespace") == ran.namespace
        and event.get("responseStatus", {}).get("code", 0) < 400
    ]
    counted = Counter((event["verb"], event["objectRef"]["resource"]) for event in writes)
    # What a job itself costs (its objects once, its status at most once a second) does not grow with its sessions.
    of_sessions = sum(count for (_, kind), count in counted.items() if kind in OF_SESSIONS)
    assert of_sessions <= WRITES_MAX * len(ran.sessions) + shown_as_running(ran, writes), counted


def shown_as_running(ran: Ran, writes: list[dict[str, Any]]) -> int:
    """Sessions that may have been written once more, as their agents ran for long: on a busy machine many do."""
    last = {
        event["objectRef"].get("name"): seconds(event["stageTimestamp"])
        for event in writes
        if event["objectRef"]["resource"] == "agentsessions"
    }
    born = {one["metadata"]["name"]: seconds(one["metadata"]["creationTimestamp"]) for one in ran.sessions}
    return sum(last.get(name, 0.0) - since > SHOW_S for name, since in born.items())


async def test_what_is_left_is_what_the_job_owns(ran: Ran, tmp_path: Path) -> None:
    """Pods of committed sessions and their keys are gone; deleting the job takes the rest."""
    cluster, namespace = ran.world.cluster, ran.namespace

    async def pods_gone() -> bool:
        return not ran.world.list("pods", namespace, "sandgate.dev/role in (agent,verifier)")

    await until(pods_gone, what="pods of committed sessions are gone", within_s=60)
    assert not [one for one in ran.world.list("secrets", namespace) if "-keys-" in one["metadata"]["name"]]
    cluster.kubectl("delete", "rolloutjob", "shop", "-n", namespace, "--wait=true", "--timeout=60s")

    async def all_gone() -> bool:
        kinds = (
            "pods,agentsessions,secrets,configmaps,services,statefulsets,deployments,pvc,pdb,networkpolicies"
        )
        found = {one["metadata"]["name"] for one in ran.world.list(kinds, namespace)}
        return found <= {"kube-root-ca.crt", "shop-tokenizer", CLOSED}

    await until(all_gone, what="nothing of the job is left", within_s=90)
