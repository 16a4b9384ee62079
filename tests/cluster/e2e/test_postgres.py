"""A journal in Postgres: a gateway whose node is gone for good goes on elsewhere, with the same sessions."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.names import gateway_name
from sandgate.gateway.tokens.load import find_folder, read_checkpoint
from tests.cluster.e2e.chaos import job as chaos
from tests.cluster.e2e.chaos.agent import TURNS
from tests.cluster.e2e.chaos.blows import VICTIM, machines, on_node
from tests.cluster.e2e.chaos.books import Script
from tests.cluster.e2e.chaos.job import MOUNT, NAME, SAMPLES, TASKS, Round, round_of
from tests.cluster.e2e.test_chaos import committed, failed, judge
from tests.cluster.e2e.world import SHOP, World, all_ready, is_ready, tokenizer_files, wait_for
from tests.cluster.harness.network import plug
from tests.gateway.journal.test_retention import sweep
from tests.support import postgres
from tests.support.waiting import until, until_now

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.endurance,
    pytest.mark.timeout(600, func_only=True),
]

GATEWAY = gateway_name(NAME, 0)
OFF = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
"""What a person says of a machine that is off (docs/journals.md)."""
BEGUN = TASKS * SAMPLES * TURNS // 3
"""Generations, before the power goes."""
ELSEWHERE_S = 180.0
"""20 s until the node counts as gone, 20 s between looks of the collector of its pods, 30 s until the database lets go
of the lock; and a pod that failed at that starts again after 10 to 40 s."""


def job() -> dict[str, Any]:
    """That of the chaos tests with one gateway, on the node that will be gone, and agents that are patient."""
    body = chaos.chaos_job(chaos.SCRIPTED)
    preferred = {
        "weight": 100,
        "preference": {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [VICTIM]}]
        },
    }
    gateway: dict[str, Any] = body["spec"]["gateway"]
    gateway |= {
        "replicas": 1,
        "beside": "Anywhere",
        "journal": {"postgres": {"secretRef": {"name": "database"}}},
    }
    gateway["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
    }
    agent = body["spec"]["agent"]["template"]["spec"]["containers"][0]
    agent["command"] = ["python", f"{MOUNT}/agent.py", "patient"]
    body["spec"]["limits"] |= {"sessionSeconds": 400}
    return body


def begin(at: Round, dsn: str) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "database"},
        "data": {"dsn": base64.b64encode(dsn.encode()).decode()},
    }
    bodies: list[dict[str, Any]] = [secret, tokenizer_files(), chaos.programs()]
    bodies += [chaos.engine_pods(at.book), job()]
    for body in bodies:
        body["metadata"]["namespace"] = at.namespace
    at.world.cluster.apply(*bodies)
    wait_for(at.world, at.namespace, NAME, "Ready")


@contextmanager
def gone(at: Round) -> Iterator[set[str]]:
    """The node has no power, and somebody says so; mended behind the block. The cable is pulled first: no socket of it
    says good-bye. Yields the sessions that it took along: pods are sent there until it counts as gone."""
    there, cluster = machines(at), at.world.cluster
    lost = hurt(at)

    def counts_as_gone() -> bool:
        lost.update(hurt(at))
        return not there.ready(VICTIM)

    plug(VICTIM, connected=False)
    try:
        there.cut_power(VICTIM)
        plug(VICTIM, connected=True)
        until_now(counts_as_gone, what=f"{VICTIM} counts as gone", within_s=60)
        lost.update(hurt(at))
        cluster.kubectl("taint", "node", VICTIM, OFF)
        yield lost
    finally:
        plug(VICTIM, connected=True)
        there.start(VICTIM)
        cluster.kubectl("taint", "node", VICTIM, f"{OFF}-", check=False)
        until_now(lambda: all_ready(at.world), what="the operator's replicas are ready", within_s=120)


def gateway_pod(at: Round) -> dict[str, Any]:
    return at.world.get("pod", at.namespace, GATEWAY)


def elsewhere(at: Round) -> bool:
    found = at.world.list("pods", at.namespace, "sandgate.dev/role=gateway")
    return any(is_ready(one) and one["spec"]["nodeName"] != VICTIM for one in found)


def hurt(at: Round) -> set[str]:
    """Sessions whose agents are on the node."""
    label = "sandgate.dev/session"
    return {one["metadata"]["labels"].get(label, "") for one in on_node(at, VICTIM)} - {""}


def open_sessions(at: Round) -> set[str]:
    """Those with an agent that runs."""
    pods = at.world.list("pods", at.namespace, "sandgate.dev/role=agent")
    return {one["metadata"]["name"] for one in pods if one["status"].get("phase") == "Running"}


async def test_a_gateway_whose_node_is_gone_goes_on_elsewhere_with_the_same_sessions(
    world: World, tmp_path: Path
) -> None:
    with (
        postgres.server() as database,
        world.cluster.machines.expose(database.port) as address,
        round_of(world, tmp_path / "book") as here,
    ):
        await asyncio.to_thread(begin, here, f"postgresql://postgres@{address}/postgres")
        assert gateway_pod(here)["spec"]["nodeName"] == VICTIM, "the test is about a gateway that is there"
        assert not world.list("pvc", here.namespace)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(here.train())

            async def begun() -> bool:
                return len(here.asked()) >= BEGUN

            await until(begun, what=f"{BEGUN} generations were begun", within_s=120)
            going_on = await asyncio.to_thread(open_sessions, here)
            with gone(here) as lost:
                await asyncio.to_thread(
                    until_now, lambda: elsewhere(here), what="it runs elsewhere", within_s=ELSEWHERE_S
                )
                await asyncio.to_thread(here.done)
        vocab = read_checkpoint(find_folder(SHOP / "model")).vocab
        said = await asyncio.to_thread(judge, here, Script(here.asked(), vocab.decode))
        sessions = await asyncio.to_thread(committed, here)
        again = {one["metadata"]["name"] for one in sessions if failed(one)}
        going_on -= lost
        assert going_on, "no agent was in the middle"
        assert not going_on & again, "what ran elsewhere went on"
        print(f"\n{len(going_on)} sessions went on; {said}")
        uid = world.get("rolloutjob", here.namespace, NAME)["metadata"]["uid"]
        journals = database.sql("SELECT name, epoch FROM sandgate_journals")
        assert journals == [(f"{here.namespace}/{GATEWAY}/{uid}", 2)], "one journal, two lives"
        database.sql(sweep(uid))
        assert database.sql("SELECT count(*) > 0 FROM sandgate_records") == [(True,)]
        await asyncio.to_thread(here.delete)

        def nothing() -> bool:
            database.sql(sweep("of-another-job"))
            left = database.sql(
                "SELECT name FROM sandgate_journals UNION SELECT journal FROM sandgate_records"
            )
            return not left

        await asyncio.to_thread(until_now, nothing, what="the job's rows can be deleted", within_s=90)
