"""Kubeconfigs and service accounts: what is understood, and how the rest is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate.contract.errors import BadManifest, SandgateError, Unsupported
from sandgate.operator.kubernetes.access import Access, find, from_kubeconfig, in_cluster

Json = dict[str, Any]


def config(cluster: Json | None = None, user: Json | None = None, **context: str) -> Json:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def read(folder: Path, *bodies: Json) -> Access:
    files = []
    for number, body in enumerate(bodies):
        files.append(folder / f"config-{number}")
        files[-1].write_text(yaml.safe_dump(body))
    return from_kubeconfig(files)


def test_server_namespace_and_token_of_the_current_context(tmp_path: Path) -> None:
    found = read(tmp_path, config({"server": "http://a:1/"}, {"token": "hush"}, namespace="ours"))
    assert (found.server, found.namespace, found.token.value(), found.tls) == (
        "http://a:1",
        "ours",
        "hush",
        None,
    )
    assert "hush" not in repr(found)


def test_relative_files_begin_at_their_kubeconfig_and_the_first_of_several_wins(tmp_path: Path) -> None:
    (tmp_path / "token-file").write_text("from a file\n")
    first = {"current-context": "here", "users": [{"name": "u", "user": {"tokenFile": "token-file"}}]}
    found = read(tmp_path, first, {**config(user={"token": "second"}), "current-context": "other"})
    assert found.token.value() == "from a file"


def test_missing_files_of_several_are_passed_over_but_not_all(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config()))
    assert from_kubeconfig([tmp_path / "none", file]).namespace == "default"
    with pytest.raises(SandgateError, match="not found, and not in a pod"):
        from_kubeconfig([tmp_path / "none"])


DAMAGED = {"certificate-authority-data": base64.b64encode(b"no certificate").decode()}
REFUSED: dict[str, tuple[Json, type[SandgateError], str]] = {
    "a helper program": (
        config(user={"exec": {"command": "aws"}}), Unsupported, "users[u].user.exec",
    ),
    "a login plugin": (config(user={"auth-provider": {"name": "oidc"}}), Unsupported, "users[u].user.auth-provider"),
    "a password": (config(user={"username": "me"}), Unsupported, "users[u].user.username"),
    "a proxy": (config({"proxy-url": "http://p"}), Unsupported, "clusters[c].cluster.proxy-url"),
    "no server": (config({"server": ""}), BadManifest, "clusters[c].cluster.server"),
    "a server of no port": (config({"server": "https://a:65536"}), BadManifest, "clusters[c].cluster.server"),
    "a token of two lines": (config(user={"token": "a\nb"}), BadManifest, "users[u].user.token"),
    "a token of another alphabet": (config(user={"token": "\xe9"}), BadManifest, "users[u].user.token"),
    "a context that is not there": ({**config(), "current-context": "there"}, BadManifest, "contexts[there]"),
    "no context": ({**config(), "current-context": ""}, BadManifest, "current-context"),
    "a user that is not there": ({**config(), "users": []}, BadManifest, "users[u]"),
    "a damaged certificate": (config({"server": "https://a", **DAMAGED}), BadManifest, ""),
    "data that is not base64": (
        config({"server": "https://a", "certificate-authority-data": "%%"}), BadManifest, "certificate-authority",
    ),
    "a certificate without its key": (
        config({"server": "https://a"}, {"client-certificate-data": "eA=="}), BadManifest, "client-key",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "error", "field"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, body: Json, error: type[SandgateError], field: str) -> None:
    with pytest.raises(error) as refused:
        read(tmp_path, body)
    assert (getattr(refused.value, "field", None) or "") == field


def test_what_is_no_kubeconfig_is_said_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "broken"
    for text in ("[1", "- a\n- b\n", "\x00", "a: !!int ''", "[" * 5000, "users: 5"):
        file.write_text(text)
        with pytest.raises(BadManifest, match="broken"):
            from_kubeconfig([file])


def test_a_pod_s_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(SandgateError, match="service account"):
        in_cluster(environ, tmp_path)
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "namespace").write_text("ours\n")
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(SandgateError, match="service account"):
        in_cluster(environ, tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SandgateError, match="serviceaccount"):
        find()
