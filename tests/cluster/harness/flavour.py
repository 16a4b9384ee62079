"""Which cluster this process makes: the tests' own of three nodes, or one with what kind has by default.

    SANDGATE_TEST_FLAVOUR=kind python -m tests.cluster.harness up

Both can run side by side: each has its own folder, network namespaces and cgroups.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FLAVOUR = "SANDGATE_TEST_FLAVOUR"


@dataclass(frozen=True)
class Flavour:
    """`state`: disks, logs and notes; sockets are below it, so the path must be short. `prefix`: of the names of its
    network namespaces and cgroups. `context`: in its kubeconfigs."""

    state: Path
    prefix: str
    context: str
    nodes: tuple[str, ...]
    control_plane_runs_pods: bool
    """The only node is the control plane's by label, without a taint."""
    policies: bool
    """Whether NetworkPolicies do anything."""
    provisions: bool
    """Volumes are made for claims by local-path-provisioner; else they are there before."""


OWN = Flavour(
    state=Path("/var/tmp/sandgate-cluster"),
    prefix="sg-",
    context="sandgate-test",
    nodes=("n1", "n2", "n3"),
    control_plane_runs_pods=False,
    policies=True,
    provisions=False,
)
KIND = Flavour(
    state=Path("/var/tmp/sandgate-kind"),
    prefix="sk-",
    context="kind-sandgate",
    nodes=("sandgate-control-plane",),
    control_plane_runs_pods=True,
    policies=False,
    provisions=True,
)
"""As `kind create cluster --name sandgate` makes it, with a CNI that knows no policies, as kind's own before 0.24."""
flavour = {"": OWN, "kind": KIND}[os.environ.get(FLAVOUR, "")]
