"""Fixtures of everything that needs a real Kubernetes. Nothing is built or started before a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from shutil import disk_usage

import pytest

from tests.cluster.harness.api import Api, api_server
from tests.cluster.harness.cluster import KUBECONFIG, Cluster
from tests.cluster.harness.cluster import cluster as start_or_join
from tests.cluster.harness.machines import STATE
from tests.cluster.harness.needs import why_no_api_server, why_no_cluster
from tests.cluster.harness.shared import peace

DISK_LEFT = 512 << 20
TEST_S = 180
"""Of one test in a cluster: a node that is cut off is noticed after 20 s, and pods move after that."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs a whole Kubernetes cluster (docs/testing.md)")
    config.addinivalue_line(
        "markers", "chaos: breaks the cluster's machines; no other test uses them meanwhile"
    )


KUBERNETES = ("tests/anycluster/", "tests/chart/", "tests/cluster/", "tests/images/")


def turn(item: pytest.Item) -> int:
    """All that needs no Kubernetes comes first: a cluster takes its share of two cores until the run ends, and what
    it is made of may still be compiled. Then what needs a machine without a cluster, before others leave one on."""
    if "nobody_else" in getattr(item, "fixturenames", ()):
        return 1
    return 2 if item.nodeid.startswith(KUBERNETES) else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that asks may wait for a build of minutes: only the test itself is timed."""
    items.sort(key=turn)
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "cluster" in fixtures:
            item.add_marker("cluster")
        if {"cluster", "apiserver"} & set(fixtures) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S, func_only=True))


@pytest.fixture(scope="session")
def apiserver() -> Iterator[Api]:
    """etcd and kube-apiserver on 127.0.0.1, shared by all tests of a run: use a namespace of your own."""
    if why := why_no_api_server():
        pytest.skip(why)
    with api_server() as (api, _):
        yield api


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A whole cluster, shared by all test runs of this machine: use namespaces, mend what you break."""
    if not os.environ.get(KUBECONFIG) and (why := why_no_cluster()):
        pytest.skip(why)
    with start_or_join() as found:
        yield found


@pytest.fixture(autouse=True)
def _whole_machines(request: pytest.FixtureRequest) -> Iterator[None]:
    """Test runs share one cluster: what `chaos` tests break, they break while nobody else's test runs."""
    if "cluster" not in request.fixturenames:
        yield
        return
    with peace(broken=request.node.get_closest_marker("chaos") is not None):
        yield
    assert not STATE.exists() or disk_usage(STATE).free > DISK_LEFT, (
        f"{STATE} is nearly full: etcd and the nodes fail when it is, each in its own way"
    )
