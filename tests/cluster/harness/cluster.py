"""A cluster as tests get it: one of our own, with power over its machines, or somebody's kind, without."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.cluster.harness import volumes
from tests.cluster.harness.api import Api
from tests.cluster.harness.machines import Machines
from tests.cluster.harness.pki import CONTEXT
from tests.cluster.harness.shared import shared

KUBECONFIG = "SANDGATE_TEST_KUBECONFIG"
"""Environment: use this cluster instead. Its current context must be one that nobody works with."""
KIND = "kind-"


@dataclass(frozen=True)
class Cluster(Api):
    """`kind`: the name of a kind cluster, or empty."""

    owned: Machines | None = None
    kind: str = ""

    @contextmanager
    def namespace(self, name: str, *, security: str = "restricted") -> Iterator[str]:
        """As Api's, with something random behind the name: other runs use this cluster too."""
        with super().namespace(f"{name}-{secrets.token_hex(3)}", security=security) as made:
            yield made

    @property
    def machines(self) -> Machines:
        """Power over nodes, network and control plane. Skips the test where there is none."""
        if self.owned is None:
            pytest.skip(f"{KUBECONFIG}: this test needs power over the machines of the cluster")
        return self.owned

    @property
    def nodes(self) -> list[str]:
        """Names of worker nodes."""
        found = self.rest().get("/api/v1/nodes")["items"]
        control = "node-role.kubernetes.io/control-plane"
        return sorted(n["metadata"]["name"] for n in found if control not in n["metadata"].get("labels", {}))

    def load_image(self, archive: Path) -> None:
        """Into all nodes; pods that name it need imagePullPolicy Never or IfNotPresent. See images.build_image."""
        if self.owned is not None:
            with ThreadPoolExecutor(len(self.owned.nodes)) as pool:
                list(pool.map(lambda node: node.load_image(archive), self.owned.nodes.values()))
        elif self.kind:
            subprocess.run(["kind", "load", "image-archive", "--name", self.kind, str(archive)], check=True)
        else:
            pytest.skip(f"{KUBECONFIG}: images can be loaded into kind only")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """The one that KUBECONFIG names, or the one of this machine, started if it does not run."""
    if named := os.environ.get(KUBECONFIG):
        with foreign(Path(named)) as found:
            yield found
    else:
        with shared() as machines:
            volumes.reclaim(machines.api.rest())
            yield Cluster(**vars(machines.api), owned=machines)


@contextmanager
def foreign(kubeconfig: Path) -> Iterator[Cluster]:
    """A cluster that is there already. Fails unless its context is `kind-*` or one of our own."""
    config = yaml.safe_load(kubeconfig.read_text("utf-8"))
    name = config["current-context"]
    if not name.startswith(KIND) and name != CONTEXT:
        pytest.fail(f"{KUBECONFIG}: tests may use a context {KIND}* or {CONTEXT}, not {name}")
    context = entry(config["contexts"], name, "context")
    user = entry(config["users"], context["user"], "user")
    there = entry(config["clusters"], context["cluster"], "cluster")
    with TemporaryDirectory(prefix="sandgate-kubeconfig-") as folder:
        ca, cert, key = (Path(folder) / file for file in ("ca.crt", "admin.crt", "admin.key"))
        key.touch(mode=0o600)
        for path, data in (
            (ca, there["certificate-authority-data"]),
            (cert, user["client-certificate-data"]),
            (key, user["client-key-data"]),
        ):
            path.write_bytes(base64.b64decode(data))
        kind = name.removeprefix(KIND) if name.startswith(KIND) else ""
        yield Cluster(there["server"], kubeconfig, ca, cert, key, audit_log=None, kind=kind)


def entry(entries: list[dict[str, Any]], name: str, field: str) -> dict[str, Any]:
    """Of a kubeconfig's list, by name."""
    found: dict[str, Any] = next(item[field] for item in entries if item["name"] == name)
    return found
