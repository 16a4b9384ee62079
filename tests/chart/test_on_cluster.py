"""The chart on real nodes: replicas and their Lease, `helm test`, upgrade, and an uninstall under a running job.

Definitions exist once in a cluster, and other test runs use them: only the last test takes them away, and it has the
cluster for itself.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sandgate.operator.manifests.policies import CLOSED
from tests.chart.released import Release, everything
from tests.chart.rendering import CHART, ChartRefused
from tests.cluster import crds
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import build_image
from tests.cluster.harness.programs import binary
from tests.cluster.harness.rest import Refused
from tests.contract.manifests import spoilt
from tests.support.waiting import until_now

pytestmark = pytest.mark.slow

ROOT = CHART.parents[1]
TAG = "chart-test"
CONTEXT = "constraints.txt pyproject.toml README.md LICENSE contract gateway operator sandbox trainer".split()
VALUES: dict[str, Any] = {
    "images": {"pullPolicy": "Never", "operator": {"tag": TAG}},
    "jobs": {"gateway": {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}},
    "operator": {"resources": {"requests": {"cpu": "50m"}}},
}
WAIT = ("--wait", "--timeout=100s")
LEASE_S = 15
"""The Lease's duration: nobody leads for so long at most."""
TAKEN_OVER_S = LEASE_S + 25


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> None:
    """Ours, in all nodes."""
    dockerfile = ROOT / "images" / "operator.Dockerfile"
    tag = f"docker.io/library/sandgate-operator:{TAG}"
    cluster.load_image(build_image(dockerfile, ROOT, tag, paths=CONTEXT))


@contextmanager
def explained(release: Release) -> Iterator[None]:
    """What helm waits for in vain is said by pods and their logs, which are gone after the test."""
    try:
        yield
    except ChartRefused as refused:
        look = ("-n", release.namespace, "--selector=app.kubernetes.io/part-of=sandgate")
        said = [
            release.api.kubectl(*what, *look, check=False)
            for what in (["describe", "pod"], ["logs", "--prefix"])
        ]
        raise AssertionError("\n".join([str(refused), *said])) from None


@pytest.fixture
def release(cluster: Cluster, image: None) -> Iterator[Release]:
    """Installed and ready, under names of its own."""
    crds.install(cluster)
    with cluster.namespace("chart") as namespace:
        release = Release(cluster, namespace, name=f"sandgate-{namespace}")
        try:
            with explained(release):
                release.install(VALUES | {"crds": {"install": False}}, *WAIT)
            yield release
        finally:
            release.uninstall("--ignore-not-found")


def lease(release: Release) -> dict[str, Any]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/{release.name}-operator"
    spec: dict[str, Any] = release.api.rest().get(path)["spec"]
    return spec


def replicas(release: Release) -> set[str]:
    """Names of operator pods that run and are not being deleted."""
    found = release.api.rest().get(f"/api/v1/namespaces/{release.namespace}/pods")["items"]
    return {
        one["metadata"]["name"]
        for one in found
        if one["metadata"]["labels"].get("app.kubernetes.io/component") == "operator"
        and "deletionTimestamp" not in one["metadata"]
        and one["status"]["phase"] == "Running"
    }


def test_two_are_ready_one_leads_and_helm_test_says_so(release: Release) -> None:
    assert len(replicas(release)) == 2
    until_now(lambda: lease(release).get("holderIdentity") in replicas(release), what="one leads")
    said = release.helm("test", "--logs", "--timeout=150s")
    assert said.count("2 replicas are ready, leaders: 1") == 1
    assert re.search(r"; [1-9]\d+ rights are there", said)
    left = everything(release.api)
    assert not [name for _, _, name in left if name == f"{release.name}-test"], "what the test made is gone"


def test_helm_test_names_a_right_that_was_taken_away_and_leaves_its_pod_only(release: Release) -> None:
    release.api.kubectl("-n", release.namespace, "delete", "rolebinding", f"{release.name}-operator-lease")
    with pytest.raises(ChartRefused):
        release.helm("test", "--timeout=150s")
    assert "may not: get leases" in release.api.kubectl(
        "-n", release.namespace, "logs", f"{release.name}-test"
    )
    left = {kind for kind, _, name in everything(release.api) if name == f"{release.name}-test"}
    assert left == {"pods."}


def test_users_have_what_their_built_in_roles_say(release: Release) -> None:
    """The aggregation is the controller manager's work."""
    api, namespace = release.api, release.namespace

    def can(role: str, verb: str, resource: str, *of: str) -> bool:
        asked = ("-n", namespace, "auth", "can-i", verb, resource, *of, f"--as={role}er")
        return api.kubectl(*asked, check=False).strip().startswith("yes")

    for role in ("view", "edit"):
        api.kubectl(
            "-n", namespace, "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er"
        )
    until_now(lambda: can("view", "list", "rolloutjobs.sandgate.dev"), what="people who view see jobs")
    until_now(lambda: can("edit", "create", "rolloutjobs.sandgate.dev"), what="people who edit make jobs")
    assert not can("view", "create", "rolloutjobs.sandgate.dev")
    assert not can("edit", "patch", "rolloutjobs.sandgate.dev", "--subresource=status")


def test_when_the_leader_is_killed_the_other_takes_over(release: Release) -> None:
    until_now(lambda: lease(release).get("holderIdentity") in replicas(release), what="one leads")
    leader = lease(release)["holderIdentity"]
    release.api.kubectl("-n", release.namespace, "delete", "pod", leader, "--grace-period=0", "--force")
    until_now(
        lambda: lease(release).get("holderIdentity") in replicas(release) - {leader},
        what="the other leads",
        within_s=TAKEN_OVER_S,
    )


@contextmanager
def followed(release: Release, log: Path) -> Iterator[list[tuple[str, datetime]]]:
    """(holder, when) of each renewal of the Lease while the block runs; filled at its end."""
    found: list[tuple[str, datetime]] = []
    command = [str(binary("kubectl")), f"--kubeconfig={release.api.kubeconfig}", "-n", release.namespace]
    command += ["get", "lease", f"{release.name}-operator", "--watch", "-o=jsonpath={.spec}{'\\n'}"]
    with log.open("wb") as out:
        watch = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield found
        finally:
            watch.terminate()
            watch.wait()
    for line in log.read_text("utf-8").splitlines():
        spec = json.loads(line)
        if spec.get("holderIdentity"):
            found.append((spec["holderIdentity"], datetime.fromisoformat(spec["renewTime"])))


def test_an_upgrade_leaves_no_gap_in_the_lease(release: Release, tmp_path: Path) -> None:
    until_now(lambda: lease(release).get("holderIdentity") in replicas(release), what="one leads")
    before = replicas(release)
    operator = VALUES["operator"] | {"podAnnotations": {"rolled": "yes"}}
    with followed(release, tmp_path / "lease") as renewals:
        release.upgrade({**VALUES, "operator": operator, "crds": {"install": False}}, *WAIT)
        until_now(
            lambda: not before & replicas(release) and lease(release)["holderIdentity"] in replicas(release),
            what="a new replica leads",
            within_s=TAKEN_OVER_S,
        )
        leads, told = lease(release)["holderIdentity"], tmp_path / "lease"
        until_now(lambda: leads in told.read_text("utf-8"), what="the watch has heard of it")
    assert len({holder for holder, _ in renewals}) >= 2
    gaps = [(later - earlier).total_seconds() for (_, earlier), (_, later) in pairwise(renewals)]
    assert max(gaps) < LEASE_S, gaps


@pytest.mark.chaos
def test_uninstalled_under_a_running_job_nothing_is_left_but_the_wall(cluster: Cluster, image: None) -> None:
    """Operator, definitions, the job, and what was made for it go; the wall must outlive all pods that it holds."""
    with cluster.namespace("chart") as home, cluster.namespace("chart-jobs") as jobs:
        rest = cluster.rest()

        def ours() -> set[tuple[str, str, str]]:
            return {
                one
                for one in everything(cluster)
                if (one[1] in (home, jobs) and one[2] not in ("default", "kube-root-ca.crt"))
                or (not one[1] and "sandgate" in one[2])
            }

        release = Release(cluster, home)
        with explained(release):
            release.install(VALUES, "--take-ownership", *WAIT)
        rest.create(f"/apis/sandgate.dev/v1alpha1/namespaces/{jobs}/rolloutjobs", spoilt())
        until_now(
            lambda: (
                {"statefulsets.apps", "secrets.", "networkpolicies.networking.k8s.io"}
                <= {kind for kind, space, _ in ours() if space == jobs}
            ),
            what="the operator has made the job's gateways",
            within_s=60,
        )
        release.uninstall()
        wall = {("networkpolicies.networking.k8s.io", jobs, CLOSED)}
        try:
            until_now(lambda: ours() <= wall, what="nothing else is left", within_s=90)
        except AssertionError as error:
            raise AssertionError(f"{error}: {sorted(ours() - wall)}") from None
        with pytest.raises(Refused, match="404"):
            rest.get("/apis/sandgate.dev/v1alpha1/rolloutjobs")
        crds.install(cluster)  # as other test modules expect them
