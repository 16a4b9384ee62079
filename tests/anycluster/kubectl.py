"""kubectl and helm as a person has them, for one cluster: nothing here knows what kind of cluster that is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.programs import binary

Json = dict[str, Any]
PATIENCE_S = 300.0


def program(name: str) -> str:
    """The one on the PATH, or the one that the tests build."""
    return shutil.which(name) or str(binary(name))


@dataclass(frozen=True)
class Kubectl:
    """As the kubeconfig's current context says."""

    kubeconfig: Path

    def __call__(self, *args: str, stdin: str | None = None) -> str:
        """What it printed. Raises AssertionError with its complaint."""
        return self.run("kubectl", *args, stdin=stdin)

    def helm(self, *args: str, values: Mapping[str, Any] | None = None) -> str:
        """As kubectl; `values` go to standard input: say --values=-."""
        return self.run("helm", *args, stdin=None if values is None else json.dumps(values))

    def run(self, name: str, *args: str, stdin: str | None = None) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        command = [program(name), *args]
        done = subprocess.run(
            command, env=env, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{name} {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    def get(self, *args: str) -> Json:
        """`kubectl get ... -o json`."""
        found: Json = json.loads(self("get", *args, "-o", "json"))
        return found

    def names(self, *args: str) -> set[str]:
        """kind/name of what `kubectl get` finds and nobody deletes."""
        return {
            f"{one['kind']}/{one['metadata']['name']}"
            for one in self.get(*args)["items"]
            if "deletionTimestamp" not in one["metadata"]
        }

    def apply(self, namespace: str, *objects: Json) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "-n", namespace, "-f", "-", stdin=json.dumps(listed))

    def conditions(self, namespace: str, job: str) -> dict[str, str]:
        """Type -> `Status Reason: message` of a RolloutJob."""
        body = self.get("rolloutjob", job, "-n", namespace)
        return {
            one["type"]: f"{one['status']} {one.get('reason', '')}: {one.get('message', '')}"
            for one in body.get("status", {}).get("conditions", ())
        }
