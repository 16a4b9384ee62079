"""Tests never touch a cluster that somebody works with."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.cluster.harness.cluster import foreign


def kubeconfig(path: Path, context: str) -> Path:
    data = base64.b64encode(b"pem").decode()
    user = {"client-certificate-data": data, "client-key-data": data}
    there = {"server": "https://127.0.0.1:1", "certificate-authority-data": data}
    config = {
        "current-context": context,
        "contexts": [
            {"name": "other", "context": {"cluster": "none", "user": "none"}},
            {"name": context, "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": there}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("context", ["production", "my-kind-cluster", "sandgate-test-2", ""])
def test_refused(tmp_path: Path, context: str) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="tests may use"),
        foreign(kubeconfig(tmp_path / "k", context)),
    ):
        pass


@pytest.mark.parametrize(("context", "kind"), [("kind-dev", "dev"), ("sandgate-test", "")])
def test_used_without_power_over_machines(tmp_path: Path, context: str, kind: str) -> None:
    with foreign(kubeconfig(tmp_path / "k", context)) as cluster:
        assert (cluster.url, cluster.kind, cluster.cert.read_bytes()) == ("https://127.0.0.1:1", kind, b"pem")
        with pytest.raises(pytest.skip.Exception, match="power over the machines"):
            _ = cluster.machines
