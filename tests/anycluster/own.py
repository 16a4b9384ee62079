"""A cluster with what `kind create cluster` gives, from the harness (kind itself needs Docker, and its node image).

One node, which is the control plane's too; volumes by local-path-provisioner; a network in which policies do nothing.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.harness.flavour import FLAVOUR, KIND
from tests.images.ours import ROOT

REGISTRY, TAG = "localhost", "any"
LOADED = ("operator", "gateway", "fetcher")


@contextmanager
def cluster() -> Iterator[Path]:
    """Its kubeconfig, as kind's: a context of its name, an administrator's certificate. One run at a time has it."""
    with KIND.state.with_name(f"{KIND.state.name}.run").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        harness("down")  # of a run that was killed
        harness("up", *(f"{name}={REGISTRY}/sandgate-{name}:{TAG}" for name in LOADED))
        try:
            yield KIND.state / "admin.kubeconfig"
        finally:
            harness("down")


def harness(*args: str) -> None:
    """In a process of its own: a flavour is chosen once."""
    env = {**os.environ, FLAVOUR: "kind"}
    command = [sys.executable, "-m", "tests.cluster.harness", *args]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(args)}: {done.stdout}{done.stderr}"
