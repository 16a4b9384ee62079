"""Sandgate on the cluster that somebody names, or on one made here with what kind has by default."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.anycluster import own
from tests.anycluster.kubectl import Json, Kubectl
from tests.anycluster.preflight import missing
from tests.chart.rendering import CHART
from tests.cluster.harness.needs import why_no_cluster

KUBECONFIG, CONTEXT = "SANDGATE_ANY_KUBECONFIG", "SANDGATE_ANY_CONTEXT"
REGISTRY, TAG = "SANDGATE_ANY_REGISTRY", "SANDGATE_ANY_TAG"
SYSTEM = "sandgate-any"
SMALL: dict[str, Any] = {
    "operator": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
    "jobs": {
        "gateway": {
            "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
        },
        "sandbox": {"resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}},
    },
}
"""A laptop's kind has two to four cores: what production asks for would leave pods waiting."""


@dataclass(frozen=True)
class Images:
    """Where the cluster finds ours."""

    registry: str
    tag: str

    def name(self, what: str) -> str:
        return f"{self.registry}/sandgate-{what}:{self.tag}"

    def values(self) -> Json:
        tags = {name: {"tag": self.tag} for name in ("operator", "gateway", "fetcher")}
        return {"registry": self.registry, "pullPolicy": "IfNotPresent", **tags}


@dataclass(frozen=True)
class AnyCluster:
    """Sandgate is installed in it."""

    kubectl: Kubectl
    images: Images

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """Of `restricted` pods; gone afterwards, which is not waited for."""
        made = f"sandgate-{name}-{secrets.token_hex(3)}"
        self.kubectl("create", "namespace", made)
        self.kubectl("label", "namespace", made, "pod-security.kubernetes.io/enforce=restricted")
        try:
            yield made
        finally:
            self.kubectl("delete", "namespace", made, "--wait=false")


@pytest.fixture(scope="module")  # it ends with these tests: idle, it takes a third of a core
def there() -> Iterator[tuple[Kubectl, Images]]:
    """The cluster, and images that its nodes have or can pull."""
    if named := os.environ.get(KUBECONFIG):
        kubectl = Kubectl(Path(named))
        context = kubectl("config", "current-context").strip()
        if not context.startswith("kind-") and context != os.environ.get(CONTEXT):
            pytest.fail(
                f"the current context is {context}: say CONTEXT={context} if this cluster is one to test on"
            )
        yield kubectl, Images(os.environ.get(REGISTRY, "localhost"), os.environ.get(TAG, "any"))
    elif why := why_no_cluster():
        pytest.skip(why)
    else:
        with own.cluster() as kubeconfig:
            yield Kubectl(kubeconfig), Images(own.REGISTRY, own.TAG)


@pytest.fixture(scope="module")
def anycluster(there: tuple[Kubectl, Images]) -> Iterator[AnyCluster]:
    """The chart with its defaults, but small."""
    kubectl, images = there
    if lacks := missing(kubectl):
        pytest.fail("this cluster lacks:\n" + "\n".join(f"- {one}" for one in lacks))
    values = SMALL | {"images": images.values()}
    where = ("--namespace", SYSTEM)
    kubectl.helm(
        "install",
        "sandgate",
        str(CHART),
        *where,
        "--create-namespace",
        "--wait",
        "--timeout=4m",
        "--values=-",
        values=values,
    )
    try:
        yield AnyCluster(kubectl, images)
    finally:
        kubectl.helm("uninstall", "sandgate", *where, "--wait", "--timeout=2m")
        kubectl("delete", "namespace", SYSTEM, "--wait=false")
