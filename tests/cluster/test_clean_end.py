"""A cluster that ended leaves nothing on the machine: also one that crashed, and one that nobody noted down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster import pods
from tests.cluster.harness import network
from tests.cluster.harness.cache import locked
from tests.cluster.harness.cluster import KUBECONFIG
from tests.cluster.harness.machines import STATE, Machines
from tests.cluster.harness.needs import why_no_cluster
from tests.cluster.harness.node import hierarchies
from tests.cluster.harness.shared import CHANGES, owner

IN_CLUSTER = "/sg-n"
"""In /proc/PID/cgroup of every process in a pod."""


@pytest.fixture
def nobody_else() -> Iterator[Machines]:
    """The machine's only cluster, for this test alone; ended afterwards."""
    if os.environ.get(KUBECONFIG):
        pytest.skip(f"{KUBECONFIG}: this test needs power over the machines of the cluster")
    if why := why_no_cluster():
        pytest.skip(why)
    with locked(CHANGES):
        if owner():
            pytest.skip("a cluster runs on this machine")
        machines = Machines()
        try:
            yield machines
        finally:
            machines.down()


def traces() -> list[str]:
    """Of any cluster of ours: namespaces, processes, mounts, cgroups, files."""
    found = [str(path) for path in network.ours()]
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # ended meanwhile, or none
            if IN_CLUSTER in (entry / "cgroup").read_text("utf-8") or str(STATE) in (
                entry / "cmdline"
            ).read_text("utf-8"):
                found.append(f"{entry}: {(entry / 'cmdline').read_text('utf-8')}")
    found += [
        line for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines() if str(STATE) in line
    ]
    found += [str(path) for root in hierarchies() for path in root.glob("sg-*")]
    return found + [str(STATE)] * STATE.exists()


@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("noted", [True, False], ids=["as it was noted", "when all notes are lost"])
def test_a_cluster_leaves_nothing(nobody_else: Machines, noted: bool) -> None:
    nobody_else.up(in_memory=True)
    api = nobody_else.api
    with api.namespace("last") as space:
        pods.start(api, space, *(pods.pod(f"p-{name}", nodeName=name) for name in nobody_else.nodes))
        for name in nobody_else.nodes:
            pods.running(api, space, f"p-{name}")
    seen = traces()
    assert any("kubelet" in line for line in seen)  # the search finds what there is
    assert any("sg-n1" in line for line in seen)
    if not noted:
        shutil.rmtree(nobody_else.ledger.folder)
    nobody_else.down()
    assert traces() == []
