"""A release comes and goes under running jobs: upgraded from the commit before; uninstalled, keeping them and not.

These tests take the installation of all others away and put it back.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.names import gateway_name
from sandgate.operator.manifests.policies import CLOSED
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.fleet import cluster_fleet
from tests.chart.released import everything
from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import (
    READY_S,
    REGISTRY,
    SYSTEM,
    VALUES,
    World,
    all_ready,
    wait_for,
)
from tests.cluster.harness.cache import Part
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import build_image
from tests.images.ours import IMAGES, ROOT
from tests.support.waiting import until, until_now

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(400, func_only=True)]

Json = dict[str, Any]
FROM = "SANDGATE_TEST_UPGRADE_FROM"
"""Environment: the commit that is upgraded from; default the one before this."""
OURS = ("operator", "gateway", "fetcher")
"""Images of a release."""
TAG = "e2e-before"
TASKS, SAMPLES = 2, 2
SESSIONS = TASKS * SAMPLES
TURNS, PAUSE_S = 45, 1.0
"""A session lasts longer than an upgrade, which waits for two operators to stand by."""
AGENT = f"""
for turn in range({TURNS}):
    say(f"{{os.environ['SANDGATE_PROMPT']}}, turn {{turn}}")
    time.sleep({PAUSE_S})
leave(reward=1.0)
"""


def the_commit_before() -> str:
    """Skips only in a shallow clone, which does not have it."""
    named = os.environ.get(FROM, "HEAD~1")
    found = git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
    if not found and FROM not in os.environ and git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone without HEAD~1 to upgrade from: git fetch --deepen 1")
    assert found, f"there is no commit {named} to upgrade from: name one by {FROM}"
    needed = ["charts/sandgate", "images/operator.Dockerfile"]
    had = git("ls-tree", "--name-only", found, *needed).splitlines()
    assert had == needed, f"commit {found[:12]} has no {set(needed) - set(had)}: name another by {FROM}"
    return found


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def source(commit: str) -> Path:
    """Its files. A repository of its own, as images are made of what git would add."""
    paths = sorted({"charts", "images", *(path for name in OURS for path in IMAGES[name][1])})

    def make(folder: Path) -> None:
        # With the modes of a clone: else no layer of its images is one that is there.
        words = ["git", "-c", "tar.umask=0022", "archive"]
        archive = subprocess.run([*words, commit, *paths], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)

    return Part("source", make, pins=(commit,), quick=True).ensure()


def load(cluster: Cluster, root: Path) -> None:
    """The images of a release, built from its files."""
    for name in OURS:
        dockerfile, paths = IMAGES[name]
        tag = f"{REGISTRY}/sandgate-{name}:{TAG}"
        cluster.load_image(build_image(root / dockerfile, root, tag, paths=paths))


def values(tag: str = "", *, keep: bool = False) -> Json:
    """Those of the other tests, but for what the release before may not know; with images of the other tag."""
    images = VALUES["images"] | ({name: {"tag": tag} for name in OURS} if tag else {})
    known = {name: value for name, value in VALUES.items() if name != "kueue"}
    return known | {"images": images, "crds": {"keep": keep}}


@contextmanager
def nothing_installed(world: World) -> Iterator[None]:
    """And the usual installation afterwards, whatever is there then."""
    world.release.uninstall()
    try:
        yield
    finally:
        world.release.uninstall("--ignore-not-found")
        names = ("rolloutjobs.sandgate.dev", "agentsessions.sandgate.dev")
        world.cluster.kubectl("delete", "crd", *names, "--ignore-not-found", "--timeout=60s")
        world.release.install(VALUES)
        ready(world)


def ready(world: World) -> None:
    until_now(lambda: all_ready(world), what="both replicas of the operator are ready", within_s=READY_S)


def at_work(world: World, namespace: str) -> set[str]:
    """Agents that run. By their pods: an AgentSession says so late (SHOW_S), and not of a short one."""
    pods = world.list("pods", namespace, "sandgate.dev/role=agent")
    return {one["metadata"]["uid"] for one in pods if one["status"].get("phase") == "Running"}


async def collected(world: World, namespace: str) -> Counter[tuple[str, int, int]]:
    """(task, sample, attempt) of all rows, each with its number of turns; a trainer outside takes them."""
    found: Counter[tuple[str, int, int]] = Counter()
    place = ClusterPlace(namespace=namespace, kubeconfig=str(world.cluster.kubeconfig))
    groups = 0
    async with cluster_fleet("shop", place) as fleet:
        async for group in fleet.groups(idle_s=150.0):
            async with group:
                for row in group.trajectories:
                    assert (row.failure_reason, row.reward) == (None, 1.0), row.failure_reason
                    found[row.uid, row.sample_index, row.attempt] += len(row.turn_ids)
            groups += 1
            if groups == TASKS:
                break
    return found


def each_once() -> dict[tuple[str, int, int], int]:
    """Every sample in its first attempt, with all its turns."""
    return {(f"q{task}", sample, 0): TURNS for task in range(TASKS) for sample in range(SAMPLES)}


async def test_a_running_job_goes_on_through_an_upgrade_from_the_commit_before(world: World) -> None:
    cluster, root = world.cluster, source(the_commit_before())
    load(cluster, root)
    with nothing_installed(world), cluster.namespace("upgrade") as namespace:
        world.release.install(values(TAG), chart=root / "charts" / "sandgate")
        ready(world)
        scripted.prepare(world, namespace)
        scripted.submit(world, namespace, scripted.job("shop", AGENT, tasks=TASKS, samples=SAMPLES))
        until_now(lambda: len(at_work(world, namespace)) == SESSIONS, what="all agents run", within_s=120)
        gateway = world.get("pod", namespace, gateway_name("shop", 0))
        agents = at_work(world, namespace)

        world.release.upgrade(values())
        until_now(
            lambda: images_of(world) == {f"{REGISTRY}/sandgate-operator:e2e"},
            what="new operators",
            within_s=90,
        )
        ready(world)

        async def rolled() -> bool:
            now = world.list("pods", namespace, "sandgate.dev/role=gateway")
            return [one["metadata"]["uid"] for one in now] != [gateway["metadata"]["uid"]] and len(now) == 1

        await until(rolled, what="the gateway is one of the new release", within_s=90)
        assert pods_of(world, namespace, "agent") == agents, "no agent was started again"
        assert await collected(world, namespace) == each_once()
        wait_for(world, namespace, "shop", "Complete")
        assert len(world.list("agentsessions", namespace)) == SESSIONS
        rows = json.loads(cluster.kubectl("get", "crd", "rolloutjobs.sandgate.dev", "-o", "json"))
        assert rows["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def pods_of(world: World, namespace: str, role: str) -> set[str]:
    return {one["metadata"]["uid"] for one in world.list("pods", namespace, f"sandgate.dev/role={role}")}


def images_of(world: World) -> set[str]:
    """Of operators that are not going."""
    return {one["spec"]["containers"][0]["image"] for one in world.operators()}


@pytest.mark.endurance
async def test_a_job_outlives_an_uninstall_that_keeps_and_none_that_does_not(world: World) -> None:
    cluster = world.cluster
    with nothing_installed(world), cluster.namespace("kept") as namespace:
        before = everything(cluster)
        world.release.install(values(keep=True))
        ready(world)
        scripted.prepare(world, namespace)
        given = everything(cluster)
        scripted.submit(world, namespace, scripted.job("shop", AGENT, tasks=TASKS, samples=SAMPLES))
        until_now(lambda: len(at_work(world, namespace)) == SESSIONS, what="all agents run", within_s=120)

        world.release.uninstall()
        until_now(lambda: not world.operators(), what="the operators go", within_s=60)
        world.release.install(values(), "--take-ownership")
        ready(world)
        assert await collected(world, namespace) == each_once()
        wait_for(world, namespace, "shop", "Complete")
        assert ours(given, cluster, namespace), "gateways and sessions are there until the job goes"

        world.release.uninstall()
        until_now(lambda: not ours(given, cluster, namespace), what="nothing of the job is left", within_s=90)
        until_now(
            lambda: not ours(before, cluster, SYSTEM), what="nothing of the release is left", within_s=60
        )


def ours(before: set[tuple[str, str, str]], cluster: Cluster, namespace: str) -> set[tuple[str, str, str]]:
    """What came since: in the namespace, or for all of the cluster under a name of ours."""
    here = {
        (kind, space, name)
        for kind, space, name in everything(cluster)
        if space == namespace and name != CLOSED
    }
    wide = {
        (kind, space, name) for kind, space, name in everything(cluster) if not space and "sandgate" in name
    }
    return (here | {one for one in wide if namespace == SYSTEM}) - before
