"""The benchmarks that need a Kubernetes still measure; of the others `.ci/run` sees to that in a stage of its own."""

from __future__ import annotations

import pytest

from tests.bench import bench_cluster, bench_kube
from tests.cluster.harness.api import Api
from tests.cluster.scale.hosts import why_no_hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]


def test_what_a_call_costs(apiserver: Api) -> None:  # the fixture: it is built, or the test skipped
    measured = bench_kube.bench(smoke=True)
    assert {"apply_new_cpu_us", "patch_status_wall_ms"} <= measured.keys()
    assert min(measured.values()) > 0


def test_sessions_a_second(apiserver: Api) -> None:
    if why := why_no_hosts():
        pytest.skip(why)
    measured = bench_cluster.bench(smoke=True)
    assert {"sessions_per_s", "writes_per_session"} <= measured.keys()
    assert min(measured.values()) > 0
