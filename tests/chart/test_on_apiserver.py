"""The chart at a real API server: what its roles allow, that its pods are admitted, that it goes without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.chart.released import Release, can, everything, in_force, released
from tests.chart.test_rbac import OPERATOR
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused

JOBS, ELSEWHERE = "chart-jobs", "chart-elsewhere"
"""A namespace with jobs, and one of which the operator knows nothing in namespace scope."""


@pytest.fixture(scope="module")
def namespaces(apiserver: Api) -> Iterator[None]:
    with apiserver.namespace(JOBS), apiserver.namespace(ELSEWHERE):
        yield


@pytest.fixture(scope="module")
def by_cluster(apiserver: Api, namespaces: None) -> Iterator[Release]:
    with released(apiserver, "chart-wide", {"shards": ["a"]}) as release:
        in_force(release, JOBS)
        yield release


@pytest.fixture(scope="module")
def by_namespace(apiserver: Api, namespaces: None) -> Iterator[Release]:
    values = {"scope": "namespace", "watchNamespaces": [JOBS], "crds": {"install": False}}
    with released(apiserver, "chart-narrow", values | {"rbac": {"userRoles": False}}) as release:
        in_force(release, JOBS)
        yield release


VERBS = "get list watch create update patch delete deletecollection".split()
ALLOWED = [(resource, verb) for resource, verbs in OPERATOR.items() for verb in sorted(verbs)]
REFUSED = [(resource, verb) for resource, verbs in OPERATOR.items() for verb in VERBS if verb not in verbs]
NEVER = [
    ("pods/exec", "create"),
    ("pods/exec", "get"),
    ("pods/attach", "create"),
    ("pods/portforward", "create"),
    ("pods/log", "get"),
    ("pods/ephemeralcontainers", "patch"),
    ("pods/eviction", "create"),
    ("pods/status", "patch"),
    ("secrets", "list"),
    ("secrets", "watch"),
    ("secrets", "deletecollection"),
    ("nodes", "get"),
    ("nodes", "list"),
    ("nodes/proxy", "get"),
    ("namespaces", "list"),
    ("namespaces", "delete"),
    ("serviceaccounts", "create"),
    ("serviceaccounts/token", "create"),
    ("events", "get"),
    ("events", "patch"),
    ("persistentvolumes", "list"),
    ("customresourcedefinitions.apiextensions.k8s.io", "get"),
    ("customresourcedefinitions.apiextensions.k8s.io", "patch"),
    ("roles.rbac.authorization.k8s.io", "create"),
    ("rolebindings.rbac.authorization.k8s.io", "create"),
    ("clusterroles.rbac.authorization.k8s.io", "bind"),
    ("clusterrolebindings.rbac.authorization.k8s.io", "create"),
    ("statefulsets/scale.apps", "patch"),
    ("deployments/scale.apps", "patch"),
    ("daemonsets.apps", "create"),
    ("jobs.batch", "create"),
    ("ingresses.networking.k8s.io", "create"),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io", "create"),
    ("leases.coordination.k8s.io", "list"),
    ("leases.coordination.k8s.io", "delete"),
]
"""Whatever the table of the role says: what would make more of an operator that was taken over."""


@pytest.mark.parametrize(("resource", "verb"), ALLOWED, ids=lambda text: text)
def test_the_operator_can(by_cluster: Release, by_namespace: Release, resource: str, verb: str) -> None:
    """In every namespace, or only where it looks."""
    assert can(by_cluster, verb, resource, JOBS)
    assert can(by_cluster, verb, resource, ELSEWHERE)
    assert can(by_namespace, verb, resource, JOBS)
    assert not can(by_namespace, verb, resource, ELSEWHERE)
    assert not can(by_namespace, verb, resource, "")
    assert not can(by_namespace, verb, resource, by_namespace.namespace)


@pytest.mark.parametrize(("resource", "verb"), sorted({*REFUSED, *NEVER}), ids=lambda text: text)
def test_the_operator_cannot(by_cluster: Release, by_namespace: Release, resource: str, verb: str) -> None:
    for release in (by_cluster, by_namespace):
        for namespace in (JOBS, ELSEWHERE, release.namespace, "kube-system", ""):
            assert not can(release, verb, resource, namespace), namespace


@pytest.mark.parametrize("verb", ["get", "update", "patch"])
def test_leases_are_its_own(by_cluster: Release, verb: str) -> None:
    own = by_cluster.namespace
    leases = "leases.coordination.k8s.io"
    assert can(by_cluster, verb, leases, own, "sandgate-operator")
    assert can(by_cluster, verb, leases, own, "sandgate-operator-a")
    assert not can(by_cluster, verb, leases, own, "sandgate-operator-b")
    assert not can(by_cluster, verb, leases, own)
    assert not can(by_cluster, verb, leases, "kube-system", "kube-scheduler")


def test_a_lease_that_was_deleted_can_be_made_anew_but_only_at_home(by_cluster: Release) -> None:
    assert can(by_cluster, "create", "leases.coordination.k8s.io", by_cluster.namespace)
    assert not can(by_cluster, "create", "leases.coordination.k8s.io", "kube-system")


def test_the_two_scopes_differ_in_where_not_in_what(by_namespace: Release) -> None:
    """The watch of all namespaces is refused: so `namespaces` must be in the settings."""
    account = by_namespace.api.rest(token=by_namespace.api.token(by_namespace.namespace, "sandgate-operator"))
    assert account.get(f"/api/v1/namespaces/{JOBS}/pods")["items"] == []
    with pytest.raises(Refused, match="cluster scope"):
        account.get("/api/v1/pods")


def test_everything_the_chart_starts_is_admitted_as_restricted(by_cluster: Release) -> None:
    """The release's namespace enforces `restricted`; nothing here makes pods of Deployments, so the test does."""
    rest = by_cluster.api.rest()
    path = f"/api/v1/namespaces/{by_cluster.namespace}/pods?dryRun=All"
    deployments = rest.get(f"/apis/apps/v1/namespaces/{by_cluster.namespace}/deployments")["items"]
    assert len(deployments) == 2
    for one in deployments:
        pod = {**one["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
        pod["metadata"]["name"] = "probe"
        rest.create(path, pod)


def test_uninstalled_leaves_nothing(apiserver: Api) -> None:
    values = {"shards": ["x"], "metrics": {"dashboard": {"enabled": True}}}
    values |= {"fullnameOverride": "trace", "crds": {"install": False}}
    with apiserver.namespace("chart-trace"):
        before = everything(apiserver)
        release = Release(apiserver, "chart-trace")
        release.install(values)
        during = everything(apiserver)
        assert len(during - before) >= 15
        release.upgrade(values | {"shards": ["y"]})
        after_upgrade = {name for _, _, name in everything(apiserver) - before}
        assert "trace-operator-y" in after_upgrade
        assert "trace-operator-x" not in after_upgrade, "a shard that is no more"
        release.uninstall()
        assert everything(apiserver) - before == set()


def test_what_the_operator_wrote_survives_an_upgrade(apiserver: Api) -> None:
    """The Lease is the chart's, who holds it is the operator's."""
    values: Mapping[str, Any] = {"fullnameOverride": "kept", "crds": {"install": False}}
    with released(apiserver, "chart-kept", values) as release:
        in_force(release, JOBS, account="kept-operator")
        rest = apiserver.rest()
        path = "/apis/coordination.k8s.io/v1/namespaces/chart-kept/leases/kept-operator"
        account = apiserver.rest(token=apiserver.token("chart-kept", "kept-operator"))
        account.merge(path, {"spec": {"holderIdentity": "pod-1", "leaseDurationSeconds": 15}})
        release.upgrade({**values, "operator": {"replicas": 3}})
        assert rest.get(path)["spec"]["holderIdentity"] == "pod-1"
        rest.call("DELETE", path)
        body = {"metadata": {"name": "kept-operator"}, "spec": {"holderIdentity": "pod-2"}}
        account.create(path.rpartition("/")[0], body)
        release.upgrade(values)
        assert rest.get(path)["spec"]["holderIdentity"] == "pod-2", (
            "made anew by the operator, adopted by helm"
        )
