"""Two jobs, quota for one, and the real Kueue: the second waits without cost, starts when the first ends, is preempted
and goes on without losing a told turn. So does a job that a trainer made for itself, and its trainer with it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import SandgateError
from sandgate.contract.job import Task
from sandgate.contract.labels import PRIORITY_CLASS, QUEUE
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client import cluster_job
from sandgate.trainer.client import fleet as fleet_module
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import AsyncFleet, cluster_fleet
from sandgate.trainer.verl.jobs.running import verl_job
from tests.cluster.e2e import scripted
from tests.cluster.e2e.test_trainers_job import server
from tests.cluster.e2e.test_trainers_job import told as configured
from tests.cluster.e2e.world import World, conditions, wait_for
from tests.cluster.harness.kueue import kueue
from tests.support.waiting import paced, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

log = logging.getLogger(__name__)
Json = dict[str, Any]
TURNS = 25
AGENT = f"""
short = os.environ["SANDGATE_PROMPT"] == "task 0"
for turn in range(1 if short else {TURNS}):
    say(os.environ["SANDGATE_PROMPT"] + " turn " + str(turn))
    print("told", turn, flush=True)
    time.sleep(1)
leave(reward=1.0, reward_info={{"told": turn + 1}})
"""
STEADY = """
for turn in range(12):
    say(os.environ["SANDGATE_PROMPT"] + " turn " + str(turn))
    time.sleep(1)
leave(reward=1.0)
"""
QUICK = 'say("hello")\nleave(reward=1.0, reward_info={"told": 1})\n'
POOL = {"sandgate.dev/pool": "rollouts"}
NODES = ("n1", "n2")
API = "kueue.x-k8s.io/v1beta2"
CPU = "250m"
"""A job of these asks for 160m: 100m of its gateway, 20m of its engine, 20m of each of two sandboxes."""
WAIT_S = 120.0


def of_kueue(kind: str, name: str, **body: Any) -> Json:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, **body}


def queues(namespace: str) -> list[Json]:
    """Quota for one job, on nodes of one pool; who is urgent preempts who is not."""
    quota = {"cpu": CPU, "memory": "8Gi", "ephemeral-storage": "100Gi"}
    resources = [{"name": name, "nominalQuota": value} for name, value in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": "rollouts", "resources": resources}]}
    local = of_kueue("LocalQueue", "team", spec={"clusterQueue": "one"})
    local["metadata"]["namespace"] = namespace
    return [
        of_kueue("ResourceFlavor", "rollouts", spec={"nodeLabels": POOL}),
        of_kueue("WorkloadPriorityClass", "usual", value=100, description="can wait"),
        of_kueue("WorkloadPriorityClass", "urgent", value=1000, description="cannot"),
        of_kueue(
            "ClusterQueue",
            "one",
            spec={
                "namespaceSelector": {},
                "resourceGroups": [group],
                "preemption": {"withinClusterQueue": "LowerPriority"},
            },
        ),
        local,
    ]


def queued(name: str, program: str, *, priority: str = "usual", tasks: int = 3) -> Json:
    body = scripted.job(name, program, tasks=tasks, parallelism=2)
    body["metadata"]["labels"] = {QUEUE: "team", PRIORITY_CLASS: priority}
    body["spec"]["gateway"]["idleSeconds"] = 1
    return body


@contextmanager
def pool(world: World) -> Iterator[None]:
    """Nodes that the flavor means."""
    ((label, value),) = POOL.items()
    world.cluster.kubectl("label", "node", *NODES, f"{label}={value}", "--overwrite")
    try:
        yield
    finally:
        world.cluster.kubectl("label", "node", *NODES, f"{label}-", check=False)


@dataclass
class Trainer:
    """Takes and acknowledges all groups of a job, and looks for its gateways again where they are away."""

    world: World
    namespace: str
    name: str
    tasks: int
    rows: list[Trajectory] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    @property
    def place(self) -> ClusterPlace:
        return ClusterPlace(namespace=self.namespace, kubeconfig=str(self.world.cluster.kubeconfig))

    async def run(self) -> None:
        async for _ in paced(1.0):
            try:
                async with cluster_fleet(self.name, self.place) as fleet:
                    async for group in fleet.groups(idle_s=WAIT_S):
                        async with group:
                            rows = group.trajectories
                        self.rows += rows
                        self.groups.append(group.uid)
                        if len(set(self.groups)) == self.tasks:
                            return
            except SandgateError as error:
                log.info("trainer of %s: %s", self.name, error)

    async def sessions(self) -> dict[str, Json]:
        """All that its gateways hold, by name."""
        async with cluster_fleet(self.name, self.place) as fleet:
            return {str(one["session_id"]): one async for one in fleet.sessions()}


@asynccontextmanager
async def trained(*trainers: Trainer) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.run()) for one in trainers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Lab:
    """A namespace with a queue."""

    world: World
    namespace: str

    def submit(self, body: Json) -> None:
        scripted.submit(self.world, self.namespace, body)

    async def holds(self, name: str, condition: str) -> None:
        """A condition of the job is True; trainers go on meanwhile."""
        await asyncio.to_thread(wait_for, self.world, self.namespace, name, condition, WAIT_S)

    def suspended(self, name: str) -> tuple[str, str, str]:
        """(status, reason, message)."""
        status = self.world.get("rolloutjob", self.namespace, name).get("status") or {}
        for one in status.get("conditions", ()):
            if one["type"] == "Suspended":
                return one["status"], one["reason"], one["message"]
        return "", "", ""

    async def is_suspended(self, name: str, says: str) -> str:
        async def so() -> bool:
            return self.suspended(name)[:2] == ("True", "QueuedByKueue") and says in self.suspended(name)[2]

        await until(so, what=f"{name} waits in its queue: {says}", within_s=WAIT_S)
        return self.suspended(name)[2]

    def workload(self, name: str) -> Json:
        found = self.world.list("workloads.kueue.x-k8s.io", self.namespace, f"sandgate.dev/job={name}")
        assert len(found) == 1, [one["metadata"]["name"] for one in found]
        return found[0]

    def things(self, name: str) -> list[str]:
        """What stands for a job, but for its Workload."""
        kinds = "pods,statefulsets,deployments,pvc,secrets,configmaps,services"
        return [one["kind"] for one in self.world.list(kinds, self.namespace, f"sandgate.dev/job={name}")]

    def standing(self, name: str) -> list[str]:
        """Its pods that have not ended."""
        pods = self.world.list("pods", self.namespace, f"sandgate.dev/job={name}")
        return [
            one["metadata"]["name"]
            for one in pods
            if one["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def told(self, name: str) -> dict[str, int]:
        """Session -> turns that its agent was told, by its own word."""
        found = {}
        for one in self.world.list(
            "pods", self.namespace, f"sandgate.dev/job={name},sandgate.dev/role=agent"
        ):
            pod = one["metadata"]["name"]
            said = self.world.cluster.kubectl("logs", pod, "-n", self.namespace, check=False)
            found[pod] = sum(line.startswith("told ") for line in said.splitlines())
        return found


@pytest.fixture(scope="module")
def lab(world: World) -> Iterator[Lab]:
    machines = world.cluster.machines
    with kueue(machines), pool(world), world.cluster.namespace("kueue") as namespace:
        scripted.prepare(world, namespace)
        world.cluster.apply(*queues(namespace))
        yield Lab(world, namespace)


async def test_two_jobs_and_quota_for_one(lab: Lab) -> None:
    world, namespace = lab.world, lab.namespace
    first, second = (Trainer(world, namespace, name, 3) for name in ("first", "second"))
    urgent = Trainer(world, namespace, "urgent", 1)
    lab.submit(queued("first", AGENT))
    await lab.holds("first", "Ready")
    lab.submit(queued("second", AGENT))
    await waits_without_cost(lab)
    async with trained(first, second, urgent):
        await starts_when_the_first_ends(lab)
        before, done = await runs(lab, second)
        lab.submit(queued("urgent", QUICK, priority="urgent", tasks=1))
        await is_preempted(lab)
        await lab.holds("urgent", "Collected")
        await goes_on(lab, second, before, done)
    world.cluster.kubectl("delete", "rolloutjob", "--all", "-n", namespace, "--timeout=60s")

    async def gone() -> bool:
        return not world.list("workloads.kueue.x-k8s.io", namespace)

    await until(gone, what="Workloads go with their jobs", within_s=60)


async def waits_without_cost(lab: Lab) -> None:
    message = await lab.is_suspended("second", "insufficient unused quota")
    assert "cpu" in message
    assert lab.things("second") == []
    status = lab.world.get("rolloutjob", lab.namespace, "second")["status"]
    assert (status["reason"], status.get("startTime", "")) == ("QueuedByKueue", "")
    asked = {one["name"]: one["count"] for one in lab.workload("second")["spec"]["podSets"]}
    assert asked == {"gateways": 1, "engines": 1, "sandboxes": 2}
    assert conditions(lab.workload("first"))["Admitted"] == "True"


async def starts_when_the_first_ends(lab: Lab) -> None:
    pods = lab.world.list("pods", lab.namespace, "sandgate.dev/job=first")
    assert {tuple(one["spec"]["nodeSelector"].items()) for one in pods} == {tuple(POOL.items())}
    assert {one["spec"].get("nodeName") for one in pods} <= {*NODES, None}
    await lab.holds("first", "Collected")

    async def finished() -> bool:
        return conditions(lab.workload("first")).get("Finished") == "True"

    await until(finished, what="the first job's quota is free", within_s=60)
    assert lab.standing("first") == []
    given = {one["name"]: one["count"] for one in lab.workload("first")["status"]["reclaimablePods"]}
    assert given["sandboxes"] == 2, "what it did not need any more was given back before"
    assert given.get("engines", 1) == 1, "the engine's too, unless all was collected at once"
    await lab.holds("second", "Ready")


async def runs(lab: Lab, trainer: Trainer) -> tuple[dict[str, int], list[str]]:
    """Until a session ended well, and agents of others were told turns: who was told how many; groups that are done."""

    async def middle() -> bool:
        told = lab.told("second")
        return bool(trainer.groups) and sum(count >= 2 for count in told.values()) >= 2

    await until(middle, what="the second job is in its middle", within_s=WAIT_S)
    return lab.told("second"), list(trainer.groups)


async def is_preempted(lab: Lab) -> None:
    message = await lab.is_suspended("second", "Preempted")
    assert "urgent" in message or "UID" in message or "prioritization" in message
    await lab.holds("urgent", "Ready")
    assert lab.standing("second") == [], "before others have its quota, all its pods are gone"
    evicted = conditions(lab.workload("second"))
    assert (evicted["QuotaReserved"], evicted["Requeued"]) == ("False", "True")


async def goes_on(lab: Lab, trainer: Trainer, before: dict[str, int], done: list[str]) -> None:
    await lab.holds("second", "Ready")
    kept = await trainer.sessions()
    for session, told in before.items():
        assert kept[session]["turns"] >= told, f"{session} was told {told} turns"
    await lab.holds("second", "Complete")

    async def all_taken() -> bool:
        return len(set(trainer.groups)) == 3

    await until(all_taken, what="its trainer has every group", within_s=60)
    assert Counter(trainer.groups) == {"q0": 1, "q1": 1, "q2": 1}
    assert done
    samples = {(row.uid, row.sample_index): row for row in trainer.rows}
    assert {row.reward for row in samples.values()} == {1.0}
    for row in trainer.rows:
        assert row.failure_class is None
    turns = Counter(row.uid for row in trainer.rows for _ in row.turn_ids)
    assert turns == {"q0": 1, "q1": TURNS, "q2": TURNS}, (
        "every turn of an attempt that counts is with the trainer"
    )
    attempts = {row.uid: row.attempt for row in trainer.rows}
    assert {uid: attempts[uid] for uid in done} == dict.fromkeys(done, 0), "what had ended is not run again"
    assert max(attempts.values()) == 1
    events = json.loads(lab.world.cluster.kubectl("get", "events", "-n", lab.namespace, "-o", "json"))[
        "items"
    ]
    reasons = {one["reason"] for one in events if one["involvedObject"]["name"] == "second"}
    assert "QueuedByKueue" in reasons


@pytest.mark.endurance  # Kueue is above, a trainer's own job in test_trainers_job.py
async def test_a_trainer_outlives_that_its_own_job_is_preempted(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateways go for longer than a trainer waits for any: it waits on, and pushes when they are back."""
    monkeypatch.setattr(fleet_module, "AsyncFleet", partial(AsyncFleet, away_s=5.0))
    monkeypatch.setattr(cluster_job, "LOOK_S", 1.0)
    asked = configured(
        lab.world, lab.namespace, tmp_path, program=STEADY, labels={QUEUE: "team", PRIORITY_CLASS: "usual"}
    )
    async with verl_job(asked, [server(lab.world, lab.namespace)], validate=False) as groups:
        (name,) = [one["metadata"]["name"] for one in lab.world.list("rolloutjobs", lab.namespace)]
        (early,) = await groups.push([Task(uid="early", prompt="task early")])
        await lab.holds(name, "Ready")
        streams = Counter[str]()
        groups_of = groups.fleet.groups

        def counted(**asks: Any) -> Any:
            streams["begun"] += 1
            return groups_of(**asks)

        monkeypatch.setattr(groups.fleet, "groups", counted)
        lab.submit(queued("later", STEADY, priority="urgent", tasks=2))
        await lab.is_suspended(name, "Preempted")

        async def asks_again() -> bool:
            return streams["begun"] > 0

        await until(asks_again, what="it has met with no gateway, and asks on", within_s=WAIT_S)
        assert groups.failed is None
        pushing = asyncio.ensure_future(groups.push([Task(uid="late", prompt="task late")]))
        later = Trainer(lab.world, lab.namespace, "later", 2)
        async with trained(later):
            await lab.holds("later", "Collected")
        (late,) = await pushing
        for uid, future in (("early", early), ("late", late)):
            rows = await groups.group(uid, future, WAIT_S)
            assert {(row.uid, row.reward, row.failure_class) for row in rows} == {(uid, 1.0, None)}
            assert {row.sample_index for row in rows} == {0, 1}
        lab.world.cluster.kubectl("delete", "rolloutjob", "later", "-n", lab.namespace, "--timeout=60s")
