"""From `helm install` to acknowledged groups, on a cluster of which nothing is known: `make kind-test`.

No node names, no paths of its hosts, no audit log, no power over its machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from sandgate.contract.trajectory import Trajectory
from sandgate.operator.manifests.policies import CLOSED
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import cluster_fleet
from tests.anycluster.conftest import SYSTEM, AnyCluster
from tests.anycluster.jobs import REPLY, files, job
from tests.anycluster.kubectl import Json
from tests.cluster.e2e.world import SHOP
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

TASKS, SAMPLES = 6, 4
JOB_S = 240.0
WRONG_IMAGE = "localhost/nobody-has:this"
WRONG_S = 120.0
"""A wrong job says so within 60 s of its engine's being up."""


@dataclass
class Ran:
    """A job that is over, and what a trainer got of it."""

    any: AnyCluster
    namespace: str
    walls: bool
    """Whether this cluster enforces NetworkPolicies: found by the job that asks."""
    probed: dict[str, str]
    """Conditions of the job whose agents probe their walls."""
    groups: list[str] = field(default_factory=list)
    rows: list[Trajectory] = field(default_factory=list)
    sessions: list[Json] = field(default_factory=list)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ran(anycluster: AnyCluster) -> AsyncIterator[Ran]:
    """A first job of one group asks for the walls; the whole one goes without where there are none."""
    with anycluster.namespace("any") as namespace:
        image = anycluster.images.name("gateway")
        anycluster.kubectl.apply(namespace, *files())
        once = {"retry": {"infra": 0}}
        anycluster.kubectl.apply(namespace, job("probed", image, tasks=1, samples=2, group=once))
        probed = await over(anycluster, namespace, "probed")
        walls = probed["Failed"].startswith("False")
        found = Ran(anycluster, namespace, walls, probed)
        whole = job("whole", image, tasks=TASKS, samples=SAMPLES)
        if not walls:
            whole["spec"]["agent"]["isolation"] = "Off"
        anycluster.kubectl.apply(namespace, whole)
        await condition(anycluster, namespace, "whole", "Ready")
        await collect(found)
        await over(anycluster, namespace, "whole")
        found.sessions = anycluster.kubectl.get("ags", "-n", namespace, "-l", "sandgate.dev/job=whole")[
            "items"
        ]
        yield found


async def collect(ran: Ran) -> None:
    """All groups of the whole job; after the second its gateway's pod is deleted, as a drain of its node does."""
    place = ClusterPlace(namespace=ran.namespace, kubeconfig=str(ran.any.kubectl.kubeconfig))
    async with cluster_fleet("whole", place) as fleet, fleet.beating():
        async for group in fleet.groups(idle_s=180.0):
            async with group:
                ran.rows += group.trajectories
                ran.groups.append(group.uid)
            if len(ran.groups) == 2:
                ran.any.kubectl("delete", "pod", "whole-gateway-0", "-n", ran.namespace, "--wait=false")
            if len(ran.groups) == TASKS:
                break


async def condition(anycluster: AnyCluster, namespace: str, name: str, *wanted: str) -> dict[str, str]:
    """Its conditions once one of these is True. Says where it stands when that does not happen."""
    last: dict[str, str] = {}

    async def there() -> bool:
        last.clear()
        last.update(anycluster.kubectl.conditions(namespace, name))
        return any(last.get(one, "").startswith("True") for one in wanted)

    try:
        await until(there, what=f"{name} is {' or '.join(wanted)}", within_s=JOB_S)
    except AssertionError as error:
        shown = anycluster.kubectl("get", "rj,ags,pods,pvc,events", "-n", namespace, "-o", "wide")
        raise AssertionError(f"{error}\n{last}\n{shown}") from None
    return last


async def over(anycluster: AnyCluster, namespace: str, name: str) -> dict[str, str]:
    return await condition(anycluster, namespace, name, "Complete", "Failed")


async def test_the_release_tests_itself(anycluster: AnyCluster) -> None:
    anycluster.kubectl.helm("test", "sandgate", "--namespace", SYSTEM, "--timeout=2m")


async def test_a_wall_holds_or_the_job_says_that_it_does_not(ran: Ran) -> None:
    failed = ran.probed["Failed"]
    assert ran.walls or (failed.startswith("True ") and "NetworkPolicyNotEnforced" in failed), failed


async def test_the_trainer_has_every_group_once_and_whole(ran: Ran) -> None:
    """Though its gateway's pod was deleted in between: the next one finds the journal on its volume."""
    assert sorted(ran.groups) == [f"q{number}" for number in range(TASKS)]
    samples = Counter((row.uid, row.sample_index) for row in ran.rows)
    assert set(samples.values()) == {1}
    assert len(samples) == TASKS * SAMPLES
    assert {(row.reward, row.failure_class) for row in ran.rows} == {(1.0, None)}


async def test_every_trained_token_is_what_the_engine_sampled(ran: Ran) -> None:
    tokenizer = Tokenizer.from_file(str(SHOP / "model" / "tokenizer.json"))
    sampled = tokenizer.encode(REPLY, add_special_tokens=False).ids
    for row in ran.rows:
        assert f"task {row.uid.removeprefix('q')}" in tokenizer.decode(
            row.prompt_ids, skip_special_tokens=False
        )
        begin = 0
        assert len(row.turn_ends) == 2
        for end in row.turn_ends:
            trained = [at for at in range(begin, end) if row.loss_mask[at]]
            assert trained == list(range(trained[0], end))
            ids = [row.response_ids[at] for at in trained]
            assert ids[: len(sampled)] == sampled
            assert len(ids) == len(sampled) + 1  # and the end of the turn
            assert all(row.response_logprobs[at] < 0 and row.versions[at] >= 0 for at in trained)
            begin = end
        assert begin == len(row.response_ids)


async def test_kubectl_tells_the_story(ran: Ran) -> None:
    said = ran.any.kubectl.conditions(ran.namespace, "whole")
    assert said["Complete"].startswith("True")
    assert said["Failed"].startswith("False")
    shown = ran.any.kubectl("get", "rj,ags", "-n", ran.namespace)
    assert "rolloutjob.sandgate.dev/whole" in shown
    committed = {one["status"]["turns"] for one in ran.sessions if one["status"].get("reward") == 1}
    assert (committed, len(ran.sessions)) == ({2}, TASKS * SAMPLES)


async def test_a_job_that_is_wrong_says_its_cause(ran: Ran) -> None:
    """It goes on trying for a while: an image may come yet."""
    kubectl, namespace = ran.any.kubectl, ran.namespace
    image = ran.any.images.name("gateway")
    wrong = job("wrong", image, tasks=2, samples=2)
    wrong["spec"]["agent"]["template"]["spec"]["containers"][0]["image"] = WRONG_IMAGE
    wrong["spec"]["agent"]["isolation"] = "Off"
    kubectl.apply(namespace, wrong)

    async def said() -> bool:
        shown = kubectl("get", "rj", "wrong", "-n", namespace, "-o", "wide")
        events = kubectl("get", "events", "-n", namespace, "--field-selector=involvedObject.kind=RolloutJob")
        return "PullBackOff" in shown + events and WRONG_IMAGE in events

    await until(said, what="kubectl get rj, and an event, tell of the image", within_s=WRONG_S)


async def test_a_deleted_job_leaves_the_wall_of_its_namespace(ran: Ran) -> None:
    kubectl, namespace = ran.any.kubectl, ran.namespace
    kubectl("delete", "rolloutjobs", "--all", "-n", namespace, "--wait=true", "--timeout=120s")
    kinds = "pods,agentsessions,secrets,configmaps,services,statefulsets,deployments,pvc,pdb,networkpolicies"

    async def gone() -> bool:
        found = {name.partition("/")[2] for name in kubectl.names(kinds, "-n", namespace)}
        return found <= {"kube-root-ca.crt", "shop-tokenizer", "scripted", CLOSED}

    await until(gone, what="nothing of the jobs is left", within_s=120)
